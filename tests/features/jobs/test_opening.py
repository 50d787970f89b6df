"""When the feature is opened: at the first request of a job, or once the store has jobs."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.errors import StartupError
from gateway.jobs import OpenJobs
from tests.features.jobs.asking import main_of, over, submit
from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until


def opened(served: Served) -> OpenJobs | None:
    assert served.gateway.jobs is not None
    return served.gateway.jobs._open


def shows_no_jobs(served: Served) -> bool:
    return served.gateway.parts.telemetry.jobs_held.values.get(("queued",)) == 0.0


async def test_a_gateway_without_jobs_does_not_open_the_feature(served: Served) -> None:
    await until(lambda: shows_no_jobs(served))  # it has looked at the store
    await served.chat("no job")
    assert opened(served) is None


async def test_the_first_jobs_may_come_all_at_once(served: Served, upstream: Upstream) -> None:
    jobs = await asyncio.gather(*(submit(served, f"question {i}") for i in range(20)))
    done = [await over(served, job) for job in jobs]
    assert {one["status"] for one in done} == {"completed"}
    assert len(upstream.chats) == 20


async def test_the_first_requests_may_be_those_of_an_operator(served: Served) -> None:
    async def listed() -> tuple[int, list[object]]:
        async with served.session.get(served.admin_url + "/admin/jobs") as answer:
            return answer.status, (await answer.json())["jobs"]

    assert await asyncio.gather(*(listed() for _ in range(20))) == [(200, [])] * 20


async def test_a_first_client_that_leaves_does_not_hinder_the_next(served: Served) -> None:
    assert served.gateway.jobs is not None
    first = asyncio.create_task(served.gateway.jobs.open())
    await asyncio.sleep(0)
    first.cancel()
    assert (await over(served, await submit(served, "next")))["status"] == "completed"


async def test_jobs_of_a_former_process_run_without_a_request(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, main_of(upstream), jobs={"workers": 0}), NO_CACHE) as served:
        await submit(served, "left")
    async with gateway_of(config_of(tmp_path, main_of(upstream)), NO_CACHE):
        await until(lambda: len(upstream.chats) == 1)


async def test_jobs_that_another_gateway_accepts_later_run_here(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    store = {"url": outside_store.url, "timeout": "10s"}
    accepting = config_of(tmp_path / "a", main_of(upstream), store=store, jobs={"workers": 0})
    running = config_of(tmp_path / "b", main_of(upstream), store=store)
    async with gateway_of(accepting, NO_CACHE) as first, gateway_of(running, NO_CACHE) as second:
        await until(lambda: shows_no_jobs(second))
        assert (await over(first, await submit(first, "shared")))["status"] == "completed"
        assert opened(second) is not None


async def test_a_gateway_that_sends_webhooks_opens_the_feature_at_the_start(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, main_of(upstream), jobs={"webhook_secret_env": "WEBHOOKS"})
    with pytest.raises(StartupError, match=r"jobs\.webhook_secret_env"):
        async with gateway_of(config, NO_CACHE, {"WEBHOOKS": "whsec_short"}):
            pass
