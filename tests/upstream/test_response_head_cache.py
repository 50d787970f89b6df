"""Heads that are known by their bytes: nobody can tell but by the time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gateway.upstream.http1.errors import MalformedAnswer
from gateway.upstream.http1.headers import HeaderNames
from gateway.upstream.http1.parser import (
    MAX_CACHED_HEADS,
    MISS_LIMIT,
    CachedHead,
    HeadShape,
    ResponseHeadCache,
    ResponseParser,
)
from gateway.upstream.http1.response import HttpResponse

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

OK = b"HTTP/1.1 200 OK\r\nDate: Sun, 22 Nov 2026 13:08:17 GMT\r\nX-A: b\r\nContent-Length: 2\r\n\r\nok"


@dataclass(frozen=True)
class Read:
    """All that anybody is told of an answer."""

    status: int
    headers: tuple[tuple[str, str], ...]
    header_map: tuple[tuple[str, str], ...]
    body: bytes
    whole: bool
    idle_s: float
    error: str


def read(parser: ResponseParser, chunks: list[bytes], *, is_head_request: bool = False) -> tuple[Read, HttpResponse]:
    answer, error = HttpResponse(None), ""
    parser.start(answer, is_head_request=is_head_request)
    for chunk in chunks:
        try:
            parser.feed(chunk)
        except MalformedAnswer as malformed:
            error = str(malformed)
        if error or parser.ended:
            break
    idle_s = parser.idle_s(15.0) if parser.ended and not error else 0.0
    header_map = tuple(sorted(answer.header_map.items()))
    said = Read(answer.status, tuple(answer.headers), header_map, b"".join(answer.chunks), parser.ended, idle_s, error)
    assert answer.unread == len(said.body)
    return said, answer


class Watched(ResponseHeadCache):
    """Notes the head that was found for the last answer."""

    last: CachedHead | None = None

    def find(self, head: bytes) -> CachedHead | None:
        self.last = super().find(head)
        return self.last

    def get(self, head: bytes, default: Any = None) -> Any:
        self.last = super().get(head, default)
        return self.last


class Kept:
    """The connections to one server, one after the other: a new one where the last is of no use any more."""

    def __init__(self) -> None:
        self.known = Watched()
        self._new()

    def _new(self) -> None:
        self.parser = ResponseParser(HeaderNames(), self.known)

    def shape(self, answer: HttpResponse) -> HeadShape | None:
        """The known form of its head, where llhttp did not read it."""
        last = self.known.last
        return last.shape if last is not None and answer.header_map is last.header_map else None

    def read(self, *chunks: bytes, is_head_request: bool = False) -> tuple[Read, HttpResponse]:
        self.known.last = None
        said, answer = read(self.parser, list(chunks), is_head_request=is_head_request)
        if not said.idle_s:
            self._new()
        return said, answer


def anew(*chunks: bytes, is_head_request: bool = False) -> Read:
    """By llhttp, which has seen nothing before."""
    return read(ResponseParser(HeaderNames(), ResponseHeadCache()), list(chunks), is_head_request=is_head_request)[0]


VALUES = st.sampled_from(
    [
        b"",
        b"a",
        b" a  b ",
        b"2",
        b"02",
        b"+2",
        b"2 2",
        b"2, 2",
        b"-1",
        b"0",
        b"5",
        b"17",
        b"9" * 30,
        b"\xff",
        b"a\tb",
        b"\x01",
    ]
)
NAMES = st.sampled_from(
    [b"Date", b"date", b"Content-Length", b"content-length", b"X-Request-Id", b"Content-Type", b"Connection",
     b"Keep-Alive", b"Transfer-Encoding", b"X-A"]
)  # fmt: skip
LINES = st.tuples(
    NAMES, st.sampled_from([b": ", b": ", b": ", b":", b":  "]), VALUES, st.sampled_from([b"\r\n", b"\r\n", b"\n"])
)


@st.composite
def answers(draw: st.DrawFn) -> tuple[bytes, ...]:
    """Of one server: few forms, and values that vary; now and then a byte is another one, or it comes in pieces."""
    status = draw(st.sampled_from([b"200 OK", b"200 OK", b"404 Not Found", b"204 No", b"103 Early"]))
    start = draw(st.sampled_from([b"HTTP/1.1 ", b"HTTP/1.1 ", b"HTTP/1.0 "]))
    body = draw(st.sampled_from([b"", b"ok", b"hello"]))
    lines = [(b"Content-Length", b": ", b"%d" % len(body), b"\r\n")] * draw(st.integers(0, 1))
    lines += draw(st.lists(LINES, max_size=3))
    lines = draw(st.permutations(lines))
    data = start + status + b"\r\n" + b"".join(b"".join(line) for line in lines) + b"\r\n" + body
    data += draw(st.sampled_from([b"", b"", b"", b"x", OK]))  # more than was asked for
    if draw(st.integers(0, 5)) == 0:
        at = draw(st.integers(0, len(data) - 1))
        data = data[:at] + draw(st.sampled_from([b"", b"\r", b"\n", b"\0", b" ", b"x", b"\r\n"])) + data[at + 1 :]
    if not data or draw(st.integers(0, 5)):
        return (data,)
    cut = draw(st.integers(0, len(data)))
    return tuple(chunk for chunk in (data[:cut], data[cut:]) if chunk)


@given(st.lists(answers(), min_size=2, max_size=6), st.booleans())
@settings(max_examples=500)
@example([(OK,), (OK,), (OK.replace(b"13:08", b"\xff\xff"),), (OK.replace(b": 2", b": +2"),)], False)
@example([(OK,), (OK + b"x",), (OK + OK,)], False)
@example([(OK,), (OK.replace(b"\r\nX-A: b", b"\nX-A: b"),)], False)
def test_they_are_read_as_llhttp_reads_them(said: list[tuple[bytes, ...]], twice: bool) -> None:
    kept = Kept()
    for chunks in said * 2 if twice else said:
        assert kept.read(*chunks)[0] == anew(*chunks), chunks


def test_what_varies_makes_no_other_head() -> None:
    kept = Kept()
    first = kept.read(OK)[1]
    assert kept.shape(first) is None
    alike, likes = [], []
    for data in (
        OK,
        OK.replace(b"13:08", b"14:09"),
        OK.replace(b"Content-Length: 2\r\n\r\nok", b"Content-Length: 5\r\n\r\nhello"),
    ):
        alike.append(kept.read(data))
        likes.append(kept.shape(alike[-1][1]))
    assert likes[0] is not None and all(shape is likes[0] for shape in likes)
    assert [said.body for said, _ in alike] == [b"ok", b"ok", b"hello"]
    assert alike[2][0].headers[2] == ("Content-Length", "5") and alike[2][1].header_map["content-length"] == "5"
    assert first.headers[0][1] == "Sun, 22 Nov 2026 13:08:17 GMT"  # nobody's answer is changed by another's


CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        CHUNKED,
        b"HTTP/1.1 103 Early\r\nLink: a\r\n\r\n" + OK,
        OK + b"surplus",
        OK[:-1],
        b"HTTP/1.1 204 No Content\r\nContent-Length: 2\r\n\r\n",
        OK.replace(b"X-A: b\r\n", b"X-A: b\n"),
        OK.replace(b"X-A: b", b"X-A: " + b"b" * 4000),
        OK.replace(b"Length: 2", b"Length:2"),
    ],
    ids=["chunks", "an early hint", "surplus", "a part", "no body", "a bare LF", "a long head", "no space"],
)
def test_what_is_never_known(data: bytes) -> None:
    kept = Kept()
    for _ in range(3):
        said, answer = kept.read(data)
        assert kept.shape(answer) is None and said == anew(data)


def test_an_answer_to_head_is_none_that_is_known() -> None:
    kept, head = Kept(), OK[:-2]
    for _ in range(2):
        kept.read(OK)
        said, answer = kept.read(head, is_head_request=True)
        assert kept.shape(answer) is None and said.whole and not said.body


def test_a_server_that_always_says_something_else_is_seldom_looked_at() -> None:
    kept = Kept()
    for number in range(3 * MISS_LIMIT):
        kept.read(OK.replace(b"X-A: b", b"X-A: %d" % number))
    assert len(kept.known._shapes) <= MISS_LIMIT + 2
    for _ in range(2 * MISS_LIMIT):
        _, answer = kept.read(OK)
    assert kept.shape(answer) is not None


def test_what_is_known_is_bounded() -> None:
    kept = Kept()
    kept.read(OK)
    for number in range(MAX_CACHED_HEADS + 2):
        assert kept.shape(kept.read(OK.replace(b"13:08", b"%d" % number))[1]) is not None
    assert 0 < len(kept.known) <= MAX_CACHED_HEADS
    for number in range(3):  # ids that no two answers share are no heads to remember
        kept.read(OK.replace(b"X-A: b", b"x-request-id: %d" % number))
    assert len(kept.known) <= 3
