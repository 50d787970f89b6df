"""What is in flight to a backend is bounded, and so is what waits for a place."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from gateway.circuit_breaker import BreakerState
from gateway.upstream.upstream import FAILURES
from gateway.upstream.wait_queue import UNKNOWN_PER_SLOT
from tests.fixtures.gateways import BOTH_CACHES, TIERS, Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

LIMIT = 2
HELD = LIMIT * (1 + UNKNOWN_PER_SLOT)  # with the backend, and waiting for a place


def narrow(upstream: Upstream, **options: Any) -> dict[str, Any]:
    return {"adapter": "openai", "url": upstream.url, "max_concurrency": LIMIT, **options}


def ask(served: Served, count: int, start: int = 0) -> list[asyncio.Task[Answer]]:
    return [asyncio.create_task(served.chat("hi", seed=start + i)) for i in range(count)]


async def test_beyond_places_and_queue_requests_are_refused_at_once(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, {"main": narrow(upstream)}), BOTH_CACHES) as served:
        upstream.gate.clear()
        tasks = ask(served, HELD + 3)
        await until(lambda: sum(task.done() for task in tasks) == 3)
        for task in [task for task in tasks if task.done()]:
            refused = task.result()
            assert refused.status == 503
            assert refused.headers["Retry-After"] == "1"
            assert "limit" in refused.json["error"]["message"]
        await until(lambda: len(upstream.calls) == LIMIT)
        assert served.gateway.parts.pools["main"].inflight == LIMIT
        upstream.gate.set()
        answers = await asyncio.gather(*tasks)
        assert sorted(answer.status for answer in answers) == [200] * HELD + [503] * 3
        assert served.gateway.parts.pools["main"].inflight == 0


async def test_who_waits_too_long_for_a_place_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": narrow(upstream, timeouts={"first_byte": "300ms"})})
    async with gateway_of(config, BOTH_CACHES) as served:
        upstream.gate.clear()
        answers = await asyncio.gather(*ask(served, LIMIT + 2))
        assert sorted(answer.status for answer in answers)[-2:] == [504, 504], "two were with the backend"
        assert all(answer.status in (503, 504) for answer in answers)
        assert served.gateway.parts.pools["main"].inflight == 0


async def test_who_leaves_while_waiting_gives_its_turn_to_the_next(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, {"main": narrow(upstream)}), BOTH_CACHES) as served:
        upstream.gate.clear()
        first = ask(served, LIMIT)
        await until(lambda: len(upstream.calls) == LIMIT)
        leaving, staying = ask(served, 3, start=10), ask(served, 1, start=20)
        await until(lambda: len(served.gateway.parts.flights) == LIMIT + 4)
        for task in leaving:
            task.cancel()
        await until(lambda: len(served.gateway.parts.flights) == LIMIT + 1)
        upstream.gate.set()
        assert {answer.status for answer in await asyncio.gather(*first, *staying)} == {200}
        assert len(upstream.calls) == LIMIT + 1, "who has left was not asked for"


async def test_a_full_light_tier_is_relieved_by_large_and_not_held_to_be_broken(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    """A limit of our own says nothing of the backend's health: its breaker must not open."""
    backends = {"light": narrow(light), "large": {"adapter": "openai", "url": large.url}}
    async with gateway_of(config_of(tmp_path, backends), TIERS) as served:
        light.gate.clear()
        held = ask(served, HELD)
        await until(lambda: served.gateway.parts.pools["light"].occupancy.queued == HELD - LIMIT)
        avoid_overloaded = await asyncio.gather(*ask(served, FAILURES + 3, start=100))
        assert {answer.headers["x-nearhit-backend"] for answer in avoid_overloaded} == {"large"}
        endpoint = served.gateway.parts.pools["light"].endpoints[0]
        assert endpoint.breaker.state(served.gateway.parts.clock.monotonic()) is BreakerState.CLOSED
        light.gate.set()
        assert {answer.headers["x-nearhit-backend"] for answer in await asyncio.gather(*held)} == {"light"}


async def test_beyond_max_inflight_the_gateway_refuses_and_hits_go_on(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, server={"max_inflight": 3})
    async with gateway_of(config, BOTH_CACHES) as served:
        await served.chat("known")
        await served.chat("known")
        upstream.gate.clear()
        tasks = ask(served, 3)
        await until(lambda: len(upstream.calls) == 4)
        refused = await served.chat("hi", seed=99)
        assert refused.status == 503
        assert refused.headers["Retry-After"] == "1"
        assert (await served.chat("known")).cache_status.startswith("nearhit; hit"), "a hit costs next to nothing"
        upstream.gate.set()
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        assert (await served.chat("hi", seed=99)).status == 200
