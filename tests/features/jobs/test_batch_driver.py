"""Who drives a batch, over a real Valkey: one gateway at a time, however long a step takes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.adapters.redis.client import connect
from gateway.adapters.redis.keyspace import ONE_SERVER
from gateway.adapters.redis.store import RedisStore
from gateway.errors import StoreUnavailable
from gateway.features.jobs.batch_driver import LEASE_S, RENEW_S, BatchDriver
from gateway.features.jobs.redis_batches import RedisBatches
from gateway.features.jobs.redis_jobs import RedisJobs
from gateway.features.jobs.store import BatchFile, BatchStore, Bounds, JobBatch
from gateway.tasks import cancel_and_wait
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import PATIENT_S
from tests.fixtures.stores import OutsideServer
from tests.fixtures.waiting import until

LINES, KEEP_S, FAR = 5, 600.0, 1e12
CHAT = "/v1/chat/completions"


class Slow(RedisBatches):
    """Each line that is written takes so long, of which `clock` alone knows. `then` comes after the second."""

    took_s = 0.0

    def __init__(self, store: RedisStore, client: Any, clock: FakeClock) -> None:
        super().__init__(store, client)
        self.clock = clock
        self.closed: dict[str, JobBatch] = {}
        self.written = self.leased = self.looked = 0

    async def then(self) -> None: ...

    async def open(self) -> list[str]:
        self.looked += 1
        return await super().open()

    async def lease(self, batch: str, driver: str, hold_s: float) -> bool:
        self.leased += 1
        return await super().lease(batch, driver, hold_s)

    async def record_output(self, batch: str, line: int, output: bytes, *, completed: bool) -> None:
        await super().record_output(batch, line, output, completed=completed)
        self.clock.advance(self.took_s)
        self.written += 1
        if self.written == 2:
            await self.then()

    async def close(self, batch: JobBatch, keep_s: float) -> None:
        await super().close(batch, keep_s)
        self.closed[batch.id] = batch


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def parts(outside_store: OutsideServer, clock: FakeClock) -> AsyncIterator[tuple[Slow, Slow, RedisJobs]]:
    """What two gateways drive batches by, and their jobs."""
    client = connect(outside_store.url, PATIENT_S)
    store = RedisStore(client, embedder="e", timeout_s=10.0, clock=clock)
    yield Slow(store, client, clock), Slow(store, client, clock), RedisJobs(store, client)
    await client.aclose()


def driver(name: str, batches: BatchStore, jobs: RedisJobs, clock: FakeClock) -> BatchDriver:
    bounds = Bounds(1000, 1000, 2**26, 60.0)
    more: dict[str, Any] = {"max_lines": 100, "keep_s": KEEP_S, "result_s": 60.0}
    return BatchDriver(name, batches, jobs, bounds, None, clock, lambda: None, **more)


async def cancelled_batch(batches: RedisBatches, name: str) -> None:
    """All of its lines are to be given up."""
    said = {"method": "POST", "url": CHAT, "body": {"model": "m"}}
    content = "\n".join(json.dumps({"custom_id": f"r{i}", **said}) for i in range(LINES)).encode()
    await batches.put_file(BatchFile(f"file-{name}", "t", "in", "batch", 0.0, FAR, len(content)), content)
    await batches.create(JobBatch(name, "t", CHAT, f"file-{name}", 0.0, FAR, {}, (), b""))
    await batches.cancel(name)


async def over(batches: Slow, name: str, by: BatchDriver) -> JobBatch:
    """What it came to, driven by that one."""
    task = asyncio.create_task(by.run())
    try:
        await until(lambda: name in batches.closed)
    finally:
        await cancel_and_wait(task)
    return batches.closed[name]


async def test_a_step_that_outlasts_the_lease_writes_nothing_into_what_another_gateway_has_ended(
    parts: tuple[Slow, Slow, RedisJobs], clock: FakeClock, outside_store: OutsideServer
) -> None:
    batches, theirs, jobs = parts
    await cancelled_batch(batches, "batch_1")

    async def meanwhile() -> None:
        clock.advance(LEASE_S)
        outside_store.client.delete(ONE_SERVER.key("batches:") + "driver:batch_1")  # so it has expired
        await over(theirs, "batch_1", driver("other", theirs, jobs, clock))

    batches.then = meanwhile  # type: ignore[method-assign]
    task = asyncio.create_task(driver("slow", batches, jobs, clock).run())
    await until(lambda: "batch_1" in theirs.closed)
    await until(lambda: batches.looked > 1)
    await cancel_and_wait(task)
    done = theirs.closed["batch_1"]
    assert done.status == "cancelled"
    assert not batches.closed
    content = await batches.content(done.error_file)
    assert content is not None
    assert [json.loads(line)["custom_id"] for line in content.splitlines()] == [f"r{i}" for i in range(LINES)]
    left = {key.decode().rpartition("batches:")[2] for key in outside_store.client.keys("*batches:*:batch_1")}
    assert left == {"batch:batch_1"}, "nothing is written into what has been let go"


async def test_the_lease_is_kept_over_a_step_that_takes_long(
    parts: tuple[Slow, Slow, RedisJobs], clock: FakeClock
) -> None:
    batches, _, jobs = parts
    batches.took_s = RENEW_S
    await cancelled_batch(batches, "batch_1")
    done = await over(batches, "batch_1", driver("slow", batches, jobs, clock))
    assert done.status == "cancelled"
    assert batches.written == LINES
    assert batches.leased >= LINES


async def test_a_batch_that_cannot_be_driven_keeps_no_other_one(
    parts: tuple[Slow, Slow, RedisJobs], clock: FakeClock
) -> None:
    batches, _, jobs = parts
    await cancelled_batch(batches, "batch_1")
    await cancelled_batch(batches, "batch_2")

    async def unreadable(batch: str) -> bool:
        if batch == "batch_1":
            raise StoreUnavailable("a record is unreadable")
        return True

    batches.is_cancelled = unreadable  # type: ignore[method-assign]
    done = await over(batches, "batch_2", driver("d", batches, jobs, clock))
    assert done.status == "cancelled"
