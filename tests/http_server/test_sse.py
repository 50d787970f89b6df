"""Server-sent events: the same events however the bytes are cut, and each of them on its way at once."""

from __future__ import annotations

import asyncio
import socket
import time
from itertools import pairwise
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.sse import RECENT, SSEParser
from gateway.errors import UpstreamStreamError
from gateway.messages import Event
from tests.fixtures.gateways import Served
from tests.fixtures.upstream import Upstream, stream

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Tell me a long story"}], "stream": True}
LINE_ENDS = [b"\n", b"\n\n", b"\r", b"\r\n", b"\r\n\r\n"]
FIELDS = [
    b"data: x",
    b"data:y",
    b"data",
    b"data:  z",
    b"data: {}",
    b"data: ",
    b"data:  ",
    b"data: [DONE]",
    b"event: n",
    b"event",
    b": comment",
]
OTHERS = [b"id: 7", b"retry: 9", b"unknown: u", b" ", "\u00e4\u20ac".encode()]
MARK = "\ufeff".encode()
STARTS = st.sampled_from([b"", b"", MARK, MARK, MARK + MARK, MARK[:2], MARK[1:], b"data: x\n\n" + MARK])
PARTS = st.lists(st.sampled_from(LINE_ENDS + FIELDS + OTHERS), max_size=30).map(b"".join)
STREAMS = st.builds(bytes.__add__, STARTS, PARTS)


def parsed(chunks: list[bytes]) -> list[Event]:
    parser = SSEParser()
    return [event for chunk in chunks for event in parser.feed(chunk)] + parser.close()


def by_the_standard(text: bytes) -> list[Event]:
    """WHATWG HTML, section 9.2.6, line by line; but for an unfinished last event, which it would drop, and for events
    without data, which only keep a connection open."""
    text = text.removeprefix(MARK)
    events: list[Event] = []
    data: list[bytes] = []
    name: str | None = None
    for line in [*text.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n"), b""]:
        field, _, value = line.partition(b":")
        value = value[1:] if value.startswith(b" ") else value
        if line == b"":
            if b"".join(data).strip():
                events.append(Event(b"\n".join(data), name))
            data, name = [], None
        elif field == b"data":
            data.append(value)
        elif field == b"event":
            name = value.decode("utf-8", "replace")
    return events


@given(STREAMS)
def test_a_stream_is_read_as_the_standard_says(text: bytes) -> None:
    assert parsed([text]) == by_the_standard(text)


@given(STREAMS, st.data())
def test_any_cut_gives_the_same_events(text: bytes, data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(0, len(text)), max_size=8)))
    chunks = [text[i:j] for i, j in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert parsed(chunks) == by_the_standard(text)


@given(STREAMS)
def test_byte_by_byte_gives_the_same_events(text: bytes) -> None:
    assert parsed([bytes([byte]) for byte in text]) == by_the_standard(text)


LINES = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n"), max_size=20)


def has_data(lines: list[str]) -> bool:
    return bool("".join(lines).encode().strip())


@given(st.lists(st.tuples(st.lists(LINES, min_size=1, max_size=3).filter(has_data), st.none() | LINES), max_size=5))
def test_what_is_written_is_read_again(given_: list[tuple[list[str], str | None]]) -> None:
    events = [Event("\n".join(lines).encode(), name) for lines, name in given_]
    assert parsed([b"".join(event.frame() for event in events)]) == events


def test_events_are_out_as_soon_as_their_blank_line_is_in() -> None:
    parser = SSEParser()
    assert parser.feed(b"data: a\n") == []
    assert parser.feed(b"\ndata: b\r\n\r") == [Event(b"a"), Event(b"b")]
    assert parser.feed(b"\n") == [], "it belongs to the CR"
    assert parser.feed(b"data: c\r\r") == [Event(b"c")]


def test_an_event_without_end_is_bounded() -> None:
    parser = SSEParser(max_event=2**20)
    assert parser.feed(b"x" * 2**20) == []
    with pytest.raises(UpstreamStreamError, match=r"longer than 1048576 bytes \(server.max_event\)"):
        parser.feed(b"x")


async def test_small_events_are_sent_at_once(served: Served, upstream: Upstream) -> None:
    """Nagle's algorithm would hold each back until the client's delayed acknowledgement of the one before it, 40 ms
    later, of 200 events that wait for each other all but the first few. One that takes less was not held back, however
    busy the machine."""
    seen = asyncio.Event()

    async def between() -> None:
        await seen.wait()
        seen.clear()

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, " ".join("word" for _ in range(200)), between=between)

    upstream.answer = answer
    async with served.session.post(served.url + "/v1/chat/completions", json=ASK) as response:
        arrived = []
        async for line in response.content:
            if line.startswith(b"data: "):
                arrived.append(time.perf_counter())
                seen.set()
        # The last three come at once: the end, the usage, [DONE].
        assert min(after - before for before, after in pairwise(arrived[10:200])) < 0.04
        assert [undelayed(transport) for transport in transports(served)] == [True, True]


def transports(served: Served) -> list[asyncio.Transport]:
    """Of the connections to the client and to the upstream."""
    runner, backend = served.gateway.data_port._runner, served.gateway.parts.pools["main"].endpoints[0].backend
    kept = backend._client.client.pool._idle
    return [each._transport for each in runner.server._plain] + [each.transport for each in kept]


def undelayed(transport: asyncio.Transport) -> bool:
    return bool(transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))


def test_a_parser_keeps_few_events_however_many_come_at_once() -> None:
    """Each stream has one, and what it keeps is not counted in `server.max_unread`."""
    parser = SSEParser()
    parser.feed(b"".join(b"data: %d\n\n" % number for number in range(1_000)))
    assert [event.data for event in parser.recent] == [b"%d" % number for number in range(1_000 - RECENT, 1_000)]


@pytest.mark.parametrize("at_once", [True, False])
def test_a_parser_keeps_few_bytes_however_large_the_events_are(at_once: bool) -> None:
    parser, events = SSEParser(), [b"data: %d %b\n\n" % (number, b"x" * 100_000) for number in range(20)]
    for chunk in [b"".join(events)] if at_once else events:
        parser.feed(chunk)
    assert [event.data[:3] for event in parser.recent] == [b"19 "]


def test_a_large_event_is_kept_behind_the_notes_that_follow_it() -> None:
    """An end may hold the whole answer, as `response.completed` does."""
    parser = SSEParser()
    parser.feed(b"data: before\n\ndata: %b\n\n" % (b"x" * 100_000))
    parser.feed(b"data: usage\n\ndata: [DONE]\n\n")
    assert [len(event.data) for event in parser.recent] == [100_000, 5, 6]
