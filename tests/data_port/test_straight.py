"""Requests that pass straight through, and nobody can tell: clients are sent the same bytes as by the stages, the
upstream too, and the books, metrics and the access log have the same of it. What is otherwise goes on in the stages."""

from __future__ import annotations

import asyncio
import io
import json
import re
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.access.key_text import digest_of
from gateway.backends.lane import Lane
from gateway.dialects.openai import OpenAI
from gateway.errors import BadRequest
from gateway.http1.pool import Pool as Connections
from gateway.observing.access_log import AccessLog
from gateway.observing.metrics import Counter, Histogram
from gateway.policy.load import policy_from_text
from gateway.upkeep import evictions
from tests.data_port.test_plain_connection import CLOSE, VARYING
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, Served, at_rest, config_of, gateway_of
from tests.fixtures.waiting import until
from tests.fixtures.wire import connected

OK = b'{"id":"c","object":"chat.completion","choices":[{"index":0,"message":{"content":"hi"}}]}'
CUT, END, HOLD = "cut", "end", "hold"  # what an upstream does instead of going on: resets, closes, or waits
Piece = bytes | str
TIMEOUT_S = 60.0


def answer(body: bytes = OK, *headers: bytes, status: bytes = b"200 OK", kind: bytes = b"application/json") -> bytes:
    lines = [b"HTTP/1.1 " + status, b"Content-Type: " + kind, b"Content-Length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


def chunked(body: bytes, *headers: bytes) -> bytes:
    lines = [b"HTTP/1.1 200 OK", b"Content-Type: application/json", b"Transfer-Encoding: chunked", *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n%x\r\n%b\r\n0\r\n\r\n" % (len(body), body)


@dataclass
class Scripted:
    """An upstream in bytes. `pieces`: of each answer, in order of the requests; what is not scripted is `usual`."""

    port: int = 0
    usual: bytes = field(default_factory=lambda: answer())
    seen: list[bytes] = field(default_factory=list)
    script: deque[list[Piece]] = field(default_factory=deque)
    hold: asyncio.Event = field(default_factory=asyncio.Event)
    left: int = 0
    writers: set[asyncio.StreamWriter] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.hold.set()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.writers.add(writer)
        try:
            while await self._one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, ConnectionError):
            self.left += 1
        finally:
            self.writers.discard(writer)
            writer.close()

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        self.seen.append(head + await reader.readexactly(int(length[1]) if length else 0))
        pieces = self.script.popleft() if self.script else [self.usual]
        await self.hold.wait()
        for piece in pieces:
            if piece == CUT:
                writer.transport.abort()
            elif piece == END:
                writer.close()
            elif piece == HOLD:
                await reader.readexactly(1)  # which never comes
            else:
                assert isinstance(piece, bytes)
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.005)  # so that it comes as a piece of its own
        return not writer.is_closing()


@asynccontextmanager
async def scripted() -> AsyncIterator[Scripted]:
    upstream = Scripted()
    async with await asyncio.start_server(upstream.serve, "127.0.0.1", 0) as server:
        upstream.port = server.sockets[0].getsockname()[1]
        yield upstream
        for writer in tuple(upstream.writers):
            writer.close()


@dataclass
class One:
    """A gateway with what it leaves behind."""

    served: Served
    log: AccessLog
    lines: io.StringIO
    clock: FakeClock

    @property
    def straight(self) -> Any:
        return self.served.gateway.data_port._straight

    @property
    def lane(self) -> Lane:
        return self.served.gateway.parts.pools["main"].lanes[0]

    @property
    def connections(self) -> Connections:
        return self.lane.backend._client.client.pool  # type: ignore[attr-defined]

    async def disconnect(self) -> None:
        """From the upstream: no connection lies idle."""
        for connection in tuple(self.connections._all):
            connection.close()
        await until(lambda: not self.connections.open)

    def logged(self) -> list[dict[str, Any]]:
        self.log.flush()
        lines = [json.loads(line) for line in self.lines.getvalue().splitlines()]
        self.lines.seek(0)
        self.lines.truncate()
        return [
            {**line, "time": 0, "id": "" if re.fullmatch("[0-9a-f]{24}", line["id"]) else line["id"]} for line in lines
        ]

    def figures(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name, metric in vars(self.served.gateway.parts.telemetry).items():
            if name.startswith("loop_"):
                continue
            if isinstance(metric, Counter):
                found[name] = dict(metric.values)
            elif isinstance(metric, Histogram):
                found[name] = {labels: (list(each), each.total) for labels, each in metric.counts.items()}
        return found

    def books(self) -> dict[str, Any]:
        lane = self.lane
        gate: Any = lane.backend._gate  # type: ignore[attr-defined]
        return {
            "load": (lane.load, lane._telling, gate.inflight, self.served.gateway.data_port.inflight),
            "unread": list(lane.latency._unread),
            "record": lane.record.counts(self.clock.monotonic()),
            "paces": {kind: pace.seconds for kind, pace in lane._paces.items()},
            "waits": dict(lane.waits.until),
            "breaker": lane.breaker.state(self.clock.monotonic()),
            "limit": (gate._limit.value, gate._limit._count, {k: list(v) for k, v in gate._limit._logs.items()}),
            "holds": (gate._turnover._holds._count, gate._turnover._holds._total),
            "asked": [count for _, count in self.served.gateway.parts.pools["main"].budget._asked],
        }


POLICY = NO_CACHE.replace(
    "  - name: default",
    """  - {name: kept, match: {model: kept}, cache: {exact: {ttl: 1h}}, route: {backend: main}}
  - {name: budgeted, match: {model: budgeted}, route: {backend: main, latency_budget: 10s}}
  - {name: plain, match: {model: plain}, expose_headers: false, route: {backend: main}}
  - {name: headed, match: {headers: {x-team: blue}}, route: {backend: main}}
  - name: default""",
)


@asynccontextmanager
async def one(folder: Path, upstream: Scripted, policy: str = POLICY, **sections: Any) -> AsyncIterator[One]:
    main = {
        "adapter": "openai", "url": f"http://127.0.0.1:{upstream.port}/v1", "models": {"alias*": "real"},
        **sections.pop("main", {}),
    }  # fmt: skip
    lines, clock = io.StringIO(), FakeClock()
    log = AccessLog(lines)
    server = {"drain_timeout": f"{TIMEOUT_S:g}s", **sections.pop("server", {})}
    config = config_of(folder, {"main": main}, server=server, **sections)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(evictions, "COMPARE_S", 1e6)  # after a minute the index would be at work once more
        async with gateway_of(config, policy, {"KEY": "own-key"}, clock=clock, access_log=log) as served:
            # Before that it is not known what the store does not have, and the index is at work: lookups are the
            # stages'.
            await at_rest(served)
            await served.gateway.parts.space.index.settled()
            yield One(served, log, lines, clock)


def upstream_that_says(usual: bytes) -> Any:
    """The fixture of a module's tests."""

    @pytest.fixture(name="upstream")
    async def fixture() -> AsyncIterator[Scripted]:
        async with scripted() as upstream:
            upstream.usual = usual
            yield upstream

    return fixture


def gateway_by(policy: str, *asked: bytes) -> Any:
    """The fixture of a module's tests: a gateway of which that has been asked."""

    @pytest.fixture(name="it")
    async def fixture(tmp_path: Path, upstream: Scripted) -> AsyncIterator[One]:
        async with one(tmp_path, upstream, policy) as it:
            for request in asked:
                await said(it.served, request)
            yield it

    return fixture


upstream = upstream_that_says(answer())
it = gateway_by(POLICY)


@pytest.fixture
async def pair(tmp_path: Path, upstream: Scripted) -> AsyncIterator[tuple[One, One]]:
    """The same gateway twice: with the straight path, and without."""
    async with AsyncExitStack() as stack:
        both = [await stack.enter_async_context(one(tmp_path / name, upstream)) for name in ("on", "off")]
        both[1].straight._on = False
        yield both[0], both[1]


def post(headers: bytes = b"", path: bytes = b"/v1/chat/completions", raw: bytes | None = None, **fields: Any) -> bytes:
    given = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    body = json.dumps(given).encode() if raw is None else raw
    return b"POST %b HTTP/1.1\r\nHost: g\r\n%bContent-Length: %d\r\n\r\n%b" % (path, headers, len(body), body)


def get(path: bytes, method: bytes = b"GET", headers: bytes = b"") -> bytes:
    return b"%b %b HTTP/1.1\r\nHost: g\r\n%b\r\n" % (method, path, headers)


HI = post()
TRACES = b"X-Request-Id: mine\r\nTraceparent: 00-a\r\nx-stainless-retry-count: 1\r\n"
SAID = {"role": "user", "content": "x"}
NAMED_WITHIN = b'{"messages":[{"role":"user","content":"\\"model\\": \\"kept\\"", "model":"kept"}],"model":"m"}'
PARTS = [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {"url": "data:"}}]
# -> the request, and whether the second one like it goes straight.
REQUESTS: dict[str, tuple[bytes, bool]] = {
    "a chat": (HI, True),
    "a chat that is renamed": (post(model="alias-1"), True),
    "spaces, key order, unicode, numbers": (
        post(
            raw=b'{ "messages" : [{"content":"\\u00e9 \xc3\xa9","role":"user"}], "x":1.50, "y":[1e3,-0], "model": "m"}'
        ),
        True,
    ),
    "a model that is named within": (post(raw=NAMED_WITHIN), True),
    "several turns": (
        post(messages=[{"role": "system", "content": "be"}, {"role": "user", "content": ""}, SAID]),
        True,
    ),
    "parts": (post(messages=[{"role": "user", "content": PARTS}]), True),
    "max_tokens, temperature": (post(max_tokens=7, temperature=0.5, n=1), True),
    "max_completion_tokens": (post(max_completion_tokens=9, max_tokens=7), True),
    "a completion": (post(path=b"/v1/completions", prompt="hi"), True),
    "embeddings": (post(path=b"/v1/embeddings", input=["a", "b"]), True),
    "a query": (post(path=b"/v1/chat/completions?a=b%20c"), True),
    "what traces it": (post(TRACES), True),
    "an id that is none": (post(b'x-request-id: "\r\n'), True),
    "credentials and a cookie": (post(b"Authorization: Bearer k\r\nCookie: a=b\r\nX-Api-Key: z\r\n"), True),
    "headers that end here": (post(b"Keep-Alive: 5\r\nConnection: keep-alive\r\nAccept-Encoding: gzip\r\n"), True),
    "directives": (post(b"Cache-Control: no-store, max-age=3\r\nCache-Tag: a\r\n"), True),
    "another route by a header": (post(b"X-Team: blue\r\n"), True),
    "another route by the model": (post(model="plain"), True),
    "a path of nobody": (post(path=b"/v1/rerank?q=1"), True),
    "a path of nobody, no JSON": (post(path=b"/v1/rerank", raw=b"\x00 raw", headers=b"Content-Type: a/b\r\n"), True),
    "a path of nobody, no body": (post(path=b"/v1/rerank", raw=b""), True),
    "GET": (get(b"/v1/things/%20?a"), True),
    "DELETE": (get(b"/v1/things/1", b"DELETE"), True),
    "PUT": (HI.replace(b"POST /v1/chat/completions", b"PUT /v1/things"), True),
    "HEAD": (get(b"/v1/things", b"HEAD"), False),
    "OPTIONS": (get(b"/v1/things", b"OPTIONS"), False),
    "models": (get(b"/v1/models"), False),
    "readiness": (get(b"/healthz"), False),
    "a job": (get(b"/v1/jobs/job_1"), False),
    "feedback": (post(path=b"/v1/feedback", raw=b"{}"), False),
    "a stored route": (post(model="kept"), False),
    "a route with a budget": (post(model="budgeted"), False),
    "a budget": (post(b"x-latency-budget-ms: 50000\r\n"), False),
    "a budget that is none": (post(b"x-slo-ttft-ms: soon\r\n"), False),
    "a priority": (post(b"x-priority: low\r\n"), False),
    "only-if-cached": (post(b"Cache-Control: only-if-cached\r\n"), False),
    "another dialect": (post(path=b"/v1/messages", max_tokens=3), False),
    "a stream": (post(stream=True), False),
    "no JSON": (post(raw=b"{"), False),
    "no object": (post(raw=b"[1]"), False),
    "a key twice": (post(raw=b'{"model":"m","model":"n","messages":[{"role":"user","content":"x"}]}'), False),
    "no model": (post(model=""), False),
    "no messages": (post(messages=[]), False),
    "a role that is none": (post(messages=[{"role": 1}]), False),
    "a temperature that is none": (post(temperature=9), False),
    "nested deeply": (post(raw=b'{"model":"m","messages":' + b"[" * 300 + b"]" * 300 + b"}"), False),
    "a long body": (post(filler="x" * 70_000), False),
    "the last one": (post(b"Connection: close\r\n"), False),
}
COLD_REQUESTS = ("a chat", "a path of nobody", "GET", "a stored route", "a stream")
COLD_ANSWERS = (
    "chunks", "head and body apart", "chunks apart", "a long one", "Connection: close", "500", "no HTTP",
    "cut in its body", "ended before a byte", "cut before a byte",
)  # fmt: skip
LONG = b'"' + b"x" * 200_000 + b'"'
SSE = b"data: {}\n\ndata: [DONE]\n\n"
HOP = (b"Connection: X-Gone", b"X-Gone: 1", b"Keep-Alive: timeout=9")
# -> how the upstream answers, and whether that goes straight.
ANSWERS: dict[str, tuple[list[Piece], bool]] = {
    "chunks": ([chunked(OK)], True),
    "head and body apart": ([answer()[:-20], answer()[-20:]], True),
    "a head in two parts": ([answer()[:30], answer()[30:]], True),
    "chunks apart": ([chunked(OK)[:-30], chunked(OK)[-30:]], False),
    "an early hint": ([b"HTTP/1.1 103 Early Hints\r\nLink: a\r\n\r\n" + answer()], True),
    "headers that end here": (
        [
            answer(
                OK, b"Keep-Alive: timeout=9", b"Server: x", b"Date: y", b"Age: 3", b"X-NearHit-A: b", b"x-request-id: u"
            )
        ],
        True,
    ),
    "Connection that names headers": ([answer(OK, *HOP)], False),
    "Connection: close": ([answer(OK, b"Connection: close"), END], True),
    "headers twice, and odd ones": (
        [answer(OK, b"Set-Cookie: a", b"Set-Cookie: b", b"X-\xe9: 1"[:2] + b"B:  padded \t", b"X-Latin: \xe9\xff")],
        True,
    ),
    "an encoding": ([answer(b"\x1f\x8b", b"Content-Encoding: gzip")], True),
    "limits": ([answer(OK, b"x-ratelimit-remaining-requests: 9", b"x-ratelimit-reset-requests: 5s")], True),
    "limits that are reached": (
        [answer(OK, b"x-ratelimit-remaining-requests: 0", b"x-ratelimit-reset-requests: 5s")],
        True,
    ),
    "an empty body": ([answer(b"")], True),
    "no JSON": ([answer(b"oops", kind=b"text/plain")], True),
    "a stream nobody asked for": ([answer(SSE, kind=b"text/event-stream; charset=utf-8")], False),
    "a stream of unknown length": (
        [
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
            b"%x\r\n%b\r\n0\r\n\r\n" % (len(SSE), SSE),
        ],
        False,
    ),
    "a long one": ([answer(LONG)], False),
    "until it closes": ([b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n\r\n" + OK, END], False),
    "more than the answer": ([answer() + b"surplus"], True),
    "201": ([answer(status=b"201 Created")], False),
    "204": ([b"HTTP/1.1 204 No Content\r\nX-A: b\r\n\r\n"], False),
    "400": ([answer(b'{"error":{}}', status=b"400 Bad Request")], False),
    "429": ([answer(b"{}", b"Retry-After: 1", status=b"429 Too Many Requests")], False),
    "500": ([answer(b"{}", status=b"500 Oops")], False),
    "503": ([answer(b"{}", b"Retry-After: 1", status=b"503 Busy")], False),
    "101": ([b"HTTP/1.1 101 Switching\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n"], False),
    "no HTTP": ([b"nonsense\r\n\r\n"], False),
    "two lengths": ([answer(OK, b"Content-Length: 3")], False),
    "gzip, chunked": ([chunked(OK).replace(b"chunked", b"gzip, chunked")], False),
    "cut in its head": ([answer()[:20], CUT], False),
    "cut in its body": ([answer()[:-5], CUT], False),
    "ended before a byte": ([END], False),
    "cut before a byte": ([CUT], False),
    "ended before a byte, twice": ([END, ""], False),
}


async def said(served: Served, *requests: bytes) -> bytes:
    async with connected(served.url) as wire:
        await wire.send(b"".join(requests) + CLOSE)
        reading = wire.rest()
        answered = await asyncio.wait_for(reading, TIMEOUT_S)
    for pattern, instead in VARYING:
        answered = pattern.sub(instead, answered)
    return answered


async def of_one(
    it: One, upstream: Scripted, request: bytes, script: list[Piece] | None, *, cold: bool = False
) -> dict[str, Any]:
    """What comes of a request after one that has left a connection idle; `cold`: which has ended since."""
    await said(it.served, HI)
    if cold:
        await it.disconnect()
    upstream.seen.clear()
    it.logged()
    before, taken = it.figures(), it.straight.relayed
    if script is not None:
        upstream.script.extend([script] if script[-1] != "" else [script[:-1]] * 2)
    answered = await said(it.served, request)
    await until(lambda: it.served.gateway.data_port.inflight == 0)
    upstream.script.clear()
    after, log = it.figures(), it.logged()
    it.clock.advance(120)
    return {
        "said": answered,
        "seen": list(upstream.seen),
        "log": log,
        "taken": it.straight.relayed - taken,
        **it.books(),
        **{name: (before.get(name), value) for name, value in after.items() if before.get(name) != value},
    }


async def differences(
    pair: tuple[One, One],
    upstream: Scripted,
    cases: dict[str, tuple[bytes, list[Piece] | None]],
    *,
    cold: bool = False,
) -> tuple[dict[str, Any], dict[str, int]]:
    """-> where both do not do the same; what of each goes straight."""
    different, taken = {}, {}
    for name, (request, script) in cases.items():
        on, off = [await of_one(it, upstream, request, script, cold=cold) for it in pair]
        taken[name] = on.pop("taken")
        assert not off.pop("taken")
        assert on["said"]
        keys = [key for key in {**on, **off} if on.get(key) != off.get(key)]
        if keys:
            different[name] = {key: (str(on.get(key)), str(off.get(key))) for key in keys}
    return different, taken


async def test_requests_are_sent_and_answered_alike(pair: tuple[One, One], upstream: Scripted) -> None:
    cases = {name: (request, None) for name, (request, _) in REQUESTS.items()}
    different, taken = await differences(pair, upstream, cases)
    assert not different, json.dumps(different, indent=1)
    assert taken == {name: int(straight) for name, (_, straight) in REQUESTS.items()}


async def test_answers_are_given_alike(pair: tuple[One, One], upstream: Scripted) -> None:
    for request in (HI, post(path=b"/v1/rerank"), HI):  # the heads of most are known by the second
        cases = {name: (request, script) for name, (script, _) in ANSWERS.items()}
        different, taken = await differences(pair, upstream, cases)
        assert not different, json.dumps(different, indent=1)
        assert request != HI or taken == {name: int(straight) for name, (_, straight) in ANSWERS.items()}


async def test_new_connections_are_asked_alike(pair: tuple[One, One], upstream: Scripted) -> None:
    cases: dict[str, tuple[bytes, list[Piece] | None]] = {name: (REQUESTS[name][0], None) for name in COLD_REQUESTS}
    cases |= {name: (HI, ANSWERS[name][0]) for name in COLD_ANSWERS}
    different, taken = await differences(pair, upstream, cases, cold=True)
    assert not different, json.dumps(different, indent=1)
    expected = {name: REQUESTS[name][1] for name in COLD_REQUESTS} | {name: ANSWERS[name][1] for name in COLD_ANSWERS}
    assert taken == {name: int(straight) for name, straight in expected.items()}


@contextmanager
def deaf() -> Iterator[int]:
    """A port at which connections are not taken, nor refused: those that may wait for that do."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener, ExitStack() as stack:
        for _ in range(4):
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]


@contextmanager
def refusing() -> Iterator[int]:
    """A port at which connections are refused; nobody else comes to listen there meanwhile."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


Turned = Callable[[One, bool], None]  # a path of requests past the stages, on or off


async def unreachable_alike(folder: Path, policy: str, request: bytes, turned: Turned) -> None:
    """Where an upstream refuses connections, or takes none, clients and books have the same with and without a path."""
    with refusing() as refused, deaf() as silent:
        for port, connect, status in ((refused, "10s", b" 502 "), (silent, "0.2s", b" 504 ")):
            outcomes = []
            for on in (True, False):
                section = {"timeouts": {"connect": connect}}
                async with one(folder / f"{port}-{on}", Scripted(port), policy, main=section) as it:
                    turned(it, on)
                    answered = await said(it.served, request)
                    assert status in answered.partition(b"\r\n")[0]
                    await until(lambda it=it: it.books()["load"] == (0, 0, 0, 0))
                    assert it.served.gateway.parts.flights == {}
                    asked = it.figures()["backend_requests"]
                    outcomes.append((answered, it.books(), asked, it.logged()[-1]["reason"]))
            assert outcomes[0] == outcomes[1]


async def test_where_there_is_no_connection_the_stages_say_so(tmp_path: Path) -> None:
    def turned(it: One, on: bool) -> None:
        it.straight._on = on

    await unreachable_alike(tmp_path, POLICY, HI, turned)


async def test_a_client_that_leaves_while_a_connection_is_opened(tmp_path: Path) -> None:
    with deaf() as silent:
        async with one(tmp_path, Scripted(silent)) as it:
            async with connected(it.served.url) as wire:
                await wire.send(HI)
                await until(lambda: it.connections._opening)
                assert it.books()["load"] == (1, 1, 1, 1)
            await until(lambda: it.books()["load"] == (0, 0, 0, 0))
            assert it.connections._opening == it.connections.open == 0
            assert it.logged()[-1]["status"] == 499


async def idle(it: One) -> None:
    """A connection to the upstream lies idle."""
    await said(it.served, HI)
    await until(lambda: it.books()["load"] == (0, 0, 0, 0))  # who has its answer may be a step ahead of them
    it.straight.relayed = 0


async def test_a_client_that_leaves_cancels_upstream(it: One, upstream: Scripted) -> None:
    gateway = it.served.gateway
    for more in ([], [answer()[:-9]]):  # before the answer, and within
        await idle(it)
        upstream.seen.clear()
        upstream.left = 0
        upstream.script.append([*more, HOLD])
        async with connected(it.served.url) as wire:
            await wire.send(HI)
            await until(lambda: upstream.seen)
            assert it.lane.load == gateway.data_port.inflight == 1
        await until(lambda: gateway.data_port.inflight == 0)
        await until(lambda: upstream.left)
        assert it.books()["load"] == (0, 0, 0, 0)
        assert it.logged()[-1]["status"] == 499
        assert it.straight.relayed == 0


async def test_a_client_that_leaves_as_its_answer_comes_gives_its_place_back(it: One, upstream: Scripted) -> None:
    """The stages are handed what is over by then, and are not cancelled before they have begun with it."""
    for request in (HI, post(path=b"/v1/rerank")):
        for rounds in range(12):  # of the loop: one of them is the one
            await idle(it)
            upstream.seen.clear()
            async with connected(it.served.url) as wire:
                wire.writer.write(request)
                for _ in range(rounds):
                    await asyncio.sleep(0)
                wire.writer.transport.abort()
            await until(lambda: it.books()["load"] == (0, 0, 0, 0))
            for writer in tuple(upstream.writers):
                writer.close()


def short(name: str) -> dict[str, Any]:
    """A backend's keys with one time limit that passes; who answers has the others."""
    return {"timeouts": {name: "0.2s"}, "retries": {"attempts": 1}}


@pytest.mark.parametrize(
    ("limit", "script", "status"),
    [
        ("first_byte", [b"", answer()], b" 504 "),
        ("first_byte", [answer()[: -len(OK)], b""], b" 504 "),
        ("idle", [answer()[:-9], b""], b" 502 "),
    ],
    ids=["no head", "a head alone", "half a body"],
)
async def test_an_answer_that_takes_too_long_is_told_by_the_stages(
    tmp_path: Path, upstream: Scripted, limit: str, script: list[Piece], status: bytes
) -> None:
    async with one(tmp_path, upstream, main=short(limit)) as it:
        await idle(it)
        upstream.script.append(script)
        if not script[0]:
            upstream.hold.clear()
        assert status in (await said(it.served, HI)).partition(b"\r\n")[0]
        upstream.hold.set()
        assert it.books()["load"] == (0, 0, 0, 0)


async def test_a_request_keeps_to_the_policy_that_it_was_sent_under(it: One, upstream: Scripted) -> None:
    await idle(it)
    upstream.hold.clear()
    upstream.script.append([answer(LONG)])
    upstream.seen.clear()
    asked = asyncio.create_task(said(it.served, HI))
    await until(lambda: upstream.seen)
    gateway = it.served.gateway
    gateway.apply(policy_from_text(EXACT_CACHE.replace("default", "other"), "policy.yaml", gateway.config))
    upstream.hold.set()
    assert b"x-nearhit-route: default" in await asked
    assert len(upstream.seen) == 1
    assert b"x-nearhit-route: other" in await said(it.served, HI)
    assert it.straight.relayed == 0


async def test_the_stages_shed_and_wait(tmp_path: Path, upstream: Scripted) -> None:
    """Beyond `max_inflight`, and where no place is free."""
    for name, server, main, status in (
        ("shed", {"max_inflight": 1}, {}, b" 503 "),
        ("full", {}, {"max_concurrency": 1, "adaptive": False}, b" 200 "),
    ):
        async with one(tmp_path / name, upstream, server=server, main=main) as it:
            await idle(it)
            upstream.hold.clear()
            upstream.seen.clear()
            first = asyncio.create_task(said(it.served, HI))
            await until(lambda: upstream.seen)
            second = asyncio.create_task(said(it.served, HI))
            if status == b" 200 ":
                await until(lambda: it.served.gateway.data_port.inflight == 2)
            else:
                assert status in (await second).partition(b"\r\n")[0]
            upstream.hold.set()
            assert b" 200 " in (await first).partition(b"\r\n")[0]
            assert status in (await second).partition(b"\r\n")[0]
            assert it.books()["load"] == (0, 0, 0, 0)


async def test_keys_that_are_at_hand(tmp_path: Path, upstream: Scripted) -> None:
    digest = digest_of("secret")
    auth = {"mode": "keys", "keys": {"acme": [digest]}}
    async with one(tmp_path, upstream, auth=auth, main={"api_key_env": "KEY"}) as it:
        asked, stranger = post(b"Authorization: Bearer secret\r\n"), post(b"Authorization: Bearer other\r\n")
        await said(it.served, asked)
        upstream.seen.clear()
        assert b" 200 OK" in await said(it.served, asked)
        assert it.straight.relayed == 2
        assert b"Authorization: Bearer own-key\r\n" in upstream.seen[0] and b"secret" not in upstream.seen[0]
        assert it.logged()[-1]["tenant"] == "acme"
        for nobody in (HI, stranger):
            assert b" 401 " in (await said(it.served, nobody)).partition(b"\r\n")[0]
        assert it.straight.relayed == 2
        it.served.gateway.access.keyring._configured.clear()
        assert b" 401 " in (await said(it.served, asked)).partition(b"\r\n")[0]


async def test_who_watches_is_told(it: One, upstream: Scripted) -> None:
    await idle(it)
    with it.served.gateway.dashboard.decisions.watch() as watch:
        await said(it.served, HI)
        told = await watch.take(TIMEOUT_S)
    assert it.straight.relayed == 1
    assert [(one["verdict"], one["reason"], one["backend"]) for one in told] == [("bypass", "policy", "main")]


async def test_a_fault_in_the_books_is_not_the_clients(
    it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("a fault of ours")

    await idle(it)
    with monkeypatch.context() as patch:
        patch.setattr(type(it.straight.observer), "relayed", broken)
        assert OK in await said(it.served, HI)
    assert it.straight.relayed == 1
    assert it.served.gateway.data_port.inflight == 0
    assert OK in await said(it.served, HI)
    assert it.books()["load"] == (0, 0, 0, 0)


@pytest.mark.parametrize(
    "more",
    [
        {"server": {"compress": True}},
        {"server": {"cors": {"origins": ["*"]}}},
        {"main": {"client": "aiohttp"}},
    ],
    ids=["compression", "cors", "aiohttp's client"],
)
async def test_what_needs_more_than_the_straight_path_knows(
    tmp_path: Path, upstream: Scripted, more: dict[str, Any]
) -> None:
    async with one(tmp_path, upstream, **more) as it:
        await idle(it)
        assert b" 200 OK" in await said(it.served, HI)
        assert it.straight.relayed == 0


@pytest.mark.parametrize(
    "rule",
    ["limits: [{per: tenant, requests: 100/min}]", "record: {share: 100%}"],
)
async def test_routes_that_do_more(tmp_path: Path, upstream: Scripted, rule: str) -> None:
    async with one(tmp_path, upstream, NO_CACHE + f"    {rule}\n") as it:
        await idle(it)
        assert b" 200 OK" in await said(it.served, HI)
        assert it.straight.relayed == 0


TEXTS = st.text(max_size=5)
MESSAGES = st.lists(
    st.fixed_dictionaries({"role": TEXTS}, optional={"content": TEXTS | st.none() | st.just(PARTS), "name": TEXTS}),
    max_size=3,
)


@given(
    messages=MESSAGES | TEXTS,
    more=st.dictionaries(
        st.sampled_from(["max_tokens", "max_completion_tokens", "n", "temperature", "stream", "user"]),
        st.integers(-1, 3) | st.booleans() | TEXTS | st.none(),
        max_size=3,
    ),
)
def test_a_call_is_read_as_the_stages_read_it(messages: Any, more: dict[str, Any]) -> None:
    dialect, path = OpenAI(), "/v1/chat/completions"
    body = json.dumps({"model": "m", "messages": messages, **more}).encode()
    read = dialect.relayed(path, body)
    try:
        call = dialect.parse(path, body, {})
    except BadRequest:
        assert read is None
        return
    if call.stream:
        assert read is None
        return
    assert read is not None
    assert read.written == dialect.outgoing(path, call, model=None, kept=False).body
    assert (read.model, read.prompt, read.max_tokens) == (call.model, len(call.prompt), call.max_tokens)


async def test_what_is_under_way_when_the_gateway_stops_is_answered(it: One, upstream: Scripted) -> None:
    await idle(it)
    upstream.hold.clear()
    upstream.seen.clear()
    async with connected(it.served.url) as wire:
        await wire.send(HI)
        await until(lambda: upstream.seen)
        stopping = asyncio.create_task(it.served.gateway.data_port.stop())
        await until(lambda: it.served.gateway.data_port._service.draining)
        upstream.hold.set()
        answered = await wire.rest()
        await stopping
    assert answered.startswith(b"HTTP/1.1 200 OK\r\n") and answered.endswith(OK)
    assert b"\r\nConnection: close\r\n" in answered
    assert len(upstream.seen) == 1
    assert it.straight.relayed == 0
