"""What counts as a plain request: nothing that aiohttp reads otherwise or refuses."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http_exceptions import HttpProcessingError
from aiohttp.http_parser import HttpRequestParser
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.dialects.targets import canonical_path
from gateway.http_server import heads as module
from gateway.http_server.heads import RequestHead, RequestHeads, head_digest

LINE = b"POST /v1/chat/completions?a=b HTTP/1.1\r\n"
PLAIN = LINE + b"Host: g\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n"
MAX_FIELD = 8190


def read(head: bytes) -> RequestHead | None:
    return RequestHeads(MAX_FIELD).read(head)


def plain(head: bytes) -> RequestHead:
    found = read(head)
    assert found is not None, head
    return found


def test_a_plain_head_is_read() -> None:
    head = plain(PLAIN)
    assert (head.method, head.path, head.query, head.length) == ("POST", "/v1/chat/completions", "a=b", 12)
    assert head.headers["content-TYPE"] == "application/json"
    assert head.headers["Content-Length"] == "12"


ODD = {
    "HTTP/1.0": PLAIN.replace(b"1.1", b"1.0"),
    "an absolute target": PLAIN.replace(b"POST /", b"POST http://g/"),
    "a target that is no path": b"OPTIONS * HTTP/1.1\r\nHost: g\r\n\r\n",
    "a fragment": PLAIN.replace(b"?a=b", b"#a"),
    "CONNECT": b"CONNECT /x HTTP/1.1\r\nHost: g\r\n\r\n",
    "an unknown method": PLAIN.replace(b"POST", b"BREW"),
    "a method in small letters": PLAIN.replace(b"POST", b"post"),
    "chunked": PLAIN.replace(b"Content-Length: 12", b"Transfer-Encoding: chunked"),
    "a length and chunked": PLAIN.replace(b"\r\n\r\n", b"\r\nTransfer-Encoding: chunked\r\n\r\n"),
    "two lengths": PLAIN.replace(b"\r\n\r\n", b"\r\nContent-Length: 12\r\n\r\n"),
    "a list of lengths": PLAIN.replace(b"12", b"12, 12"),
    "no digits": PLAIN.replace(b"12", b"+12"),
    "no length": PLAIN.replace(b"12", b""),
    "a space before the colon": PLAIN.replace(b"Host:", b"Host :"),
    "a line that goes on": PLAIN.replace(b"Host: g", b"Host: g\r\n g"),
    "a bare CR": PLAIN.replace(b"Host: g", b"Host: g\rX: y"),
    "a bare LF": PLAIN.replace(b"Host: g", b"Host: g\nX: y"),
    "a CR behind what varies": PLAIN.replace(b"12\r\n", b"12\r\r\n"),
    "a NUL": PLAIN.replace(b"Host: g", b"Host: g\0"),
    "not ASCII": PLAIN.replace(b"Host: g", b"Host: g\xc3\xa4"),
    "not ASCII in what varies": PLAIN.replace(b"Host: g", b"Host: g\r\nx-request-id: \xc3\xa4"),
    "a control character in what varies": PLAIN.replace(b"Host: g", b"Host: g\r\ntraceparent: \x01"),
    "a header twice": PLAIN.replace(b"Host: g", b"Host: g\r\nhost: h"),
    "what varies twice": PLAIN.replace(b"Host: g", b"Host: g\r\ntracestate: a=1\r\ntracestate: b=1"),
    "too long a value": PLAIN.replace(b"Host: g", b"Host: " + b"g" * (MAX_FIELD + 1)),
    "too long a value that varies": PLAIN.replace(b"Host: g", b"Host: g\r\nbaggage: " + b"g" * (MAX_FIELD + 1)),
    "too many headers": LINE
    + b"Host: g\r\n"
    + b"".join(b"X-%d: y\r\n" % i for i in range(module.MAX_LINES + 1))
    + b"\r\n",
    "Connection: upgrade": PLAIN.replace(b"Host: g", b"Host: g\r\nConnection: close, Upgrade"),
    "Expect": PLAIN.replace(b"Host: g", b"Host: g\r\nExpect: 100-continue"),
    "Upgrade": PLAIN.replace(b"Host: g", b"Host: g\r\nUpgrade: websocket"),
    "Content-Encoding": PLAIN.replace(b"Host: g", b"Host: g\r\nContent-Encoding: gzip"),
    "TE": PLAIN.replace(b"Host: g", b"Host: g\r\nTE: trailers"),
    "no host": PLAIN.replace(b"Host: g", b"X: y"),
    "empty lines before it": b"\r\n" + PLAIN,
}


@pytest.mark.parametrize("head", ODD.values(), ids=ODD)
def test_what_is_not_plain_is_not_read(head: bytes) -> None:
    """Nor is it once a head was read that is the same but for what makes it odd."""
    heads = RequestHeads(MAX_FIELD)
    heads.read(PLAIN)
    assert heads.read(head) is None
    assert heads.read(head) is None


def test_what_traces_a_request_decides_nothing_and_is_read_each_time() -> None:
    heads = RequestHeads(MAX_FIELD)
    traced = b"Host: g\r\nx-request-id: %d\r\nTraceParent: %d"
    seen = [heads.read(PLAIN.replace(b"Host: g", traced % (i, i))) for i in (1, 2)]
    assert [head and head.headers["x-request-id"] for head in seen] == ["1", "2"]
    assert [head and head.headers["traceparent"] for head in seen] == ["1", "2"]
    assert {head and head.memo.digest for head in seen} == {plain(PLAIN).memo.digest}


def test_a_head_is_taken_apart_once(monkeypatch: pytest.MonkeyPatch) -> None:
    heads = RequestHeads(MAX_FIELD)
    first = heads.read(PLAIN)
    monkeypatch.setattr(module, "_fixed_head_of", lambda *_: pytest.fail("read again"))
    assert heads.read(PLAIN) is first
    other = heads.read(PLAIN.replace(b"12", b"13"))
    assert other is not None
    assert first is not None
    assert (other.length, other.memo.digest) == (13, first.memo.digest)


def test_what_is_remembered_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_KNOWN", 10)
    heads = RequestHeads(MAX_FIELD)
    for i in range(50):
        assert heads.read(PLAIN.replace(b"Host: g", b"Host: %d" % i)) is not None
    assert [len(memo) for memo in (heads._heads, heads._fixed_heads)] == [10, 10]
    monkeypatch.setattr(module, "MAX_KNOWN_BYTES", 300)
    heads = RequestHeads(MAX_FIELD)
    heads.read(PLAIN)
    assert heads._heads.weight <= 300


@pytest.mark.parametrize(
    "other",
    [
        PLAIN.replace(b"POST", b"PUT"),
        PLAIN.replace(b"a=b", b"a=c"),
        PLAIN.replace(b"Host: g", b"Host: h"),
        PLAIN.replace(b"Host: g", b"Host: g\r\nAuthorization: g"),
        PLAIN.replace(b"Host: g", b"Host: g\r\nX: y"),
    ],
)
def test_everything_else_decides(other: bytes) -> None:
    assert plain(other).memo.digest != plain(PLAIN).memo.digest


def test_parts_cannot_run_into_each_other() -> None:
    assert head_digest("POST", "/a", [("b", "cd:e")]) != head_digest("POST", "/a", [("b", "c"), ("d", "e")])


class _Protocol(BaseProtocol):
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)


def aiohttps(loop: asyncio.AbstractEventLoop, request: bytes) -> list[Any]:
    """The messages that aiohttp's parser finds, with the options that the gateway gives it."""
    parser = HttpRequestParser(
        _Protocol(loop), loop, 2**16, max_line_size=MAX_FIELD, max_field_size=MAX_FIELD, auto_decompress=False
    )
    return list(parser.feed_data(request)[0])


TOKEN = st.text("abcXYZ0-_.!", min_size=1, max_size=8).map(str.encode)
VALUE = st.text("abc 09=;,\t\"'()/:%{}", max_size=12).map(str.encode)
KNOWN = st.sampled_from(
    [b"content-type", b"Accept", b"x-request-id", b"TRACEPARENT", b"Cookie", b"connection", b"Expect", b"te"]
)
HEADER = st.builds(b"%b:%b\r\n".__mod__, st.tuples(KNOWN | TOKEN, VALUE | st.sampled_from([b" keep-alive", b"Close"])))
TARGET = st.text('/abc?&=%.~#\\ "<>|^`{}[]@*', max_size=12).map(lambda text: b"/" + text.encode())
JUNK = st.tuples(
    st.integers(0, 400), st.sampled_from([b"\r", b"\n", b"\r\n", b"\0", b"\xe4", b" ", b":", b"\t", b"\x7f"])
)


@pytest.fixture(scope="module")
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    loop = asyncio.new_event_loop()
    yield loop
    loop.close()


@given(
    st.sampled_from([b"GET", b"POST", b"HEAD", b"DELETE", b"OPTIONS", b"QUERY"]),
    TARGET,
    st.lists(HEADER, max_size=5),
    st.integers(0, 20),
    st.lists(JUNK, max_size=2),
)
@settings(max_examples=600, deadline=None)
def test_aiohttp_reads_a_plain_request_the_same_way(
    loop: asyncio.AbstractEventLoop,
    method: bytes,
    target: bytes,
    fields: list[bytes],
    length: int,
    junk: list[tuple[int, bytes]],
) -> None:
    """As one message, complete, with the same method, target and headers, on a connection that goes on. Nothing is said
    of what is not plain."""
    head = b"%b %b HTTP/1.1\r\nHost: g\r\n%bContent-Length: %d\r\n\r\n" % (method, target, b"".join(fields), length)
    for at, what in junk:
        head = head[: at % len(head)] + what + head[at % len(head) :]
    end = head.find(b"\r\n\r\n") + 4
    head = head[:end]
    found = read(head) if end > 3 else None
    if found is None:
        return
    try:
        messages = aiohttps(loop, head + b"x" * found.length)
    except HttpProcessingError as error:
        pytest.fail(f"aiohttp refuses {head!r}: {error}")
    ((message, payload),) = messages
    path, _, query = message.path.partition("?")
    path = canonical_path(message.method, path)
    assert (message.method, path, query) == (found.method, found.path, found.query)
    assert sorted((name.lower(), value) for name, value in message.headers.items()) == sorted(
        (name.lower(), value) for name, value in found.headers.items()
    )
    assert message.should_close == found.closes
    assert not (message.upgrade or message.chunked or message.compression)
    assert payload.is_eof()
    assert payload.total_bytes == found.length
