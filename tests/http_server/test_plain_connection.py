"""Plain requests are answered without aiohttp, and nobody can tell: byte for byte what aiohttp would have sent, in the
same order, whatever comes before and after; and what no longer holds is no longer answered."""

from __future__ import annotations

import asyncio
import json
import random
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.config.policy.load import policy_from_text
from gateway.http_server import connections as plain_connection
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import BOTH_CACHES, EXACT_CACHE, Served, config_of, fast_path, gateway_of, recovered
from tests.fixtures.upstream import Upstream, completion, stream
from tests.fixtures.waiting import until
from tests.fixtures.wire import Message, Wire, connected

LINE = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: g\r\n\r\n"
CLOSE = b"GET /healthz HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n"
# What differs between two answers to the same request, and may.
VARYING = [
    (re.compile(rb"Date: [^\r]*"), b"Date: -"),
    (re.compile(rb"request-id: [0-9a-f]{24}\r"), b"request-id: -\r"),
    (re.compile(rb"dur=\d+"), b"dur=-"),
    (re.compile(rb"ttl=\d+"), b"ttl=-"),
    (re.compile(rb"Age: \d+"), b"Age: -"),
    (re.compile(rb'"policy":"[0-9a-f]*"'), b'"policy":"-"'),
]


def ask(question: str, headers: bytes = b"", **fields: Any) -> bytes:
    body = json.dumps({"model": "m", "messages": [{"role": "user", "content": question}], **fields}).encode()
    return LINE + headers + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


HI = ask("hi")
HEAD, _, BODY = HI.partition(b"\r\n\r\n")
CHUNKED = LINE + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)


def get(path: str, headers: bytes = b"", method: bytes = b"GET") -> bytes:
    return method + b" %s HTTP/1.1\r\nHost: g\r\n%s\r\n" % (path.encode(), headers)


# Each is sent as it is on a connection of its own.
CONTRACT: dict[str, list[bytes]] = {
    "keep-alive: a miss, a hit, hits of the fast path": [HI, HI, HI, HI],
    "Connection: keep-alive": [ask("hi", b"Connection: Keep-Alive\r\n")] * 3,
    "pipelined": [HI * 5 + HEALTH + HI],
    "pipelined, misses and hits": [ask("one") + HI + ask("two") + HI + ask("one")],
    "head and body apart": [HEAD + b"\r\n\r\n", BODY, HEAD + b"\r\n\r\n", BODY],
    "a head in two parts": [HI[:20], HI[20:], HI[:20], HI[20:]],
    "a body in three parts": [HI[:-20], HI[-20:-5], HI[-5:]],
    "the end of one with the beginning of the next": [HI[:-10], HI[-10:] + HI[:30], HI[30:]],
    "streams": [ask("hi", stream=True)] * 4,
    "a stream whose usage is wanted": [ask("hi", stream=True, stream_options={"include_usage": True})] * 3,
    "a stream stored, a whole wanted": [ask("both", stream=True), ask("both"), ask("both"), ask("both")],
    "a whole stored, a stream wanted": [ask("2"), ask("2", stream=True), ask("2", stream=True), ask("2", stream=True)],
    "chunked": [HI, CHUNKED, HI, CHUNKED + HI],
    "HTTP/1.0": [HI, HI.replace(b"1.1", b"1.0")],
    "HTTP/1.0 that is kept alive": [HI.replace(b"1.1\r\n", b"1.0\r\nConnection: keep-alive\r\n")] * 3,
    "Connection: close": [HI, ask("hi", b"Connection: close\r\n")],
    "two lengths": [HI, LINE + b"Content-Length: 3\r\n" + HI.removeprefix(LINE)],
    "a length and chunked": [HI, CHUNKED.replace(b"Host: g", b"Host: g\r\nContent-Length: 3")],
    "gzip, chunked": [CHUNKED.replace(b"chunked", b"gzip, chunked")],
    "413": [LINE + b"Content-Length: 70000\r\n\r\n" + b"x" * 70000 + HI],
    "a body longer than is waited for": [ask("long " * 9000), ask("long " * 9000), HI],
    "HEAD": [get("/healthz", method=b"HEAD"), get("/v1/x", method=b"HEAD"), HEALTH],
    "HEAD with a body": [HI.replace(b"POST", b"HEAD"), HEALTH],
    "OPTIONS": [get("/v1/x", method=b"OPTIONS"), b"OPTIONS * HTTP/1.1\r\nHost: g\r\n\r\n"],
    "a preflight": [get("/v1/x", b"Origin: http://a\r\nAccess-Control-Request-Method: POST\r\n", b"OPTIONS"), HEALTH],
    "an origin": [ask("hi", b"Origin: http://a\r\n")] * 3,
    "Expect": [LINE + b"Expect: 100-continue\r\n" + HI.removeprefix(LINE)],
    "an absolute target": [HI.replace(b"POST /", b"POST http://elsewhere/"), HI],
    "a header that is none": [HI, HI.replace(b"Host: g", b"Host: g\r\nX Y: z")],
    "a header with a control character": [HI, HI.replace(b"Host: g", b"Host: g\r\nX: \x01")],
    "no host": [HI, HI.replace(b"Host: g\r\n", b"")],
    "garbage": [HI, b"garbage\r\n\r\n" + HI],
    "an encoding": [ask("hi", b"Content-Encoding: gzip\r\n"), HI],
    "gzip is taken": [ask("zip " * 500, b"Accept-Encoding: gzip\r\n")] * 3,
    "no JSON": [LINE + b"Content-Length: 1\r\n\r\n{", HI],
    "no length": [LINE + b"\r\n", HI],
    "an empty body": [LINE + b"Content-Length: 0\r\n\r\n", HI],
    "other methods": [get("/v1/files/a", method=b"DELETE"), get("/v1/files?b=c%20d"), get("/v1/%zz/%2e%2e/x")],
    "a path that passes through, with a body": [HI.replace(b"/v1/chat/completions", b"/v1/other?q=%2F")],
    "an answer without a body": [get("/v1/status/204"), get("/v1/status/304"), HEALTH],
    "an answer of unknown length": [get("/v1/pieces"), HEALTH],
    "a backend that says no": [get("/v1/status/418"), get("/v1/status/503"), HEALTH],
    "readiness": [get("/readyz"), get("/readyz", method=b"HEAD"), HEALTH],
    "ids": [ask("hi", b"x-request-id: %d\r\ntraceparent: %d\r\n" % (i, i)) for i in range(4)],
    "ids that are none": [ask("hi", b'x-request-id: "\r\n')] * 3,
    "what the client says of ages": [ask("hi", b"Cache-Control: max-age=100\r\n")] * 3,
    "a header twice": [ask("hi", b"Cache-Tag: a\r\nCache-Tag: b\r\n")] * 3,
}
# These end their connection; all others are ended by `CLOSE`, which is answered.
ENDING = {
    "HTTP/1.0",
    "Connection: close",
    "two lengths",
    "a length and chunked",
    "gzip, chunked",
    "a header that is none",
    "a header with a control character",
    "no host",
    "garbage",
}
POLICY = BOTH_CACHES.replace("max_wrong_hits: 1%", "min_similarity: 0.999")


async def odd_upstream(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    if request.path.startswith("/v1/status/"):
        return web.Response(status=int(request.path.rpartition("/")[2]), headers={"ETag": '"a"'})
    if request.path == "/v1/pieces":
        out = web.StreamResponse(headers={"X-A": "b"})
        await out.prepare(request)
        for piece in (b"one", b"two"):
            await out.write(piece)
        return out
    if not request.path.endswith("/completions"):
        return web.json_response({"method": request.method, "path": request.raw_path, "call": call})
    text = call["messages"][-1]["content"]
    return await stream(request, call, text) if call.get("stream") else web.json_response(completion(call, text))


@pytest.fixture
async def both(tmp_path: Path, upstream: Upstream) -> AsyncIterator[tuple[Served, Served]]:
    """The same gateway twice: one that answers plain requests itself, one that leaves all to aiohttp."""
    upstream.answer = odd_upstream
    server = {"max_body": "64KiB", "cors": {"origins": ["*"]}, "compress": True}
    async with AsyncExitStack() as stack:
        pair = []
        for name in ("plain", "aiohttp"):
            config = config_of(tmp_path / name, {"main": {"adapter": "openai", "url": upstream.url}}, server=server)
            pair.append(await stack.enter_async_context(gateway_of(config, POLICY)))
        for each in pair:
            await recovered(each)  # as it says of itself
        pair[1].gateway.data_port._connections.accepts_plain = False
        yield pair[0], pair[1]


async def said(served: Served, parts: list[bytes], *, ending: bool = False) -> bytes:
    """All that comes back on one connection, without what may differ. `ending`: it ends by itself."""
    async with connected(served.url) as wire:
        undelayed(wire)
        reading = asyncio.create_task(wire.rest())
        for part in parts if ending else [*parts, CLOSE]:
            wire.writer.write(part)
            await asyncio.sleep(0.005)  # for the parts to arrive as such; nothing depends on it
        answer = await reading
    assert answer.endswith(b"ok\n") or ending
    for pattern, instead in VARYING:
        answer = pattern.sub(instead, answer)
    return answer


def undelayed(wire: Wire) -> None:
    wire.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)


async def test_both_answer_alike(both: tuple[Served, Served]) -> None:
    """Case by case, in the same order, so that both caches have seen the same."""
    different = {}
    for name, parts in CONTRACT.items():
        plain, full = [await said(each, parts, ending=name in ENDING) for each in both]
        assert full, name
        if plain != full:
            different[name] = (plain, full)
    assert not different, json.dumps({name: [str(each) for each in pair] for name, pair in different.items()}, indent=1)
    assert len(fast_path(both[0])._hits) >= 7  # a request is remembered from its second hit on
    assert len(fast_path(both[1])._hits) == 0


async def test_requests_may_be_cut_anywhere(both: tuple[Served, Served]) -> None:
    """Streams of requests, plain and not, that arrive in pieces cut at random: the same answers in the same order."""
    draw = random.Random(29)
    traced = ask("hi", b"x-request-id: 7\r\n")
    kinds = [HI, HI, HI, ask("other"), HEALTH, ask("hi", stream=True), get("/v1/x?y"), traced]
    for each in both:  # so that every question is known: what is a miss must not depend on the pieces
        await said(each, [HI, ask("other"), ask("hi", stream=True)])
    for i in range(12):
        requests = draw.choices(kinds, k=8)
        if i % 3 == 0:
            requests.insert(draw.randrange(8), CHUNKED)
        whole = b"".join(requests)
        cuts = sorted(draw.sample(range(1, len(whole)), draw.choice([3, 20])))
        pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
        plain, full = await said(both[0], pieces), await said(both[1], [whole])
        assert plain == full, (requests, cuts)


# What is hot


async def hot(served: Served, wire: Wire, request: bytes = HI) -> None:
    """Returns once the fast path answers it."""
    for _ in range(3):
        await wire.send(request)
        answer = await wire.message()
    assert len(fast_path(served)._hits)
    assert answer.all("Cache-Status")[0].startswith("nearhit; hit; detail=exact")


def failing(_: Any) -> Any:
    raise AssertionError("a step was asked")


def is_hit(answer: Message) -> bool:
    return "; hit;" in answer.all("Cache-Status")[0]


async def test_a_hot_answer_needs_no_other_step(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where head and body come apart, and with an id of each request's own."""
    monkeypatch.setattr(plain_connection, "REST_TIMEOUT_S", 3600.0)  # how long the body takes is not looked at
    async with connected(served.url) as wire:
        undelayed(wire)
        await hot(served, wire)
        (plain,) = served.gateway.data_port._connections._plain
        monkeypatch.setattr(fast_path(served), "_inner", failing)
        for i in range(3):
            await wire.send(ask("hi", b"x-request-id: r%d\r\ntraceparent: %d\r\n" % (i, i)))
            assert (await wire.message()).all("x-request-id") == [f"r{i}"]
            await wire.send(HEAD + b"\r\n\r\n")
            await until(lambda: plain._partial)
            await wire.send(BODY)
            assert is_hit(await wire.message())


async def test_what_is_removed_while_hot_is_not_answered(served: Served, upstream: Upstream) -> None:
    async with connected(served.url) as wire:
        await hot(served, wire)
        async with served.session.post(served.admin_url + "/admin/cache/purge", json={"all": True}) as purged:
            assert (await purged.json())["removed"] == 1
        upstream.name = "new"
        await wire.send(HI)
        answer = await wire.message()
        assert not is_hit(answer)
        assert b"new answers" in answer.body
        await hot(served, wire)


async def test_another_policy_holds_from_the_next_request_on(served: Served) -> None:
    async with connected(served.url) as wire:
        await hot(served, wire)
        served.gateway.apply(policy_from_text(EXACT_CACHE.replace("default", "other"), "p", served.gateway.config))
        await wire.send(HI)
        assert (await wire.message()).all("x-nearhit-route") == ["other"]
        await hot(served, wire)


async def test_what_is_hot_ages_and_expires(upstream: Upstream, tmp_path: Path) -> None:
    clock = FakeClock()
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, EXACT_CACHE, clock=clock) as served, connected(served.url) as wire:
        await hot(served, wire)
        clock.advance(3598)
        await wire.send(HI)
        answer = await wire.message()
        assert (answer.all("Age"), answer.all("Cache-Status")) == (["3598"], ["nearhit; hit; detail=exact; ttl=2"])
        clock.advance(3)
        await wire.send(HI)
        assert not is_hit(await wire.message())


async def test_no_header_of_another_client_is_enough(served: Served) -> None:
    async with connected(served.url) as wire:
        await hot(served, wire, ask("hi", b"Authorization: Bearer one\r\n"))
        for other in (b"Authorization: Bearer two\r\n", b"authorization: Bearer on\r\n", b""):
            await wire.send(ask("hi", other))
            assert not is_hit(await wire.message())


# Clients that do not read, do not ask, or leave


async def test_who_asks_and_does_not_read_is_not_read_either(upstream: Upstream, tmp_path: Path) -> None:
    """What is written ahead is bounded, and everything is answered in the end."""

    async def large(request: web.Request, call: dict[str, Any]) -> web.Response:
        return web.json_response(completion(call, "x" * 200_000))

    upstream.answer = large
    async with gateway_of(config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})) as served:
        reader, writer = await asyncio.open_connection(*served.gateway.data_address, limit=2**16)
        wire, asked = Wire(reader, writer), 400
        await hot(served, wire)
        for _ in range(asked):
            writer.write(HI)
        await until(lambda: any(not each._output.writable for each in served.gateway.data_port._connections._plain))
        (connection,) = (each for each in served.gateway.data_port._connections._plain if not each._output.writable)
        assert connection._transport.get_write_buffer_size() < 2**20
        for _ in range(asked):
            assert len((await wire.message()).body) > 200_000
        await wire.close()


async def test_a_client_that_leaves_cancels_its_request(served: Served, upstream: Upstream) -> None:
    upstream.gate.clear()
    async with connected(served.url) as wire:
        await wire.send(HI)
        await upstream.arrived.wait()
    await asyncio.wait_for(upstream.left.wait(), 120)
    await until(lambda: not served.gateway.data_port._connections._plain)


async def test_an_idle_connection_is_closed_after_its_last_answer(upstream: Upstream, tmp_path: Path) -> None:
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    config = config_of(tmp_path, backends, server={"idle_timeout": "2s", "header_timeout": "10s"})
    async with gateway_of(config) as served, connected(served.url) as wire:
        await hot(served, wire)
        assert await wire.rest() == b""


async def test_a_request_that_is_half_read_when_the_gateway_stops_is_answered(
    upstream: Upstream, tmp_path: Path
) -> None:
    async with AsyncExitStack() as stack:
        config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
        served = await stack.enter_async_context(gateway_of(config))
        connections = served.gateway.data_port._connections
        async with connected(served.url) as wire:
            undelayed(wire)
            await hot(served, wire)
            await wire.send(HI[:-5])
            await until(lambda: any(each._partial for each in connections._plain))
            connections.pre_shutdown()
            await wire.send(HI[-5:])
            answer = await wire.message()
            assert (answer.status, answer.all("Connection")) == (200, ["close"])
            assert await wire.rest() == b""


async def test_a_request_whose_body_takes_long_when_the_gateway_stops_is_answered(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Longer than for it to become aiohttp's, who takes no further request by then."""
    monkeypatch.setattr(plain_connection, "REST_TIMEOUT_S", 3600.0)  # it is said when that is over
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, server={"drain_timeout": "60s"})
    async with gateway_of(config) as served, connected(served.url) as wire:
        undelayed(wire)
        await hot(served, wire)
        (plain,) = served.gateway.data_port._connections._plain
        await wire.send(HI[:-5])
        await until(lambda: plain._partial)
        stopping = asyncio.create_task(served.gateway.data_port.stop())
        await until(lambda: plain._closed)
        plain._on_wait_timeout()
        await wire.send(HI[-5:])
        answer = await wire.message()
        assert (answer.status, answer.all("Connection")) == (200, ["close"])
        assert await wire.rest() == b""
        await stopping


async def test_a_request_that_aiohttp_has_half_read_when_the_gateway_stops_is_answered(
    upstream: Upstream, tmp_path: Path
) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, server={"drain_timeout": "60s"})
    async with gateway_of(config) as served, connected(served.url) as wire:
        undelayed(wire)
        await wire.send(CHUNKED[:-10])
        await until(lambda: served.gateway.inflight.count == 1)
        stopping = asyncio.create_task(served.gateway.data_port.stop())
        await until(lambda: served.gateway.data_port._service.draining)
        await asyncio.sleep(0.01)  # it takes no further request by now; nothing depends on it
        await wire.send(CHUNKED[-10:] + HEALTH)
        answer = await wire.message()
        assert answer.status == 200
        assert await wire.rest() == b"", "what came behind it is not taken up"
        await stopping


async def test_a_request_that_crosses_the_stop_on_an_idle_connection_is_answered(served: Served) -> None:
    connections = served.gateway.data_port._connections
    async with connected(served.url) as wire, connected(served.url) as idle:
        await hot(served, wire)
        await hot(served, idle)
        connections.pre_shutdown()
        await wire.send(HI)
        answer = await wire.message()
        assert (answer.status, answer.all("Connection")) == (200, ["close"])
        assert (await wire.rest(), await idle.rest()) == (b"", b"")


async def test_a_new_connection_outlives_idle_ones_when_the_gateway_stops(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its client, such as a load balancer under load, opened it for a request that comes a moment later."""
    monkeypatch.setattr(plain_connection, "FIRST_GRACE_S", 60.0)
    connections = served.gateway.data_port._connections
    async with connected(served.url) as idle, connected(served.url) as new:
        await hot(served, idle)
        await until(lambda: len(connections._plain) == 2)
        connections.pre_shutdown()
        assert await idle.rest() == b""
        await new.send(HI)
        answer = await new.message()
        assert (answer.status, answer.all("Connection")) == (200, ["close"])
        assert await new.rest() == b""


async def test_a_step_that_fails_is_a_500_and_the_end(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fast_path(served), "_inner", failing)
    async with connected(served.url) as wire:
        await wire.send(ask("new", b"Cache-Control: no-store\r\n"))
        answer = await wire.message()
        assert (answer.status, answer.all("Connection")) == (500, ["close"])
        assert await wire.rest() == b""
