"""What is accepted is answered, whoever dies; and several gateways on a store share the work."""

from __future__ import annotations

import asyncio
import os
import signal
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from bench.process import children
from tests.features.jobs.asking import delete, jobs_of, main_of, over, submit
from tests.fixtures.gateways import NO_CACHE, config_of, gateway_of
from tests.fixtures.processes import served_by_process, write_config
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

VISIBILITY = "3s"  # where attempts are counted: a worker is heard of three times as often, also on a busy machine
MANY = 100  # attempts, where they are not: a worker that stands still for its visibility has lost one


async def test_a_job_whose_gateway_is_killed_is_answered_after_its_restart(upstream: Upstream, tmp_path: Path) -> None:
    config = write_config(tmp_path, main_of(upstream), NO_CACHE, jobs={"visibility": "1s", "attempts": MANY})
    upstream.gate.clear()
    async with served_by_process(config) as first:
        jobs = [await submit(first, f"question {i}") for i in range(30)]  # more than run at once
        await upstream.arrived.wait()
        await first.kill()
    upstream.gate.set()
    async with served_by_process(config) as second:
        done = [await over(second, job) for job in jobs]
    assert {one["status"] for one in done} == {"completed"}


async def test_jobs_survive_when_the_store_is_killed_with_the_gateway(upstream: Upstream, tmp_path: Path) -> None:
    jobs_config = {"visibility": "1s", "attempts": MANY, "fsync": True}
    config = write_config(tmp_path, main_of(upstream), NO_CACHE, jobs=jobs_config)
    upstream.gate.clear()
    async with served_by_process(config) as first:
        jobs = await asyncio.gather(*(submit(first, f"question {i}") for i in range(30)))
        (store,) = children(first.process.pid)
        os.kill(store, signal.SIGKILL)
        await first.kill()
    upstream.gate.set()
    async with served_by_process(config) as second:
        done = [await over(second, job) for job in jobs]
    assert {one["status"] for one in done} == {"completed"}


async def test_another_gateway_takes_over_from_one_that_is_killed(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    shared = {"store": {"url": outside_store.url, "timeout": "10s"}, "jobs": {"visibility": VISIBILITY}}
    (tmp_path / "a").mkdir()
    config = write_config(tmp_path / "a", main_of(upstream), NO_CACHE, **shared)
    other = config_of(tmp_path / "b", main_of(upstream), **shared)
    upstream.gate.clear()
    async with served_by_process(config) as first:
        job = await submit(first, "taken over")
        await upstream.arrived.wait()
        await first.kill()
    async with gateway_of(other, NO_CACHE) as second:
        await until(lambda: len(upstream.chats) == 2)
        upstream.gate.set()
        done = await over(second, job)
    assert (done["status"], done["attempts"]) == ("completed", 2)


async def test_a_job_that_kills_its_workers_is_a_dead_letter(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    """It is begun as often as `jobs.attempts` says, and no more: it does not take one gateway down after the other."""
    shared = {"store": {"url": outside_store.url, "timeout": "10s"}, "jobs": {"visibility": VISIBILITY, "attempts": 2}}
    upstream.gate.clear()
    job = ""
    for begun, folder in enumerate(("a", "b"), 1):
        (tmp_path / folder).mkdir()
        async with served_by_process(write_config(tmp_path / folder, main_of(upstream), NO_CACHE, **shared)) as gateway:
            job = job or await submit(gateway, "poison")
            await until(lambda begun=begun: len(upstream.chats) == begun)  # type: ignore[misc]
            await gateway.kill()
    async with gateway_of(config_of(tmp_path / "c", main_of(upstream), **shared), NO_CACHE) as last:
        done = await over(last, job)
        assert done["status"] == "failed"
        assert "its workers went away" in done["error"]
        assert (await jobs_of(last).counts()).dead == 1
    assert len(upstream.chats) == 2


async def test_two_gateways_share_the_work_and_nothing_is_done_twice(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    shared = {"store": {"url": outside_store.url, "timeout": "10s"}, "jobs": {"workers": 4}}
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(
                gateway_of(config_of(tmp_path / name, main_of(upstream), **shared), NO_CACHE)
            )
            for name in ("a", "b")
        ]
        upstream.gate.clear()
        jobs = [await submit(first, f"question {i}") for i in range(8)]
        await until(lambda: len(upstream.chats) == 8)  # four of each
        upstream.gate.set()
        for job in jobs:
            assert (await over(second, job))["status"] == "completed"
        counts = [one.gateway.parts.telemetry.jobs.values for one in (first, second)]
        await until(lambda: [count.get(("completed",)) for count in counts] == [4, 4])
    assert len(upstream.chats) == 8


async def test_a_job_is_cancelled_where_another_process_runs_it(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    store = {"url": outside_store.url, "timeout": "10s"}
    (tmp_path / "a").mkdir()
    config = write_config(tmp_path / "a", main_of(upstream), NO_CACHE, store=store)
    other = config_of(tmp_path / "b", main_of(upstream), store=store, jobs={"workers": 0})
    upstream.gate.clear()
    async with served_by_process(config), gateway_of(other, NO_CACHE) as asked:
        job = await submit(asked, "elsewhere")
        await upstream.arrived.wait()
        assert (await delete(asked, f"/v1/jobs/{job}")).json["status"] == "cancelled"
        async with asyncio.timeout(120):
            await upstream.left.wait()
        assert upstream.cancelled == 1


@pytest.mark.parametrize("kills", [3])
async def test_every_accepted_job_is_answered_though_gateways_are_killed_under_load(
    upstream: Upstream, tmp_path: Path, kills: int
) -> None:
    config = write_config(tmp_path, main_of(upstream), NO_CACHE, jobs={"visibility": "1s", "attempts": MANY})
    jobs: list[str] = []

    async def load(gateway: object, number: int) -> None:
        for i in range(1000):
            job = await submit(gateway, f"load {number} {i}")  # type: ignore[arg-type]
            jobs.append(job)

    for number in range(kills):
        async with served_by_process(config) as gateway:
            loads = [asyncio.create_task(load(gateway, 10 * number + i)) for i in range(4)]
            enough = len(jobs) + 40
            await until(lambda enough=enough: len(jobs) >= enough)  # type: ignore[misc]
            await gateway.kill()
            await asyncio.gather(*loads, return_exceptions=True)
    async with served_by_process(config) as gateway:
        done = [await over(gateway, job) for job in jobs]
    assert len(jobs) >= 40 * kills
    assert {one["status"] for one in done} == {"completed"}
