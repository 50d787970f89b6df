"""Past its time to live an answer may still do: while a new one is fetched, or where none can be had."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from aiohttp import web

from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, chunk
from tests.fixtures.waiting import until

STALE = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 100s}, stale_while_revalidate: 50s, stale_if_error: 1h}
    route: {backend: main}
"""
HIT, STALE_HIT = "nearhit; hit; detail=exact", "nearhit; hit; detail=stale"


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Served]:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, STALE, clock=clock) as gateway:
        yield gateway


def answering(text: str, status: int = 200):
    async def answer(request: web.Request, body: dict) -> web.StreamResponse:
        message = {"role": "assistant", "content": text}
        choice = {"index": 0, "message": message, "finish_reason": "stop"}
        return web.json_response({"id": "x", "object": "chat.completion", "choices": [choice]}, status=status)

    return answer


async def refreshed(served: Served) -> None:
    await until(lambda: len(served.gateway.parts.background) == 0)


async def test_a_stale_answer_is_served_at_once_and_fetched_anew_once(
    served: Served, upstream: Upstream, clock: FakeClock
) -> None:
    upstream.answer = answering("old")
    await served.chat("q")
    clock.advance(120)
    upstream.answer = answering("new")
    upstream.gate.clear()
    stale = [await served.chat("q") for _ in range(5)]  # the refresh is held back: nobody waits for it
    assert {answer.text for answer in stale} == {"old"}
    assert {answer.cache_status for answer in stale} == {STALE_HIT}
    assert stale[0].headers["Age"] == "120"
    upstream.gate.set()
    await refreshed(served)
    assert len(upstream.chats) == 2
    fresh = await served.chat("q")
    assert (fresh.text, fresh.cache_status.startswith(HIT)) == ("new", True)


@pytest.mark.parametrize("streamed", [True, False])
async def test_a_refresh_that_breaks_is_no_fault_of_ours(
    served: Served, upstream: Upstream, clock: FakeClock, caplog: pytest.LogCaptureFixture, *, streamed: bool
) -> None:
    async def breaking(request: web.Request, call: dict) -> web.StreamResponse:
        out = web.StreamResponse(headers={"Content-Type": "text/event-stream" if streamed else "application/json"})
        await out.prepare(request)
        await out.write(chunk(call, {"role": "assistant", "content": "no"}))
        assert request.transport is not None
        request.transport.abort()
        return out

    await served.chat("q", stream=streamed)
    clock.advance(120)
    upstream.answer = breaking
    assert (await served.chat("q", stream=streamed)).cache_status == STALE_HIT
    await refreshed(served)
    assert len(upstream.chats) > 1
    assert [record.levelname for record in caplog.records if record.message == "a refresh failed"] == ["WARNING"]
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def test_beyond_the_window_a_client_waits_for_the_new_answer(
    served: Served, upstream: Upstream, clock: FakeClock
) -> None:
    await served.chat("q")
    clock.advance(151)
    assert (await served.chat("q")).cache_status == "nearhit; fwd=miss; stored"
    assert len(upstream.chats) == 2


@pytest.mark.parametrize("status", [500, 502, 503, 504])
async def test_where_the_backend_fails_a_stale_answer_does(
    served: Served, upstream: Upstream, clock: FakeClock, status: int
) -> None:
    upstream.answer = answering("old")
    await served.chat("q")
    clock.advance(200)
    upstream.answer = answering("no", status)
    answer = await served.chat("q")
    assert (answer.status, answer.text, answer.cache_status) == (200, "old", STALE_HIT)


async def test_what_is_the_clients_fault_is_told_to_the_client(
    served: Served, upstream: Upstream, clock: FakeClock
) -> None:
    await served.chat("q")
    clock.advance(200)
    upstream.answer = answering("no", 400)
    assert (await served.chat("q")).status == 400


async def test_a_backend_that_is_gone_is_a_failure_too(tmp_path: Path, clock: FakeClock, upstream: Upstream) -> None:
    async def gone(request: web.Request, body: dict) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, STALE, clock=clock) as served:
        await served.chat("q")
        clock.advance(200)
        upstream.answer = gone
        assert (await served.chat("q")).cache_status == STALE_HIT
        clock.advance(3600)
        assert (await served.chat("q")).status == 502


async def test_a_client_that_limits_the_age_waits(served: Served, upstream: Upstream, clock: FakeClock) -> None:
    await served.chat("q")
    clock.advance(120)
    answer = await served.chat("q", headers={"Cache-Control": "max-age=1000"})
    assert answer.cache_status == "nearhit; fwd=miss; stored"


async def test_min_fresh_is_heeded(served: Served, upstream: Upstream, clock: FakeClock) -> None:
    await served.chat("q")
    clock.advance(60)
    assert (await served.chat("q", headers={"Cache-Control": "min-fresh=30"})).cache_status.startswith(HIT)
    clock.advance(20)
    answer = await served.chat("q", headers={"Cache-Control": "min-fresh=30"})
    assert answer.cache_status == "nearhit; fwd=miss; stored"


async def test_only_if_cached_takes_what_is_stale(served: Served, upstream: Upstream, clock: FakeClock) -> None:
    await served.chat("q")
    clock.advance(120)
    assert (await served.chat("q", headers={"Cache-Control": "only-if-cached"})).cache_status == STALE_HIT
    await refreshed(served)
    assert (await served.chat("other", headers={"Cache-Control": "only-if-cached"})).status == 504


async def test_a_refresh_in_the_air_ends_with_the_gateway(upstream: Upstream, tmp_path: Path, clock: FakeClock) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, STALE, clock=clock) as served:
        await served.chat("q")
        clock.advance(120)
        upstream.gate.clear()
        await served.chat("q")
        await until(lambda: len(upstream.chats) == 2)
    assert len(served.gateway.parts.background) == 0
    upstream.gate.set()


async def test_a_refresh_that_fails_leaves_the_stale_answer(
    served: Served, upstream: Upstream, clock: FakeClock
) -> None:
    upstream.answer = answering("old")
    await served.chat("q")
    clock.advance(120)
    upstream.answer = answering("no", 500)
    for _ in range(3):
        answer = await served.chat("q")
        await refreshed(served)
        assert (answer.text, answer.cache_status) == ("old", STALE_HIT)
    assert len(upstream.chats) == 4
