"""The data port: its health, the headers that explain an answer, and how it starts and stops."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from bench.process import children
from gateway.errors import StartupError
from gateway.messages import Provenance
from gateway.observability.response_headers import cache_status
from gateway.outcomes import Bypass, Verdict
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import BOTH_CACHES, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, stream
from tests.fixtures.waiting import until
from tests.fixtures.wire import Incomplete, connected

CHAT = "/v1/chat/completions"
HIDDEN = BOTH_CACHES.replace("    match: {}", "    match: {}\n    expose_headers: off")
OFF = BOTH_CACHES.replace("{exact: {ttl: 1h}, semantic: {ttl: 1h, max_wrong_hits: 1%}}", "{exact: off, semantic: off}")
NEAR_ENOUGH = BOTH_CACHES.replace("max_wrong_hits: 1%", "min_similarity: 0.5")
# RFC 9211 section 2: this cache's name, then parameters.
CACHE_STATUS = re.compile(r"nearhit(; (hit|stored|collapsed|fwd=(miss|bypass)|ttl=-?\d+|detail=[a-z_-]+))+")
# The Server-Timing grammar of W3C, as far as it is used: metrics with a duration in milliseconds.
SERVER_TIMING = re.compile(r"[a-z_]+;dur=\d+( *, *[a-z_]+;dur=\d+)*")
OURS = ("Cache-Status", "Age", "Server-Timing", "x-nearhit-route", "x-nearhit-backend", "x-nearhit-similarity")


def config(tmp_path: Path, upstream: Upstream, **server: Any) -> Any:
    return config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, server=server)


@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_it_says_that_it_lives_and_is_ready(served: Served, upstream: Upstream, method: str) -> None:
    for path in ("/healthz", "/readyz"):
        async with served.session.request(method, served.url + path) as response:
            assert response.status == 200
    assert upstream.calls == []


async def test_readiness_says_what_it_looked_at(served: Served) -> None:
    answer = await served.get("/readyz")
    assert answer.json["ready"] is True
    assert answer.json["store_breaker"] == "closed"
    assert answer.json["policy"] == served.gateway.policy.hash


async def test_readiness_does_not_hang_on_a_backend_that_does(served: Served, upstream: Upstream) -> None:
    upstream.gate.clear()
    async with asyncio.timeout(120):
        assert (await served.get("/readyz")).status == 200


@pytest.mark.parametrize(
    ("provenance", "expected"),
    [
        (Provenance(Verdict.EXACT, ttl_s=86390.7), "nearhit; hit; detail=exact; ttl=86390"),
        (Provenance(Verdict.SEMANTIC, ttl_s=9.0), "nearhit; hit; detail=semantic"),
        (Provenance(Verdict.STALE, ttl_s=-5.0), "nearhit; hit; detail=stale"),
        (Provenance(Verdict.MISS, stored=True), "nearhit; fwd=miss; stored"),
        (Provenance(Verdict.MISS), "nearhit; fwd=miss"),
        (Provenance(Verdict.COALESCED), "nearhit; fwd=miss; collapsed"),
        (Provenance(Verdict.BYPASS, reason=Bypass.NO_STORE), "nearhit; fwd=bypass; detail=no-store"),
        (Provenance(Verdict.MISS, reason="not_cached", forwarded=False), "nearhit; detail=not_cached"),
    ],
)
def test_cache_status_says_what_the_contract_says(provenance: Provenance, expected: str) -> None:
    assert cache_status(provenance) == expected
    assert CACHE_STATUS.fullmatch(expected)


async def test_a_miss_and_a_hit_explain_themselves(upstream: Upstream, tmp_path: Path) -> None:
    clock = FakeClock()
    async with gateway_of(config(tmp_path, upstream), clock=clock) as served:
        miss = await served.chat("hi")
        clock.advance(5.5)
        hit = await served.chat("hi")
    assert miss.cache_status == "nearhit; fwd=miss; stored"
    assert miss.headers["x-nearhit-backend"] == "main"
    assert "Age" not in miss.headers
    assert hit.cache_status == "nearhit; hit; detail=exact; ttl=3594"
    assert hit.headers["Age"] == "5"
    assert "x-nearhit-backend" not in hit.headers
    for answer in (miss, hit):
        assert answer.headers["x-nearhit-route"] == "default"
        assert SERVER_TIMING.fullmatch(answer.headers["Server-Timing"]), answer.headers["Server-Timing"]
    assert {"exact", "embed", "search", "upstream"} <= set(re.findall(r"([a-z]+);", miss.headers["Server-Timing"]))


async def test_what_was_refused_here_is_not_said_to_be_forwarded(upstream: Upstream, tmp_path: Path) -> None:
    """RFC 9211 section 2.2: `fwd` says that the request went forward."""
    async with gateway_of(config(tmp_path, upstream, max_body="1KiB", max_inflight=1)) as served:
        refused = {
            400: await served.post(CHAT, b"{}"),
            413: await served.chat("x" * 2000),
            504: await served.chat("hi", headers={"Cache-Control": "only-if-cached"}),
        }
        upstream.gate.clear()
        held = asyncio.create_task(served.chat("held"))
        await until(lambda: len(upstream.calls) == 1)
        refused[503] = await served.chat("one too many")
        upstream.gate.set()
        assert (await held).cache_status == "nearhit; fwd=miss; stored"
    assert {status: (answer.status, answer.cache_status) for status, answer in refused.items()} == {
        400: (400, "nearhit; detail=invalid_request_error"),
        413: (413, "nearhit; detail=request_too_large"),
        503: (503, "nearhit; detail=overloaded_error"),
        504: (504, "nearhit; detail=not_cached"),
    }


async def test_what_a_backend_was_tried_for_is_said_to_be_forwarded(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))  # and does not listen
        backend = {"adapter": "openai", "url": f"http://127.0.0.1:{nobody.getsockname()[1]}/v1"}
        async with gateway_of(config_of(tmp_path, {"main": backend})) as served:
            answer = await served.chat("hi")
    assert (answer.status, answer.cache_status) == (502, "nearhit; fwd=miss")


async def test_every_kind_of_bypass_is_named(served: Served) -> None:
    no_store = await served.chat("hi", headers={"Cache-Control": "no-store"})
    assert no_store.cache_status == "nearhit; fwd=bypass; detail=no-store"
    no_cache = await served.chat("hi", headers={"Cache-Control": "no-cache"})
    assert no_cache.cache_status == "nearhit; fwd=bypass; detail=no-cache; stored"
    assert (await served.get("/v1/files")).cache_status == "nearhit; fwd=bypass; detail=pass-through"


async def test_a_route_without_caches_says_so(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, upstream), OFF) as served:
        assert (await served.chat("hi")).cache_status == "nearhit; fwd=bypass; detail=policy"


async def test_a_semantic_hit_names_its_similarity(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, upstream), NEAR_ENOUGH) as served:
        await served.chat("how long is an answer kept in the cache by default")
        near = await served.chat("how long is an answer kept in the cache by default?")
    assert near.cache_status == "nearhit; hit; detail=semantic"
    assert re.fullmatch(r"[01]\.\d{4}", near.headers["x-nearhit-similarity"])
    assert "Age" in near.headers


async def test_tiers_say_how_difficult_the_question_was(tiered: Served) -> None:
    assert re.fullmatch(r"[01]\.\d\d", (await tiered.chat("hi")).headers["x-nearhit-complexity"])


async def test_a_policy_can_hide_what_the_gateway_did(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config(tmp_path, upstream), HIDDEN) as served:
        for answer in [await served.chat("hi") for _ in range(3)] + [await served.chat("hi", stream=True)]:
            assert not [name for name in OURS if name in answer.headers]
            assert answer.headers["x-request-id"]
        assert len(upstream.chats) == 1


@pytest.mark.parametrize("given", ["abc", "a" * 128, "req_1.2:3-4", "00-4bf92f3577b34da6a3ce929d0e0e4736"])
async def test_a_sane_request_id_is_echoed(served: Served, given: str) -> None:
    for _ in range(3):  # a miss, and hits on both paths
        assert (await served.chat("hi", headers={"x-request-id": given})).headers["x-request-id"] == given


@pytest.mark.parametrize("given", ["", "a" * 129, "a b", 'a"b', "a;b", "{}", "\u00e4", "a\tb"])
async def test_any_other_request_id_is_replaced(served: Served, given: str) -> None:
    ids = {(await served.chat("hi", headers={"x-request-id": given})).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
    assert all(re.fullmatch(r"[0-9a-f]{24}", new) for new in ids)


@pytest.fixture
async def stoppable(upstream: Upstream, tmp_path: Path) -> AsyncIterator[tuple[Served, AsyncExitStack]]:
    """A gateway to be stopped by the test: a stream may take a minute to end."""
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(gateway_of(config(tmp_path, upstream, drain_timeout="60s")))
        yield served, stack


def streamed_request() -> bytes:
    ask = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    body = json.dumps(ask).encode()
    return b"POST %s HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%s" % (CHAT.encode(), len(body), body)


def held(upstream: Upstream, go_on: asyncio.Event) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, "one two three", between=go_on.wait)

    upstream.answer = answer


async def test_a_stream_in_flight_ends_before_the_gateway_does(
    stoppable: tuple[Served, AsyncExitStack], upstream: Upstream
) -> None:
    served, stack = stoppable
    go_on = asyncio.Event()
    held(upstream, go_on)
    async with connected(served.url) as wire, connected(served.url) as idle:
        await wire.send(streamed_request())
        pieces = wire.chunks(await wire.head())
        await anext(pieces)
        stopping = asyncio.create_task(stack.aclose())
        assert await idle.rest() == b""  # who asks nothing holds nothing up
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*served.gateway.data_address)
        assert not stopping.done()
        go_on.set()
        assert b"".join([piece async for piece in pieces]).endswith(b"data: [DONE]\n\n")
        async with asyncio.timeout(30):  # before the drain is over: there is nothing left to wait for
            await stopping


async def test_connections_that_wait_in_the_kernel_are_answered_before_the_port_closes(
    stoppable: tuple[Served, AsyncExitStack],
) -> None:
    """The kernel has completed them, and the loop has not accepted them yet."""
    served, stack = stoppable
    with ExitStack() as clients:
        sockets = [clients.enter_context(socket.create_connection(served.gateway.data_address)) for _ in range(9)]
        for each in sockets:
            each.sendall(b"GET /healthz HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n")
        await stack.aclose()
        for each in sockets:
            each.settimeout(30)
            assert each.recv(12) == b"HTTP/1.1 200"


async def test_a_stream_that_does_not_end_is_cut_when_the_drain_is_over(upstream: Upstream, tmp_path: Path) -> None:
    held(upstream, asyncio.Event())
    async with AsyncExitStack() as stack:
        served = await stack.enter_async_context(gateway_of(config(tmp_path, upstream, drain_timeout="200ms")))
        async with connected(served.url) as wire:
            await wire.send(streamed_request())
            pieces = wire.chunks(await wire.head())
            await anext(pieces)
            async with asyncio.timeout(120):
                await stack.aclose()
            with pytest.raises(Incomplete):
                async for _ in pieces:
                    pass
    async with asyncio.timeout(120):
        await upstream.left.wait()


@pytest.mark.parametrize(("key", "named"), [("listen", "server.listen"), ("admin", "server.admin")])
async def test_a_taken_port_is_one_sentence_and_leaves_nothing_running(
    upstream: Upstream, tmp_path: Path, key: str, named: str
) -> None:
    before = children(os.getpid())
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(StartupError) as caught:
            async with gateway_of(config(tmp_path, upstream, **{key: address})):
                pass
    assert str(caught.value) == f"cannot listen on {address} ({named}): the port is taken"
    assert children(os.getpid()) == before
    async with gateway_of(config(tmp_path, upstream)) as served:  # nor is anything locked
        assert (await served.chat("hi")).status == 200
