"""Who may wait for whom: what is shared by a crowd, what nobody waits for in vain, and what leases cost whom."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache import flight as flights
from gateway.cache.admission import HIT_FOR_MISS_TTL_S, HitForMiss
from gateway.features.replicas import cluster_leases as leasings
from gateway.features.replicas import store as replica_store
from gateway.features.replicas.cluster_leases import ClusterLeases
from gateway.observability.telemetry import Telemetry
from tests.fixtures.clock import FakeClock
from tests.fixtures.fakes import MemoryLeases, MemoryStore
from tests.fixtures.gateways import Answer, Served, aboard, config_of, gateway_of
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream, chunk, completion, stream
from tests.fixtures.waiting import until

TTL_S = 3.0
LONG_S = 600.0


@pytest.fixture(autouse=True)
def _leases_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those in a real store: none is to end by time here, as it would where the machine stands still."""
    monkeypatch.setattr(replica_store, "TTL_S", LONG_S)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Served]:
    async with gateway_of(config_for(upstream, tmp_path), clock=clock) as gateway:
        yield gateway


@pytest.fixture
async def shared(
    upstream: Upstream, tmp_path: Path, clock: FakeClock, outside_store: OutsideServer
) -> AsyncIterator[Served]:
    """On a store that others could share."""
    async with gateway_of(config_for(upstream, tmp_path, outside_store.url), clock=clock) as gateway:
        yield gateway


def config_for(upstream: Upstream, path: Path, url: str = "embedded", **store: Any) -> Any:
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    return config_of(path, backends, store={"url": url, "timeout": "10s", **store})


def incomplete(upstream: Upstream) -> None:
    """Makes the upstream give answers that may be passed on and not stored."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if call.get("stream"):
            return await stream(request, call, "half", finish="length")
        return web.json_response(completion(call, "half", finish="length"))

    upstream.answer = answer


def failing(upstream: Upstream, status: int) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "busy"}}, status=status)

    upstream.answer = answer


async def crowd(served: Served, size: int, **fields: Any) -> list[asyncio.Task[Answer]]:
    """So many on board of one flight."""
    tasks = [asyncio.create_task(served.chat("hi", **fields)) for _ in range(size)]
    await until(lambda: aboard(served) == size)
    return tasks


def outcomes(served: Served) -> dict[str, float]:
    return {outcome: value for (outcome,), value in served.gateway.parts.telemetry.crowds.values.items()}


# What is not held back


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_who_asks_what_cannot_be_stored_waits_for_nobody(
    served: Served, upstream: Upstream, streamed: bool
) -> None:
    incomplete(upstream)
    await served.chat("hi", stream=streamed)
    upstream.gate.clear()
    tasks = [asyncio.create_task(served.chat("hi", stream=streamed)) for _ in range(12)]
    await until(lambda: len(upstream.calls) == 13)  # all of them at once, while none has been answered
    upstream.gate.set()
    assert all(b"half" in answer.body for answer in await asyncio.gather(*tasks))
    assert outcomes(served)["not-held"] == 12


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_an_error_is_for_those_who_had_joined_and_later_ones_ask_themselves(
    served: Served, upstream: Upstream, status: int
) -> None:
    failing(upstream, status)
    upstream.gate.clear()
    tasks = await crowd(served, 50)
    upstream.gate.set()
    assert {answer.status for answer in await asyncio.gather(*tasks)} == {status}
    once = 2 if status == 503 else 1  # for all of them together: a lone upstream that is overloaded is asked once more
    assert len(upstream.calls) == once
    upstream.gate.clear()
    later = [asyncio.create_task(served.chat("hi")) for _ in range(5)]
    await until(lambda: len(upstream.calls) == once + 5)
    upstream.answer = None
    upstream.gate.set()
    assert {answer.text for answer in await asyncio.gather(*later)} == {"upstream answers: hi"}


async def test_a_complete_answer_that_may_not_be_stored_is_shared_by_those_who_had_joined(
    served: Served, upstream: Upstream
) -> None:
    incomplete(upstream)
    upstream.gate.clear()
    tasks = await crowd(served, 50)
    upstream.gate.set()
    assert {answer.text for answer in await asyncio.gather(*tasks)} == {"half"}
    assert len(upstream.calls) == 1


async def test_the_first_answer_that_can_be_stored_makes_a_crowd_of_them_again(
    served: Served, upstream: Upstream, clock: FakeClock
) -> None:
    incomplete(upstream)
    await served.chat("hi")
    upstream.answer = None
    assert (await served.chat("hi")).cache_status == "nearhit; fwd=miss; stored"
    assert (await served.chat("hi")).cache_status.startswith("nearhit; hit")
    assert len(served.gateway.parts.unstorable) == 0


async def test_after_a_moment_a_crowd_is_one_flight_again(served: Served, upstream: Upstream, clock: FakeClock) -> None:
    failing(upstream, 500)
    await served.chat("hi")
    clock.advance(HIT_FOR_MISS_TTL_S + 0.1)
    upstream.answer = None
    upstream.gate.clear()
    tasks = await crowd(served, 20)
    upstream.gate.set()
    await asyncio.gather(*tasks)
    assert len(upstream.calls) == 2


async def test_an_answer_that_grows_too_large_is_not_waited_for_to_its_end(
    upstream: Upstream, tmp_path: Path, clock: FakeClock
) -> None:
    last = asyncio.Event()

    async def pour(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for _ in range(5):
            await response.write(chunk(call, {"content": "x" * 1000}))
        await last.wait()
        await response.write(chunk(call, {}, "stop") + b"data: [DONE]\n\n")
        return response

    upstream.answer = pour
    async with gateway_of(config_for(upstream, tmp_path, max_entry="2kB"), clock=clock) as served:
        early = asyncio.create_task(served.chat("hi", stream=True))
        await until(lambda: len(served.gateway.parts.unstorable) == 1)
        late = asyncio.create_task(served.chat("hi", stream=True))
        await until(lambda: len(upstream.calls) == 2)
        last.set()
        assert (await early).body.endswith(b"data: [DONE]\n\n")
        assert (await late).cache_status == "nearhit; fwd=miss"
        admitted = served.gateway.parts.telemetry.admissions.values
        assert admitted == {("default", "too-large"): 2.0}


async def test_who_asks_alone_and_leaves_ends_its_own_call_and_no_other(served: Served, upstream: Upstream) -> None:
    incomplete(upstream)
    await served.chat("hi")
    upstream.gate.clear()
    leaves, stays = (asyncio.create_task(served.chat("hi")) for _ in range(2))
    await until(lambda: len(upstream.calls) == 3)
    leaves.cancel()
    await until(lambda: upstream.cancelled == 1)
    upstream.gate.set()
    assert (await stays).text == "half"


async def test_what_the_backend_wants_not_stored_is_not(served: Served, upstream: Upstream) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, "secret"), headers={"Cache-Control": "Private, No-Store"})

    upstream.answer = answer
    for _ in range(2):
        assert (await served.chat("hi")).cache_status == "nearhit; fwd=miss"
    assert (await served.gateway.parts.store.stats()).entries == 0


async def test_a_backend_that_gives_no_answer_at_all_is_not_stormed(served: Served, upstream: Upstream) -> None:
    """There a crowd goes on being one call: what does not answer would be asked by all of them."""

    async def drop(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    upstream.answer = drop
    assert (await served.chat("hi")).status == 502
    calls = len(upstream.calls)
    upstream.gate.clear()
    tasks = await crowd(served, 20)
    upstream.answer = None
    upstream.gate.set()
    assert {answer.status for answer in await asyncio.gather(*tasks)} == {200}
    assert len(upstream.calls) == calls + 1


@given(st.lists(st.tuples(st.integers(0, 30), st.floats(0, 8)), max_size=200))
def test_what_is_remembered_is_bounded_in_number_and_in_time(steps: list[tuple[int, float]]) -> None:
    clock = FakeClock()
    unstorable = HitForMiss(clock, ttl_s=10.0, limit=8)
    last: dict[str, float] = {}
    for name, pause in steps:
        clock.advance(pause)
        unstorable.add(str(name))
        last[str(name)] = clock.monotonic()
        assert len(unstorable) <= 8
        assert str(name) in unstorable
        for i in range(31):
            assert str(i) not in unstorable or clock.monotonic() - last[str(i)] < 10.0
    for name in list(last):
        unstorable.discard(name)
        assert name not in unstorable


# Leases


async def test_with_a_store_of_its_own_a_gateway_takes_no_leases(served: Served) -> None:
    await served.chat("hi")
    assert served.gateway.parts.fleet.leasing is None
    assert outcomes(served) == {}


async def test_a_lone_miss_on_a_shared_store_holds_a_lease_until_it_is_stored(
    shared: Served, upstream: Upstream, outside_store: OutsideServer
) -> None:
    upstream.gate.clear()
    task = asyncio.create_task(shared.chat("hi"))
    await upstream.arrived.wait()
    (lease,) = outside_store.client.keys("nearhit:1:lease:*")
    assert 0 < outside_store.client.pttl(lease) <= 1000 * LONG_S
    upstream.gate.set()
    timing = (await task).headers["Server-Timing"]
    assert "lease" not in timing, "the lookup has asked for it"
    assert "wait" not in timing
    await until(lambda: not outside_store.client.keys("nearhit:1:lease:*"))
    assert outcomes(shared) == {"led": 1.0}


async def test_what_cannot_be_stored_takes_no_lease(
    shared: Served, upstream: Upstream, outside_store: OutsideServer
) -> None:
    incomplete(upstream)
    await shared.chat("hi")
    upstream.gate.clear()
    task = asyncio.create_task(shared.chat("hi"))
    await until(lambda: len(upstream.calls) == 2)
    await until(lambda: not outside_store.client.keys("nearhit:1:lease:*"))  # the first one's is given back
    upstream.gate.set()
    await task
    assert outcomes(shared) == {"led": 1.0, "not-held": 1.0}


@pytest.mark.parametrize("directive", ["no-cache", "no-store"])
async def test_who_wants_a_fresh_answer_takes_no_lease(shared: Served, directive: str) -> None:
    assert (await shared.chat("hi", headers={"Cache-Control": directive})).status == 200
    assert outcomes(shared) == {}


async def test_a_semantic_hit_takes_no_lease(shared: Served) -> None:
    await shared.chat("how do I reset my password")
    assert "detail=semantic" in (await shared.chat("how do I reset my password?")).cache_status
    assert outcomes(shared) == {"led": 1.0}


async def test_an_answer_that_is_stale_keeps_nobody_from_calling(
    upstream: Upstream, tmp_path: Path, clock: FakeClock, outside_store: OutsideServer
) -> None:
    policy = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1m}, stale_if_error: 1h}
    route: {backend: main}
"""
    config = config_for(upstream, tmp_path, outside_store.url)
    async with gateway_of(config, policy, clock=clock) as served:
        await served.chat("hi")
        clock.advance(90)
        assert (await served.chat("hi")).cache_status == "nearhit; fwd=miss; stored"
        assert (await served.chat("hi")).cache_status.startswith("nearhit; hit; detail=exact")


async def test_without_an_exact_cache_nothing_older_is_served_instead_of_a_call(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer
) -> None:
    """What the semantic lookup has refused must not come in by the lease's door."""
    policy = """
version: 1
routes:
  - name: default
    match: {}
    cache: {semantic: {ttl: 1h, min_similarity: 0.9}}
    route: {backend: main}
"""
    async with gateway_of(config_for(upstream, tmp_path, outside_store.url), policy) as served:
        await served.chat("hi")
        hit = await served.chat("hi")
        assert "detail=semantic" in hit.cache_status
        said = {"request_id": hit.headers["x-request-id"], "verdict": "wrong"}
        assert (await served.post("/v1/feedback", said)).status == 200
        assert (await served.chat("hi")).cache_status == "nearhit; fwd=miss; stored"
        assert len(upstream.calls) == 2


async def test_a_gateway_does_not_wait_for_itself(
    shared: Served, upstream: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who comes when the beginning of a flight is gone gets a call of its own, lease or not."""
    monkeypatch.setattr(flights, "MAX_BUFFER_BYTES", 300)
    last = asyncio.Event()

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        words = iter(range(10))

        async def between() -> None:
            if next(words) == 5:
                await last.wait()

        return await stream(request, call, "one two three four five six", between=between)

    upstream.answer = answer
    asked = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}
    async with shared.session.post(f"{shared.url}/v1/chat/completions", json=asked) as early:
        seen = b""
        while b"five" not in seen:
            seen += await early.content.readany()
        (flight,) = shared.gateway.parts.flights.values()
        await until(lambda: not flight.is_joinable)
        late = asyncio.create_task(shared.chat("hi", stream=True))
        await until(lambda: len(upstream.calls) == 2)
        last.set()
        assert (await late).body.endswith(b"data: [DONE]\n\n")
        await early.content.read()
    assert json.loads(upstream.calls[1].body)["stream"] is True


async def test_a_gateway_that_stops_gives_its_leases_back(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer
) -> None:
    upstream.gate.clear()
    config = config_for(upstream, tmp_path, outside_store.url)
    config = config.model_copy(update={"server": config.server.model_copy(update={"drain_timeout": 0.0})})
    async with gateway_of(config) as served:
        task = asyncio.create_task(served.chat("hi"))
        await upstream.arrived.wait()
        assert outside_store.client.keys("nearhit:1:lease:*")
    await asyncio.gather(task, return_exceptions=True)
    assert outside_store.client.keys("nearhit:1:lease:*") == []


# The looking after leases, without sockets


@pytest.fixture
def store(clock: FakeClock) -> MemoryStore:
    return MemoryStore(clock)


@pytest.fixture
async def cluster_leases(
    store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[ClusterLeases]:
    monkeypatch.setattr(leasings, "RENEW_S", 0.001)
    monkeypatch.setattr(leasings, "POLL_S", 0.001)
    made = ClusterLeases(MemoryLeases(store, clock, ttl_s=TTL_S), Telemetry(), rng=lambda: 0.5)
    task = asyncio.create_task(made.run())
    yield made
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_lease_is_renewed_while_its_flight_is_in_the_air(
    cluster_leases: ClusterLeases, store: MemoryStore, clock: FakeClock
) -> None:
    token = (await cluster_leases.claim("a", None)).token
    for _ in range(5):
        until_then = store.leases["a"][1]
        clock.advance(TTL_S * 0.7)
        await until(lambda then=until_then: store.leases["a"][1] > then)
    assert cluster_leases.is_held("a", token)
    cluster_leases.release("a", token)
    await until(lambda: not store.leases)
    assert cluster_leases.active == 0


async def test_a_lost_lease_is_noticed_and_not_given_back_for_another(
    cluster_leases: ClusterLeases, store: MemoryStore, clock: FakeClock
) -> None:
    token = (await cluster_leases.claim("a", None)).token
    store.leases["a"] = (token + 1, clock.wall() + 60)
    await until(lambda: cluster_leases.active == 0)
    cluster_leases.release("a", token)
    cluster_leases.on_stored("a", token)
    await cluster_leases.close()
    assert store.leases["a"][0] == token + 1


async def test_who_waits_is_told_when_the_holder_ends_or_changes(
    cluster_leases: ClusterLeases, store: MemoryStore, clock: FakeClock
) -> None:
    store.leases |= {"a": (7, clock.wall() + 60), "b": (8, clock.wall() + 60)}
    ended, changed = (
        asyncio.create_task(cluster_leases.wait_released(name, holder, LONG_S)) for name, holder in (("a", 7), ("b", 8))
    )
    await until(lambda: cluster_leases.waiting == 2)
    del store.leases["a"]
    assert await ended
    assert not changed.done()
    store.leases["b"] = (9, clock.wall() + 60)
    assert await changed
    assert cluster_leases.waiting == 0


async def test_who_waits_is_told_when_the_store_cannot_be_asked(
    cluster_leases: ClusterLeases, store: MemoryStore, clock: FakeClock
) -> None:
    store.leases["a"] = (7, clock.wall() + 60)
    waiting = asyncio.create_task(cluster_leases.wait_released("a", 7, LONG_S))
    await until(lambda: cluster_leases.waiting == 1)
    store.down = True
    assert not await waiting
    store.down = False
    del store.leases["a"]
    assert await cluster_leases.wait_released("a", 7, LONG_S), "it goes on once the store is back"


async def test_waiting_is_bounded_in_time_and_number(
    cluster_leases: ClusterLeases, store: MemoryStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.leases["a"] = (7, clock.wall() + 60)
    assert not await cluster_leases.wait_released("a", 7, 0.01)
    monkeypatch.setattr(leasings, "MAX_WATCHED", 0)
    assert not await cluster_leases.wait_released("a", 7, 10)
    assert cluster_leases.waiting == 0
