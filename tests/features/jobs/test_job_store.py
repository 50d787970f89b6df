"""Claims on jobs in a real Valkey: fairness, priorities, fencing, visibility, what is left behind."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

import pytest

from gateway.adapters.redis.client import connect
from gateway.adapters.redis.keyspace import ONE_SERVER
from gateway.adapters.redis.store import RedisStore
from gateway.features.jobs.redis_jobs import RedisJobs
from gateway.features.jobs.store import (
    Admittance,
    Bounds,
    ClaimedJob,
    Conclusion,
    Job,
    JobResult,
    JobStatus,
    LeaseState,
)
from gateway.priority import Priority
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import PATIENT_S
from tests.fixtures.stores import OutsideServer

BOUNDS = Bounds(1000, 1000, 2**26, 60.0)
DONE = Conclusion(JobStatus.COMPLETED, JobResult(200, (("Content-Type", "text/plain"),), b"ok"), "", 60.0)


@pytest.fixture
async def jobs(outside_store: OutsideServer) -> AsyncIterator[RedisJobs]:
    client = connect(outside_store.url, PATIENT_S)
    yield RedisJobs(RedisStore(client, embedder="e", timeout_s=10.0, clock=FakeClock()), client)
    await client.aclose()


def job(name: str, tenant: str = "t", priority: Priority = Priority.NORMAL, webhook: str = "") -> Job:
    return Job(name, tenant, "POST", "/v1/x", "", (("A", "b"),), b"body", b"", priority, webhook)


async def offer(jobs: RedisJobs, *offered: Job, bounds: Bounds = BOUNDS) -> None:
    for one in offered:
        assert await jobs.accept(one, bounds, "", "") == (Admittance.ACCEPTED, one.id)


async def claim(jobs: RedisJobs, most: int = 1, worker: str = "w", visibility_s: float = 30.0) -> list[ClaimedJob]:
    return await jobs.claim(worker, most, visibility_s=visibility_s, attempts=3, dead_s=60.0)


async def nothing_is_left(jobs: RedisJobs, server: OutsideServer) -> None:
    counts = await jobs.counts()
    assert (counts.queued, counts.running, counts.bytes) == (0, 0, 0)
    names = {
        name.decode().removeprefix(ONE_SERVER.key("jobs:")) for name in server.client.keys(ONE_SERVER.key("jobs:*"))
    }
    assert not {name for name in names if name.startswith(("line", "ring", "delayed", "active", "tenants"))}


async def test_tenants_take_turns_however_much_one_of_them_has(jobs: RedisJobs) -> None:
    await offer(jobs, *(job(f"a{i}", "a") for i in range(100)), *(job(f"b{i}", "b") for i in range(10)))
    await offer(jobs, *(job(f"c{i}", "c") for i in range(3)))
    first = [one.job.tenant for one in await claim(jobs, 23)]
    assert Counter(first[:9]) == {"a": 3, "b": 3, "c": 3}
    assert Counter(first) == {"a": 10, "b": 10, "c": 3}


async def test_within_a_tenant_who_came_first_goes_first(jobs: RedisJobs) -> None:
    await offer(jobs, *(job(f"a{i}", "a") for i in range(5)))
    assert [one.job.id for one in await claim(jobs, 5)] == [f"a{i}" for i in range(5)]


async def test_higher_priorities_go_first_and_none_is_starved(jobs: RedisJobs) -> None:
    await offer(jobs, *(job(f"h{i}", "a", Priority.HIGH) for i in range(40)), job("l", "b", Priority.LOW))
    order = [one.job.id for one in await claim(jobs, 41)]
    assert order[0] == "h0"
    assert order.index("l") == 7


async def test_a_job_is_given_once(jobs: RedisJobs, outside_store: OutsideServer) -> None:
    await offer(jobs, job("one"))
    (claimed,) = await claim(jobs)
    assert (claimed.job, claimed.attempt) == (job("one"), 1)
    assert await claim(jobs, worker="other") == []
    assert await jobs.conclude("one", claimed.token, DONE)
    job_state = await jobs.job_state("one")
    assert job_state is not None
    assert (job_state.status, job_state.result, job_state.attempts) == (JobStatus.COMPLETED, DONE.result, 1)
    await nothing_is_left(jobs, outside_store)


async def test_the_length_of_a_stream_is_the_jobs_of_its_priority_that_run(
    jobs: RedisJobs, outside_store: OutsideServer
) -> None:
    """By which KEDA scales (deploy/helm); of one that does not exist yet it is 0, and not an error."""

    def running() -> list[int]:
        return [
            outside_store.client.xlen(ONE_SERVER.key(f"jobs:stream:{priority.value}")) for priority in sorted(Priority)
        ]

    assert running() == [0, 0, 0]
    await offer(jobs, job("a"), job("b"), job("c", priority=Priority.HIGH), job("d", priority=Priority.LOW))
    assert running() == [0, 0, 0]  # who waits is in a line
    claimed = await claim(jobs, 3)
    assert running() == [1, 2, 0]
    for one in claimed:
        assert await jobs.conclude(one.job.id, one.token, DONE)
    assert running() == [0, 0, 0]


async def test_who_was_not_heard_of_has_lost_his_job_and_is_not_heard_any_more(jobs: RedisJobs) -> None:
    await offer(jobs, job("one"))
    (first,) = await claim(jobs)
    assert await claim(jobs, worker="other", visibility_s=30.0) == []
    (second,) = await claim(jobs, worker="other", visibility_s=0.0)
    assert (second.attempt, second.token > first.token) == (2, True)
    assert await jobs.beat("w", [("one", first.token)]) == [LeaseState.LOST]
    assert not await jobs.conclude("one", first.token, DONE)
    assert not await jobs.requeue("one", first.token, 0.0, counted=True, error="")
    assert await jobs.beat("other", [("one", second.token)]) == [LeaseState.HELD]
    assert await jobs.conclude("one", second.token, DONE)


async def test_one_that_is_begun_too_often_is_dead(jobs: RedisJobs, outside_store: OutsideServer) -> None:
    await offer(jobs, job("one"))
    for _ in range(3):
        assert len(await claim(jobs, visibility_s=0.0)) == 1
    assert await claim(jobs, visibility_s=0.0) == []
    (dead,) = await jobs.listed("dead", 10)
    assert (dead.status, dead.dead, dead.attempts) == (JobStatus.FAILED, True, 3)
    await nothing_is_left(jobs, outside_store)
    assert await jobs.retry("one")
    assert not await jobs.retry("one")
    (again,) = await claim(jobs)
    assert (again.job, again.attempt) == (job("one"), 1)


async def test_a_dead_one_can_be_dropped(jobs: RedisJobs) -> None:
    await offer(jobs, job("one"))
    (claimed,) = await claim(jobs)
    assert await jobs.conclude("one", claimed.token, Conclusion(JobStatus.FAILED, None, "why", 60.0, dead=True))
    assert await jobs.drop("one")
    assert await jobs.job_state("one") is None


async def test_what_is_put_back_comes_again_after_its_delay(jobs: RedisJobs) -> None:
    await offer(jobs, job("one"))
    (claimed,) = await claim(jobs)
    assert await jobs.requeue("one", claimed.token, 3600.0, counted=False, error="later")
    assert await claim(jobs) == []
    assert (await jobs.counts()).queued == 1
    cancelled = await jobs.cancel("one", "t", 60.0)
    assert cancelled is not None
    assert cancelled.status is JobStatus.CANCELLED


async def test_that_was_no_attempt(jobs: RedisJobs) -> None:
    await offer(jobs, job("one"))
    for _ in range(5):
        (claimed,) = await claim(jobs)
        assert claimed.attempt == 1
        assert await jobs.requeue("one", claimed.token, 0.0, counted=False, error="later")


async def test_cancelling_leaves_nothing_behind(jobs: RedisJobs, outside_store: OutsideServer) -> None:
    await offer(jobs, job("a"), job("b"), job("c"))
    (claimed,) = await claim(jobs)
    for name in ("a", "b", "c"):
        assert await jobs.cancel(name, "somebody else", 60.0) is None
        cancelled = await jobs.cancel(name, "t", 60.0)
        assert cancelled is not None
        assert cancelled.status is JobStatus.CANCELLED
    assert not await jobs.conclude("a", claimed.token, DONE)
    assert await claim(jobs) == []
    await nothing_is_left(jobs, outside_store)


async def test_the_bounds_hold(jobs: RedisJobs) -> None:
    small = Bounds(3, 2, 2**26, 60.0)
    said = [(await jobs.accept(job(f"j{i}", "a" if i < 3 else f"t{i}"), small, "", ""))[0] for i in range(5)]
    assert said == ["accepted", "accepted", "tenant-full", "accepted", "full"]
    assert (await jobs.accept(job("z"), Bounds(100, 100, 1, 60.0), "", ""))[0] is Admittance.FULL


async def test_an_idempotency_key_is_its_tenants_own(jobs: RedisJobs) -> None:
    assert await jobs.accept(job("a"), BOUNDS, "key", "d1") == (Admittance.ACCEPTED, "a")
    assert await jobs.accept(job("b"), BOUNDS, "key", "d1") == (Admittance.KNOWN, "a")
    assert await jobs.accept(job("b"), BOUNDS, "key", "d2") == (Admittance.CONFLICT, "a")
    assert await jobs.accept(job("b", "other"), BOUNDS, "key", "d2") == (Admittance.ACCEPTED, "b")


async def test_finished_jobs_expire_and_are_swept_from_the_lists(jobs: RedisJobs, outside_store: OutsideServer) -> None:
    await offer(jobs, job("one"))
    (claimed,) = await claim(jobs)
    assert await jobs.conclude("one", claimed.token, DONE)
    assert 0 < outside_store.client.pttl(ONE_SERVER.key("jobs:") + "job:one") <= 60_000
    assert outside_store.client.hget(ONE_SERVER.key("jobs:") + "job:one", "record") is None
    outside_store.client.zadd(ONE_SERVER.key("jobs:") + "finished", {"one": 1})
    await jobs.sweep("w")
    assert outside_store.client.zcard(ONE_SERVER.key("jobs:") + "finished") == 0


async def test_a_poll_of_an_empty_queue_writes_nothing(jobs: RedisJobs, outside_store: OutsideServer) -> None:
    def offset() -> Any:
        return outside_store.client.info("persistence")["rdb_changes_since_last_save"]

    await claim(jobs)
    before = offset()
    for _ in range(5):
        assert await claim(jobs, visibility_s=1.0) == []
    assert offset() == before
