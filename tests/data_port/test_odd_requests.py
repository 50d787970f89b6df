"""Whatever is sent, and whatever an upstream makes of it: with the fast paths and without, clients are sent the same,
the upstream too, and the books have the same of it. `--hypothesis-profile=long` looks for longer."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gateway.data_port import plain_connection
from tests.data_port.odd_requests import EARLY, PLAIN, SEVERAL, SINGLE, STREAMED, Conversation
from tests.data_port.test_plain_connection import CLOSE, VARYING
from tests.data_port.test_straight import CUT, END, HI, TIMEOUT_S, One, Piece, Scripted, answer, one
from tests.fixtures.waiting import until


class Odd(Scripted):
    """As scripted, and it may answer before it has read the body."""

    async def _one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        pieces: list[Piece] = self.script.popleft() if self.script else []
        if pieces and pieces[0] == EARLY:
            self.seen.append(head)
            await self._say(pieces[1:], writer)
            return False  # whether the body was sent as well is a matter of time
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        if length is not None:
            head += await reader.readexactly(int(length[1]))
        elif b"transfer-encoding" in head.lower():
            head += await reader.readuntil(b"0\r\n\r\n")
        self.seen.append(head)
        if not pieces:
            pieces = [STREAMED if b'"stream":true' in head else PLAIN]
        if head.startswith(b"HEAD "):  # with a body the answer would be two
            pieces = [answer(b"")]
        await self._say(pieces, writer)
        return not writer.is_closing()

    async def leave(self) -> None:
        """Closes all connections."""
        for writer in tuple(self.writers):
            writer.transport.abort()
        await until(lambda: not self.writers)

    async def _say(self, pieces: list[Piece], writer: asyncio.StreamWriter) -> None:
        for piece in pieces:
            if piece == CUT:
                writer.transport.abort()
            elif piece == END:
                writer.close()
            else:
                assert isinstance(piece, bytes)
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.003)  # so that it comes as a piece of its own


@pytest.fixture
async def upstream() -> AsyncIterator[Odd]:
    upstream = Odd()
    async with await asyncio.start_server(upstream.serve, "127.0.0.1", 0) as server:
        upstream.port = server.sockets[0].getsockname()[1]
        yield upstream
        await upstream.leave()


@pytest.fixture
async def trio(tmp_path: Path, upstream: Odd, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[list[One]]:
    """The same gateway three times: with all fast paths; with the stages alone behind plain connections; with aiohttp's
    connections before the stages."""
    monkeypatch.setattr(plain_connection, "WAIT_S", TIMEOUT_S)  # how long the rest of a request takes is not looked at
    async with AsyncExitStack() as stack:
        names = ("fast", "staged", "aiohttp")
        fast, staged, other = [await stack.enter_async_context(one(tmp_path / name, upstream)) for name in names]
        staged.straight._on = False
        setattr(staged.served.gateway.data_port._front, "learn", lambda *_: None)  # noqa: B010
        other.served.gateway.data_port._connections.plainly = False
        yield [fast, staged, other]


class Client(asyncio.Protocol):
    """Keeps all that came, also where the connection is reset behind it."""

    def __init__(self) -> None:
        self.said = b""
        self.over = asyncio.get_running_loop().create_future()

    def data_received(self, data: bytes) -> None:
        self.said += data

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.over.done():  # nobody waits any more
            self.over.set_result(None)


async def connected(it: One) -> tuple[asyncio.Transport, Client]:
    transport, client = await asyncio.get_running_loop().create_connection(Client, *it.served.gateway.data_address)
    transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return transport, client


async def told(it: One, conversation: Conversation) -> bytes:
    """All that comes back, until the connection ends."""
    transport, client = await connected(it)
    for piece in (*conversation.pieces, CLOSE):
        if transport.is_closing():
            break
        transport.write(piece)
        await asyncio.sleep(0.003)  # so that it comes as a piece of its own
    async with asyncio.timeout(TIMEOUT_S):
        await client.over
    transport.close()
    return client.said


def messages_in(said: bytes) -> list[tuple[bytes, bytes]]:
    """Head and body of each; how a body is cut into chunks is a matter of time. What is not whole comes as it is."""
    messages = []
    while said:
        head, _, rest = said.partition(b"\r\n\r\n")
        length = re.search(rb"\r\ncontent-length: (\d+)", head, re.IGNORECASE)
        body = b""
        if b"\r\nTransfer-Encoding: chunked" in head:
            while (found := re.match(rb"([0-9a-f]+)\r\n", rest)) is not None:
                over = found.end() + int(found[1], 16)
                body, rest = body + rest[found.end() : over], rest[over + 2 :]
                if found[1] == b"0":
                    break
            else:
                body += b"(cut)"
        elif length is not None and not head.startswith(BODILESS):
            body, rest = rest[: int(length[1])], rest[int(length[1]) :]
        messages.append((head, body))
        said = rest
    return messages


BODILESS = (b"HTTP/1.1 204", b"HTTP/1.1 304")


def sent(request: bytes) -> tuple[bytes, list[bytes], bytes]:
    """aiohttp writes the names of headers that it knows in letters of its own; who traces a request stands anywhere."""
    head, _, body = request.partition(b"\r\n\r\n")
    start, *fields = head.split(b"\r\n")
    pairs = [field.partition(b":") for field in fields]
    return start, sorted(name.lower() + colon + value for name, colon, value in pairs), body


def gained(before: Any, after: Any) -> Any:
    """What has been added to counts, to any depth."""
    if isinstance(after, dict):
        more = {key: gained((before or {}).get(key), value) for key, value in after.items()}
        return {key: value for key, value in more.items() if value}
    if isinstance(after, list | tuple):
        pairs = zip(before or [0] * len(after), after, strict=True)
        more_of = [gained(each, value) for each, value in pairs]
        return more_of if any(more_of) else []
    return after - (before or 0)


async def outcome(it: One, upstream: Odd, conversation: Conversation) -> dict[str, Any]:
    """All that may be seen of a conversation, behind a request that has left a connection to the upstream idle."""
    pools = [lane.backend for lane in it.served.gateway.parts.pools["main"].lanes]
    await told(it, Conversation((HI,), ()))
    upstream.seen.clear()
    it.logged()
    before = it.figures()
    upstream.script.extend(list(pieces) for pieces in conversation.script)
    said = await told(it, conversation)
    await until(lambda: it.served.gateway.data_port.inflight == 0 and not pools[0]._gate.inflight)  # type: ignore[attr-defined]
    upstream.script.clear()
    for pattern, instead in VARYING:
        said = pattern.sub(instead, said)
    seen, log, after = list(map(sent, upstream.seen)), it.logged(), it.figures()
    await upstream.leave()
    it.clock.advance(7200)
    books = {name: kept for name, kept in it.books().items() if name in FORGETTING}
    return {"said": messages_in(said), "seen": seen, "log": log, "figures": gained(before, after), **books}


# What of the books has nothing left of the conversation before.
FORGETTING = {"load", "unread", "waits", "breaker"}


SLOWLY = settings(suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])


async def differences(a: One, b: One, upstream: Odd, conversation: Conversation) -> dict[str, Any]:
    of_a, of_b = [await outcome(it, upstream, conversation) for it in (a, b)]
    return {name: (of_a[name], of_b[name]) for name in of_a if of_a[name] != of_b[name]}


@SLOWLY
@given(conversation=SEVERAL)
async def test_the_stages_would_have_done_the_same(trio: list[One], upstream: Odd, conversation: Conversation) -> None:
    assert not await differences(trio[0], trio[1], upstream, conversation)


@SLOWLY
@given(conversation=SINGLE)
async def test_behind_aiohttp_they_would_have_too(trio: list[One], upstream: Odd, conversation: Conversation) -> None:
    """Of several requests that came together it answers none where the last one is malformed."""
    assert not await differences(trio[0], trio[2], upstream, conversation)


@SLOWLY
@given(conversation=SEVERAL, rounds=st.integers(0, 60), aborts=st.booleans())
async def test_a_client_that_leaves_at_any_moment_leaves_nothing_behind(
    trio: list[One], upstream: Odd, conversation: Conversation, rounds: int, aborts: bool
) -> None:
    it = trio[0]
    await told(it, Conversation((HI,), ()))
    upstream.script.extend(list(pieces) for pieces in conversation.script)
    transport, client = await connected(it)
    for piece in conversation.pieces:
        transport.write(piece)
    for _ in range(rounds):  # of the loop: it may have been answered by then, or not even read
        await asyncio.sleep(0)
    (transport.abort if aborts else transport.close)()
    await client.over
    connections = it.served.gateway.data_port._connections
    await until(lambda: not connections._plain and not connections.connections)
    await until(lambda: it.books()["load"] == (0, 0, 0, 0))
    upstream.script.clear()
    assert (await told(it, Conversation((HI,), ()))).startswith(b"HTTP/1.1 200 OK\r\n")
    await upstream.leave()
    it.clock.advance(7200)
