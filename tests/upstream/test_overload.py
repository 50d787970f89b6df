"""More than a backend can bear: who is served first, who is refused and how, and what is served all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aiohttp import web

from gateway.admin.explanation import parse_request
from gateway.priority import ShedReason
from gateway.upstream.concurrency_limiter import ConcurrencyLimiter
from gateway.upstream.wait_queue import BURST_HOLDS, UNKNOWN_PER_SLOT
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import BOTH_CACHES, TIERS, Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, completion, question_of
from tests.fixtures.waiting import until

LIMIT = 2
ROOM = LIMIT * UNKNOWN_PER_SLOT
RAISING = BOTH_CACHES.replace("{backend: main}", "{backend: main, client_priority: on}")
HARD = "Prove step by step why the algorithm terminates, and derive its complexity in detail with all constants."


def narrow(upstream: Upstream, **options: Any) -> dict[str, Any]:
    return {"adapter": "openai", "url": upstream.url, "max_concurrency": LIMIT, **options}


def ask(served: Served, question: str, headers: Mapping[str, str] | None = None) -> asyncio.Task[Answer]:
    return asyncio.create_task(served.chat(question, headers=headers))


async def queued(served: Served, count: int, backend: str = "main") -> None:
    await until(lambda: served.gateway.parts.pools[backend].occupancy.queued == count)


async def filled(
    served: Served, upstream: Upstream, waiting: int = 0, backend: str = "main"
) -> list[asyncio.Task[Answer]]:
    """All places are taken, and so many wait."""
    upstream.gate.clear()
    tasks = [ask(served, f"held {number}") for number in range(LIMIT)]
    await until(lambda: served.gateway.parts.pools[backend].occupancy.inflight == LIMIT)
    for number in range(waiting):
        tasks.append(ask(served, f"waiting {number}"))
        await queued(served, number + 1, backend)
    return tasks


def one_at_a_time(upstream: Upstream) -> asyncio.Semaphore:
    """Each `release` lets the upstream answer one call; `upstream.calls` says in which order they came."""
    turns = asyncio.Semaphore(0)

    async def answer(request: Any, call: dict[str, Any]) -> Any:
        await turns.acquire()
        return web.json_response(completion(call, "done"))

    upstream.answer = answer
    return turns


async def order_of(served: Served, upstream: Upstream, asked: list[tuple[str, Mapping[str, str]]]) -> list[str]:
    """The questions in the order in which the backend got them, all having waited for a place."""
    turns = one_at_a_time(upstream)
    tasks = [ask(served, f"held {number}") for number in range(LIMIT)]
    await until(lambda: len(upstream.chats) == LIMIT)
    for number, (question, headers) in enumerate(asked):
        tasks.append(ask(served, question, headers))
        await queued(served, number + 1)
    for number in range(len(asked)):
        turns.release()
        await until(lambda number=number: len(upstream.chats) == LIMIT + number + 1)
    for _ in range(LIMIT):
        turns.release()
    assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
    return [question_of(call.json) for call in upstream.chats[LIMIT:]]


async def test_places_go_by_priority_then_by_deadline_then_by_arrival(upstream: Upstream, tmp_path: Path) -> None:
    clock = FakeClock()  # that stands: who came before has no earlier deadline for that
    async with gateway_of(config_of(tmp_path, {"main": narrow(upstream)}), RAISING, clock=clock) as served:
        order = await order_of(
            served,
            upstream,
            [
                ("low", {"x-priority": "low"}),
                ("first", {}),
                ("second", {}),
                ("urgent", {"x-latency-budget-ms": "59000"}),
                ("high", {"x-priority": "high"}),
            ],
        )
        assert order == ["high", "urgent", "first", "second", "low"]


async def test_a_tenant_with_its_share_of_the_places_comes_after_all_others(upstream: Upstream, tmp_path: Path) -> None:
    one, other = {"authorization": "Bearer one"}, {"authorization": "Bearer other"}
    async with gateway_of(config_of(tmp_path, {"main": narrow(upstream)}), RAISING) as served:
        asked = [("high", {**one, "x-priority": "high"}), ("usual", one), ("late", other | {"x-priority": "low"})]
        turns = one_at_a_time(upstream)
        tasks = [asyncio.create_task(served.chat(f"held {n}", headers=one)) for n in range(LIMIT)]
        await until(lambda: len(upstream.chats) == LIMIT)
        for number, (question, headers) in enumerate(asked):
            tasks.append(ask(served, question, headers))
            await queued(served, number + 1)
        turns.release()
        await until(lambda: len(upstream.chats) == LIMIT + 1)
        for _ in tasks:
            turns.release()
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
        assert [question_of(call.json) for call in upstream.chats[LIMIT:]] == ["late", "high", "usual"]


async def test_a_share_of_all_places_is_no_bound(upstream: Upstream, tmp_path: Path) -> None:
    one, other = {"authorization": "Bearer one"}, {"authorization": "Bearer other"}
    backend = narrow(upstream, tenant_share="100%")
    async with gateway_of(config_of(tmp_path, {"main": backend}), BOTH_CACHES) as served:
        assert await order_of(served, upstream, [("first", one), ("second", other)]) == ["first", "second"]


async def test_a_client_may_step_back_and_not_ahead(upstream: Upstream, tmp_path: Path) -> None:
    """Unless its route's policy says `client_priority: on`."""
    async with gateway_of(config_of(tmp_path, {"main": narrow(upstream)}), BOTH_CACHES) as served:
        asked = [("low", {"x-priority": "low"}), ("usual", {}), ("high", {"x-priority": "high"})]
        assert await order_of(served, upstream, asked) == ["usual", "high", "low"]


async def test_a_priority_that_is_none_is_refused(served: Served) -> None:
    answer = await served.chat("hi", headers={"x-priority": "urgent"})
    assert answer.status == 400
    assert "x-priority" in answer.json["error"]["message"]


async def test_a_full_queue_refuses_at_once_with_retry_after_and_hits_go_on(upstream: Upstream, tmp_path: Path) -> None:
    clock = FakeClock()  # that stands: however long the filling takes on this machine, it is a burst
    async with gateway_of(config_of(tmp_path, {"main": narrow(upstream)}), BOTH_CACHES, clock=clock) as served:
        upstream.gate.clear()
        known = ask(served, "known")
        await until(lambda: len(upstream.chats) == 1)
        clock.advance(1.0)  # so long an answer takes
        upstream.gate.set()
        await known
        tasks = await filled(served, upstream, waiting=LIMIT * int(BURST_HOLDS))
        refused = await served.chat("one too many")
        assert refused.status == 503
        assert int(refused.headers["Retry-After"]) >= 1
        assert refused.json["error"]["type"] == "overloaded_error"
        said = refused.json["error"]["message"]
        assert f"the wait queue is full: {len(tasks) - LIMIT} requests wait" in said
        assert "see max_concurrency and adaptive" in said
        assert (await served.chat("known")).cache_status.startswith("nearhit; hit")
        shed = served.gateway.parts.telemetry.shed.values
        assert shed == {(ShedReason.QUEUE_FULL,): 1.0}
        upstream.gate.set()
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}


async def test_a_higher_class_takes_the_room_of_a_lower_one(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, {"main": narrow(upstream)}), RAISING) as served:
        tasks = await filled(served, upstream, waiting=ROOM)
        high = ask(served, "important", {"x-priority": "high"})
        await until(lambda: sum(task.done() for task in tasks) == 1)
        assert tasks[-1].result().status == 503, "who came last"
        upstream.gate.set()
        assert (await high).status == 200
        assert [task.result().status for task in tasks if not await asyncio.wait([task])] == []
        assert served.gateway.parts.telemetry.shed.values == {(ShedReason.DISPLACED,): 1.0}


async def test_a_tenant_that_fills_the_queue_makes_room_for_another(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, {"main": narrow(upstream)}), BOTH_CACHES) as served:
        tasks = await filled(served, upstream, waiting=ROOM)
        other = ask(served, "hello", {"authorization": "Bearer other"})
        await until(lambda: sum(task.done() for task in tasks) == 1)
        greedy = await served.chat("still more")
        assert greedy.status == 429
        assert greedy.json["error"]["type"] == "rate_limit_error"
        assert "Retry-After" in greedy.headers
        upstream.gate.set()
        assert (await other).status == 200
        await asyncio.gather(*tasks)


async def test_who_cannot_have_a_place_before_its_deadline_is_refused_at_once(
    upstream: Upstream, tmp_path: Path
) -> None:
    clock = FakeClock()
    async with gateway_of(config_of(tmp_path, {"main": narrow(upstream)}), BOTH_CACHES, clock=clock) as served:
        upstream.gate.clear()
        slow = ask(served, "slow")
        await until(lambda: len(upstream.chats) == 1)
        clock.advance(10.0)  # so long an answer takes
        upstream.gate.set()
        await slow
        tasks = await filled(served, upstream)
        refused = await served.chat("hurry", headers={"x-slo-ttft-ms": "3000"})
        assert refused.status == 503
        assert int(refused.headers["Retry-After"]) == 5, "two places, ten seconds each"
        assert served.gateway.parts.telemetry.shed.values == {(ShedReason.DEADLINE,): 1.0}
        upstream.gate.set()
        await asyncio.gather(*tasks)


async def test_light_answers_where_large_has_no_room(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    backends = {"light": {"adapter": "openai", "url": light.url}, "large": narrow(large)}
    policy = TIERS.replace("escalate_above: 0.5", "escalate_above: 0.0")
    async with gateway_of(config_of(tmp_path, backends), policy) as served:
        tasks = await filled(served, large, waiting=ROOM, backend="large")
        answer = await served.chat(HARD)
        assert answer.status == 200
        assert answer.headers["x-nearhit-backend"] == "light"
        assert served.gateway.parts.telemetry.routed.values["default", "light", "overloaded"] == 1.0
        large.gate.set()
        await asyncio.gather(*tasks)


async def test_with_both_tiers_full_the_client_is_told_when_to_come_back(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    backends = {"light": narrow(light), "large": narrow(large)}
    policy = TIERS.replace("escalate_above: 0.5", "escalate_above: 0.0")
    async with gateway_of(config_of(tmp_path, backends), policy) as served:
        light.gate.clear()
        large.gate.clear()
        tasks = [ask(served, f"held {number}") for number in range(2 * (LIMIT + ROOM))]
        pools = served.gateway.parts.pools
        await until(lambda: pools["light"].occupancy.queued == pools["large"].occupancy.queued == ROOM)
        refused = await served.chat("one too many")
        assert refused.status == 503 and "Retry-After" in refused.headers
        light.gate.set()
        large.gate.set()
        assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}


async def test_limit_and_queue_are_in_the_metrics(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_of(tmp_path, {"main": narrow(upstream)}), BOTH_CACHES) as served:
        tasks = await filled(served, upstream, waiting=3)
        async with served.session.get(served.admin_url + "/metrics") as response:
            lines = (await response.text()).splitlines()
        assert f'nearhit_backend_limit{{backend="main"}} {LIMIT:.1f}' in lines
        assert 'nearhit_backend_queued{backend="main"} 3.0' in lines
        upstream.gate.set()
        await asyncio.gather(*tasks)


async def test_a_backend_that_says_it_is_overloaded_is_sent_less(upstream: Upstream, tmp_path: Path) -> None:
    async def refuse(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "busy"}}, status=503)

    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url, "max_concurrency": 64}})
    async with gateway_of(config, BOTH_CACHES) as served:
        pool = served.gateway.parts.pools["main"]
        before = pool.occupancy.limit
        upstream.answer = refuse
        await served.chat("hi")
        assert pool.occupancy.limit < before


async def test_adaptive_off_sends_as_many_as_the_configuration_says(upstream: Upstream, tmp_path: Path) -> None:
    backend = {"adapter": "openai", "url": upstream.url, "max_concurrency": 64, "adaptive": "off"}
    async with gateway_of(config_of(tmp_path, {"main": backend}), BOTH_CACHES) as served:
        assert served.gateway.parts.pools["main"].occupancy.limit == 64


async def test_a_queue_of_fast_answers_refuses_nobody_within_the_configured_concurrency() -> None:
    """The limit starts below it, and with so many clients the queue never gets empty."""
    clock = FakeClock()
    gate = ConcurrencyLimiter("main", 64, 60.0, clock, adaptive=True)
    request, _ = parse_request({"model": "m", "messages": [{"role": "user", "content": "hi"}]}, clock, "the test")

    async def client() -> None:
        for _ in range(20):
            place = await gate.acquire(request)
            clock.advance(0.001 / 16)
            await asyncio.sleep(0)
            place.release()

    await asyncio.gather(*(client() for _ in range(60)))
    assert (gate.occupancy.inflight, gate.occupancy.queued) == (0, 0)
