"""The answers are those of aiohttp's client, whatever a server says: the same bytes in the same pieces to both."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.upstream.http1.errors import ExchangeFailed
from gateway.upstream.http_client import UpstreamRequest
from tests.fixtures.http_clients import CLIENTS, asked, client_at
from tests.fixtures.wire import Message, Wire, wire_upstream

TOKEN = st.text("abcdefghijklmnopqrstuvwxyzABCXYZ0123456789-_.!#$%&'*+^`|~", min_size=1, max_size=12)
# What frames, or what aiohttp reads in a way of its own.
APART = {"content-length", "transfer-encoding", "connection", "content-encoding", "upgrade", "keep-alive"}
NAMES = TOKEN.filter(lambda name: name.lower() not in APART)  # aiohttp spells names in its own way
VALUES = st.binary(max_size=20).map(lambda b: bytes(c for c in b if c >= 0x20 and c != 0x7F).strip())
PIECES = st.lists(st.binary(min_size=1, max_size=40), max_size=5)


@dataclass(frozen=True)
class Said:
    """What the server says, and after how many bytes it waits a moment."""

    data: bytes
    cuts: tuple[int, ...]
    closes: bool


@st.composite
def said(draw: st.DrawFn) -> Said:
    informed = b"".join(
        b"HTTP/1.1 %d X\r\nLink: <%d>\r\n\r\n" % (draw(st.sampled_from((100, 102, 103))), i)
        for i in range(draw(st.integers(0, 2)))
    )
    status = draw(st.sampled_from((200, 201, 204, 304, 400, 404, 418, 500, 503, 599)))
    headers = draw(st.lists(st.tuples(NAMES, VALUES), max_size=6))
    if draw(st.booleans()):
        headers.append(("Content-Type", draw(st.sampled_from((b"application/json", b"TEXT/event-stream; a=b")))))
    pieces = draw(PIECES)
    how = "none" if status in (204, 304) else draw(st.sampled_from(("length", "chunks", "end")))
    head = b"HTTP/1.1 %d Some Reason\r\n" % status
    head += b"".join(name.encode() + b": " + value + b"\r\n" for name, value in headers)
    body = b""
    if how == "length":
        body = b"".join(pieces)
        head += b"Content-Length: %d\r\n" % len(body)
    elif how == "chunks":
        head += b"Transfer-Encoding: chunked\r\n"
        extension = draw(st.sampled_from((b"", b";a", b";a=b", b';a="b c"')))
        body = b"".join(b"%x%b\r\n%b\r\n" % (len(piece), extension, piece) for piece in pieces) + b"0\r\n"
        body += b"".join(b"X-T%d: 1\r\n" % i for i in range(draw(st.integers(0, 2)))) + b"\r\n"
    elif how == "end":
        body = b"".join(pieces)
    data = informed + head + b"\r\n" + body
    if draw(st.integers(0, 4)) == 0:  # one in five breaks off
        data = data[: draw(st.integers(0, len(data)))]
        return Said(data, (), True)
    cuts = tuple(sorted(draw(st.lists(st.integers(1, len(data) - 1), max_size=4))))
    return Said(data, cuts, how == "end" or draw(st.booleans()))


def serving(what: Said) -> object:
    async def script(wire: Wire, _: Message) -> None:
        wire.writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        begin = 0
        for cut in (*what.cuts, len(what.data)):
            await wire.send(what.data[begin:cut])
            await asyncio.sleep(0)
            begin = cut
        if what.closes:
            wire.writer.close()

    return script


Seen = tuple[int, list[tuple[str, bytes]], bytes] | str


async def seen(kind: str, what: Said) -> list[Seen]:
    """What a client makes of it, twice in a row."""
    outcomes: list[Seen] = []
    async with wire_upstream() as server, client_at(kind, server.url) as client:
        server.script = serving(what)  # type: ignore[assignment]
        for _ in range(2):
            try:
                answer, body = await asked(client, UpstreamRequest("POST", "/", (), b"{}"))
            except ExchangeFailed:
                outcomes.append("failed")
            else:
                headers = [(name.lower(), value.encode("utf-8", "surrogateescape")) for name, value in answer.headers]
                outcomes.append((answer.status, headers, body))
    return outcomes


@given(said())
@settings(max_examples=80)
def test_both_clients_make_the_same_of_an_answer(what: Said) -> None:
    async def both() -> list[list[Seen]]:
        return await asyncio.gather(*(seen(kind, what) for kind in CLIENTS))

    own, reference = asyncio.run(both())
    assert own == reference
