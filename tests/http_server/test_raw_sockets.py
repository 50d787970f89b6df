"""HTTP/1.1 as it may come over a socket: every request gets one answer, in order, and what could be read in two ways is
refused and ends the connection."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from gateway.observability.json_logging import JsonLines
from tests.fixtures import http2
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until
from tests.fixtures.wire import Message, Wire, connected

HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\n"
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: g\r\n\r\n"


def body_of(question: str) -> bytes:
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": question}]}).encode()


def length_of(body: bytes) -> bytes:
    return b"Content-Length: %d\r\n" % len(body)


def chunked_of(body: bytes) -> bytes:
    return b"%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)


HI = body_of("hi")
LENGTH, CHUNKED = length_of(HI), chunked_of(HI)


def ask(question: str, headers: bytes = b"") -> bytes:
    body = body_of(question)
    return HEAD + headers + b"Content-Length: %d\r\n\r\n%s" % (len(body), body)


def said(answer: Message) -> str:
    assert answer.status == 200, answer
    content = json.loads(answer.body)["choices"][0]["message"]["content"]
    assert isinstance(content, str)
    return content


@pytest.fixture
async def limited(upstream: Upstream, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """A gateway with the limits that a test names."""
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, server=request.param)
    async with gateway_of(config) as gateway:
        yield gateway


SMALL = pytest.mark.parametrize("limited", [{"max_body": "64KiB"}], indirect=True)


async def test_one_connection_carries_any_number_of_requests(wire: Wire) -> None:
    for i in range(5):
        await wire.send(ask(f"question {i}"))
        assert said(await wire.message()) == f"upstream answers: question {i}"


FIRST_LINES = [(b"GET /healthz\r\n", 400), (b"GET /v1/models\n", 400), (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00", 505)]
OTHER_VERSIONS = [
    (b"GET /healthz\r\n\r\n", 400),
    (b"GET /v1/models HTTP/0.9\r\nHost: g\r\n\r\n", 400),
    (b"GET /v1/models HTTP/1.2\r\nHost: g\r\n\r\n", 400),
    (b"GET /v1/models HTTP/2.0\r\nHost: g\r\n\r\n", 505),
    (HEAD.replace(b"1.1", b"2.0") + LENGTH + b"\r\n" + HI, 505),
]


async def is_refused(wire: Wire, line: bytes, status: int) -> None:
    await wire.send(line)
    answer = await wire.message()
    assert answer.status == status
    assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
    assert await wire.rest() == b"", "the connection is over"


@pytest.mark.parametrize(("line", "status"), [*FIRST_LINES, *OTHER_VERSIONS])
async def test_other_versions_are_refused(wire: Wire, upstream: Upstream, line: bytes, status: int) -> None:
    await is_refused(wire, line, status)
    assert upstream.calls == []


async def test_a_client_of_http_2_reads_the_refusal_although_it_sends_on(wire: Wire, upstream: Upstream) -> None:
    """Prior knowledge: its settings and its request come with the preface, and after it."""
    settings = http2.frame(4)
    await wire.send(http2.PREFACE + settings)
    head = await wire.head()
    for _ in range(20):
        await wire.send(settings + http2.headers(b"/v1/chat/completions"))
    assert head.status == 505
    assert b"expected HTTP/1.1" in await wire.rest()
    assert upstream.calls == []


@pytest.mark.parametrize("first", [1, 5, 15])
async def test_a_preface_of_http_2_in_pieces_is_refused_too(served: Served, wire: Wire, first: int) -> None:
    """aiohttp reads on if the rest takes its time."""
    connections = served.gateway.data_port._connections
    assert connections is not None
    await wire.send(http2.PREFACE[:first])
    await until(lambda: connections.connections)
    await wire.send(http2.PREFACE[first:])
    assert (await wire.message()).status == 505


@pytest.mark.parametrize(("line", "status"), OTHER_VERSIONS)
async def test_other_versions_are_refused_after_a_request(wire: Wire, line: bytes, status: int) -> None:
    await wire.send(b"GET /healthz HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")  # aiohttp takes over
    assert (await wire.message()).status == 200
    await is_refused(wire, line, status)


async def test_pipelined_requests_are_answered_in_order(wire: Wire, upstream: Upstream) -> None:
    """Hits, misses, refusals and health are answered on different paths, and still one after the other."""
    await wire.send(ask("known"))
    await wire.message()
    await wire.send(ask("new") + ask("known") + HEALTH + HEAD + b"Content-Length: 1\r\n\r\n{" + ask("known") + ask("2"))
    answers = [await wire.message() for _ in range(6)]
    assert [answer.status for answer in answers] == [200, 200, 200, 400, 200, 200]
    assert [said(answers[i]).rpartition(" ")[2] for i in (0, 1, 4, 5)] == ["new", "known", "known", "2"]
    assert answers[2].body == b"ok\n"


async def test_a_hit_does_not_overtake_the_miss_before_it(wire: Wire, upstream: Upstream) -> None:
    await wire.send(ask("known"))
    await wire.message()
    upstream.arrived.clear()
    upstream.gate.clear()
    await wire.send(ask("held") + ask("known"))
    await upstream.arrived.wait()
    upstream.gate.set()
    assert [said(await wire.message()).rpartition(" ")[2] for _ in range(2)] == ["held", "known"]


@pytest.mark.parametrize("request_", [ask("hi"), HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + CHUNKED])
async def test_a_request_may_be_cut_anywhere(wire: Wire, request_: bytes) -> None:
    """Every byte boundary of head and body, on one connection; the first is a miss, the others are hits."""
    wire.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for cut in range(1, len(request_)):
        await wire.send(request_[:cut])
        await asyncio.sleep(0)
        await wire.send(request_[cut:])
        assert said(await wire.message()) == "upstream answers: hi", cut


async def test_a_request_may_come_byte_by_byte(wire: Wire) -> None:
    for byte in ask("hi"):
        await wire.send(bytes([byte]))
        await asyncio.sleep(0)
    assert said(await wire.message()) == "upstream answers: hi"


def framings(body: bytes) -> dict[str, bytes]:
    """Return the correct ways to send a body, after the head."""
    chunked = chunked_of(body)
    return {
        "chunked": b"Transfer-Encoding: chunked\r\n\r\n" + chunked,
        "chunked, in capitals": b"TRANSFER-ENCODING: Chunked\r\n\r\n" + chunked,
        "many chunks": b"Transfer-Encoding: chunked\r\n\r\n"
        + b"".join(b"1\r\n%c\r\n" % byte for byte in body)
        + b"0\r\n\r\n",
        "chunk extensions": b"Transfer-Encoding: chunked\r\n\r\n"
        + b'%x;a=b;c="d"\r\n%s\r\n0\r\n\r\n' % (len(body), body),
        "a trailer": b"Transfer-Encoding: chunked\r\n\r\n" + b"%x\r\n%s\r\n0\r\nX-T: 1\r\n\r\n" % (len(body), body),
        "leading zeros": b"Content-Length: 0%d\r\n\r\n" % len(body) + body,
        "no space": b"Content-Length:%d\r\n\r\n" % len(body) + body,
    }


FRAMINGS = framings(HI)


@pytest.mark.parametrize("framing", FRAMINGS.values(), ids=FRAMINGS)
async def test_every_correct_framing_is_understood(wire: Wire, framing: bytes) -> None:
    await wire.send(HEAD + framing + HEALTH)
    assert said(await wire.message()) == "upstream answers: hi"
    assert (await wire.message()).body == b"ok\n"


def smuggling(body: bytes) -> dict[str, bytes]:
    """Return ways to send a body that could be read in two ways, after the head."""
    length, chunked = length_of(body), chunked_of(body)
    return {
        "two lengths": length + b"Content-Length: 3\r\n\r\n" + body,
        "the same length twice": length + length + b"\r\n" + body,
        "a list of lengths": b"Content-Length: 1, 1\r\n\r\n" + body,
        "length and chunked": length + b"Transfer-Encoding: chunked\r\n\r\n" + chunked,
        "chunked and length": b"Transfer-Encoding: chunked\r\n" + length + b"\r\n" + chunked,
        "gzip, chunked": b"Transfer-Encoding: gzip, chunked\r\n\r\n" + chunked,
        "chunked, gzip": b"Transfer-Encoding: chunked, gzip\r\n\r\n" + chunked,
        "chunked, identity": b"Transfer-Encoding: chunked, identity\r\n\r\n" + chunked,
        "chunked twice": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n" + chunked,
        "chunked and another line": b"Transfer-Encoding: chunked\r\nTransfer-Encoding: x\r\n\r\n" + chunked,
        "xchunked": b"Transfer-Encoding: xchunked\r\n\r\n" + chunked,
        "identity": b"Transfer-Encoding: identity\r\n\r\n" + chunked,
        "a space before the colon": b"Transfer-Encoding : chunked\r\n\r\n" + chunked,
        "a vertical tab": b"Transfer-Encoding: \x0bchunked\r\n\r\n" + chunked,
        "a sign": b"Content-Length: +%d\r\n\r\n" % len(body) + body,
        "negative": b"Content-Length: -1\r\n\r\n" + body,
        "hexadecimal": b"Content-Length: 0x10\r\n\r\n" + body,
        "no length": b"Content-Length: \r\n\r\n" + body,
        "beyond any length": b"Content-Length: 99999999999999999999\r\n\r\n" + body,
        "obsolete folding": length + b"X-A: b\r\n c\r\n\r\n" + body,
        "folded framing": b"Transfer-Encoding:\r\n chunked\r\n\r\n" + chunked,
        "a bare CR": length + b"X-A: b\rX-B: c\r\n\r\n" + body,
        "bare LFs": b"Content-Length: 1\n\n" + body,
        "a NUL": length + b"X-A: b\x00c\r\n\r\n" + body,
        "a space in a name": length + b"X A: b\r\n\r\n" + body,
        "two hosts": b"Host: other\r\n" + length + b"\r\n" + body,
        "a bad chunk size": b"Transfer-Encoding: chunked\r\n\r\nzz\r\n" + body,
        "a negative chunk": b"Transfer-Encoding: chunked\r\n\r\n-1\r\n" + body,
        "a hexadecimal prefix": b"Transfer-Encoding: chunked\r\n\r\n0x%x\r\n%s\r\n0\r\n\r\n" % (len(body), body),
        "an endless chunk": b"Transfer-Encoding: chunked\r\n\r\nfffffffffffffffff\r\n" + body,
        "a chunk longer than it says": b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n"
        % (len(body) - 1, body),
        "chunks with bare LFs": b"Transfer-Encoding: chunked\r\n\r\n%x\n%s\n0\n\n" % (len(body), body),
    }


SMUGGLING = smuggling(HI)


@pytest.mark.parametrize("rest", SMUGGLING.values(), ids=SMUGGLING)
async def test_an_ambiguous_request_gets_400_and_ends_the_connection(
    wire: Wire, upstream: Upstream, rest: bytes
) -> None:
    """Nothing of it, nor of what follows, reaches the upstream."""
    await wire.send(HEAD + rest + b"GET /v1/smuggled HTTP/1.1\r\nHost: g\r\n\r\n")
    answer = await wire.message()
    assert answer.status == 400
    assert json.loads(answer.body)["error"]["type"] == "invalid_request_error"
    assert await wire.rest() == b""
    assert upstream.calls == []


async def test_http_1_0_is_answered_and_closed(wire: Wire) -> None:
    await wire.send(HEAD.replace(b"1.1", b"1.0") + LENGTH + b"\r\n" + HI)
    assert said(await wire.message()) == "upstream answers: hi"
    assert await wire.rest() == b""


async def test_http_1_0_may_ask_to_keep_the_connection(wire: Wire) -> None:
    for _ in range(3):  # a miss, a hit of all steps, and one of the fast path
        await wire.send(HEAD.replace(b"1.1", b"1.0") + b"Connection: keep-alive\r\n" + LENGTH + b"\r\n" + HI)
        answer = await wire.message()
        assert said(answer) == "upstream answers: hi"
        assert answer.all("Connection") == ["keep-alive"]


async def test_a_stream_over_http_1_0_ends_with_its_connection(wire: Wire) -> None:
    body = HI[:-1] + b', "stream": true}'
    await wire.send(HEAD.replace(b"1.1", b"1.0") + b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
    answer = await wire.message()
    assert answer.all("Transfer-Encoding") == []
    assert answer.body.endswith(b"data: [DONE]\n\n")


async def test_connection_close_is_heeded_by_hits_and_misses(served: Served) -> None:
    for _ in range(3):
        async with connected(served.url) as wire:
            await wire.send(ask("hi", b"Connection: close\r\n"))
            answer = await wire.message()
            assert said(answer) == "upstream answers: hi"
            assert answer.all("Connection") == ["close"]
            assert await wire.rest() == b""


@pytest.mark.usefixtures("lingering")
@SMALL
async def test_an_oversize_body_is_refused_and_the_next_request_answered(limited: Served) -> None:
    """The body that nobody wanted is read to its end and not taken for requests."""
    poison = HEALTH * 2000
    async with connected(limited.url) as wire:
        await wire.send(HEAD + b"Content-Length: %d\r\n\r\n%s" % (len(poison), poison) + ask("hi"))
        assert (await wire.message()).status == 413
        assert said(await wire.message()) == "upstream answers: hi"


async def test_who_waits_for_100_continue_gets_it(wire: Wire) -> None:
    await wire.send(HEAD + b"Expect: 100-continue\r\n" + LENGTH + b"\r\n")
    assert (await wire.head()).start == "HTTP/1.1 100 Continue"
    await wire.send(HI)
    assert said(await wire.message()) == "upstream answers: hi"


@SMALL
async def test_who_waits_for_100_continue_with_too_much_is_refused_at_once(limited: Served) -> None:
    async with connected(limited.url) as wire:
        await wire.send(HEAD + b"Expect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
        assert (await wire.message()).status == 413


async def test_head_has_no_body_to_get_out_of_step_with(wire: Wire) -> None:
    await wire.send(b"HEAD /healthz HTTP/1.1\r\nHost: g\r\n\r\n" + HEALTH)
    assert (await wire.message(headless=True)).all("Content-Length") == ["3"]
    assert (await wire.message()).body == b"ok\n"


async def test_an_absolute_target_is_a_path_here(wire: Wire, upstream: Upstream) -> None:
    """RFC 9112 section 3.2.2. The host that it names must not choose where the request goes."""
    await wire.send(ask("hi").replace(b"POST /", b"POST http://169.254.169.254:80/"))
    assert said(await wire.message()) == "upstream answers: hi"
    await wire.send(
        b"GET HTTP://elsewhere/v1/x?q=1 HTTP/1.1\r\nHost: g\r\n\r\nGET http://g?q HTTP/1.1\r\nHost: g\r\n\r\n"
    )
    assert [(await wire.message()).status for _ in range(2)] == [200, 200]
    assert [call.path for call in upstream.calls] == ["/v1/chat/completions", "/v1/x?q=1", "/?q"]


@pytest.mark.parametrize("start", [b"OPTIONS *", b"CONNECT example.org:443", b"GET /v1/a#b", b"GET ftp://h/x"])
async def test_targets_that_are_no_path_are_refused(wire: Wire, upstream: Upstream, start: bytes) -> None:
    await wire.send(start + b" HTTP/1.1\r\nHost: g\r\n\r\n")
    assert (await wire.message()).status == 400
    await wire.send(HEALTH)
    assert (await wire.message()).body == b"ok\n"
    assert upstream.calls == []


async def test_an_upgrade_that_the_backend_ignores_is_answered_and_asked_once(wire: Wire, upstream: Upstream) -> None:
    upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: eA==\r\n"
    await wire.send(b"GET /v1/realtime HTTP/1.1\r\nHost: g\r\n" + upgrade + b"\r\n" + HEALTH)
    assert (await wire.message()).status == 200
    assert (await wire.message()).body == b"ok\n"
    assert ["Upgrade" in call.headers for call in upstream.calls] == [True]


async def test_an_upgrade_of_another_method_is_ignored(wire: Wire, upstream: Upstream) -> None:
    upgrade = b"Upgrade: websocket\r\nConnection: Upgrade\r\nContent-Length: 2\r\n"
    await wire.send(b"POST /v1/files HTTP/1.1\r\nHost: g\r\n" + upgrade + b"\r\nhi" + HEALTH)
    assert (await wire.message()).status == 200
    assert (await wire.message()).body == b"ok\n"
    assert [(call.method, call.body, "Upgrade" in call.headers) for call in upstream.calls] == [("POST", b"hi", False)]


@pytest.mark.parametrize("limited", [{"body_timeout": "500ms"}], indirect=True)
async def test_a_body_that_never_ends_is_given_up(limited: Served, upstream: Upstream) -> None:
    async with connected(limited.url) as wire:
        await wire.send(HEAD + LENGTH + b"\r\n" + HI[:-1])
        assert (await wire.message()).status == 408
        assert await wire.rest() == b""
    assert upstream.calls == []


@pytest.mark.parametrize("limited", [{"header_timeout": "500ms"}], indirect=True)
async def test_a_head_that_never_ends_is_given_up(limited: Served) -> None:
    for beginning in (b"", HEAD):
        async with connected(limited.url) as wire:
            await wire.send(beginning)
            assert await wire.rest() == b""


async def test_a_client_that_leaves_in_mid_body_costs_nothing(served: Served, upstream: Upstream) -> None:
    async with connected(served.url) as wire:
        await wire.send(HEAD + LENGTH + b"\r\n" + HI[:-1])
    assert (await served.chat("still there?")).status == 200
    assert len(upstream.calls) == 1


async def test_malformed_credentials_are_quoted_nowhere(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    """Neither in the log, at any level, nor in an answer, be it their owner's."""
    with caplog.at_level(logging.DEBUG):
        for value in (b"Bearer sk-canary\x01", b"Bearer sk-canary\r\n sk-canary", b"Bearer sk-canary\x00"):
            async with connected(served.url) as wire:
                await wire.send(b"GET /v1/x HTTP/1.1\r\nHost: g\r\nAuthorization: " + value + b"\r\n\r\n")
                assert b"canary" not in await wire.rest()
        assert "canary" not in (await served.get("/v1/models")).body.decode()
    assert caplog.records
    formatted = [JsonLines().format(record) + (record.exc_text or "") for record in caplog.records]
    assert not [line for line in [*formatted, caplog.text] if "canary" in line]
