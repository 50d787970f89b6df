"""An answer that tells when something has come: within the callback that brought it, and no later than it has to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gateway.upstream.http1.client import Client
from gateway.upstream.http1.connection import MAX_UNREAD_BYTES
from gateway.upstream.http1.errors import ConnectionBroken, TimedOut
from gateway.upstream.http1.headers import request_head
from gateway.upstream.http1.response import HttpResponse
from tests.fixtures.http_clients import deadline
from tests.fixtures.waiting import until
from tests.fixtures.wire import Message, Wire, WireUpstream

GET = request_head("GET", "/", "h", [], b"")
LONG_S, SHORT_S = 60.0, 0.05
SILENCE_S = 5.0  # longer than any two parts are apart that come at once, however busy the machine


class Told:
    """Takes what an answer has each time it tells."""

    def __init__(self, answer: HttpResponse, *, silence_s: float = LONG_S, total_s: float = LONG_S) -> None:
        self.answer = answer
        self.got: list[bytes] = []
        self.over = False
        self.error: BaseException | None = None
        self.take()
        answer.subscribe(self.take, silence_s, asyncio.get_running_loop().time() + total_s)

    def take(self) -> None:
        try:
            while piece := self.answer.poll():
                self.got.append(piece)
            self.over = piece is not None
        except Exception as error:
            self.error = error


def scripted(server: WireUpstream, *parts: bytes, then: bytes = b"") -> asyncio.Event:
    """The server sends the parts, each when the event is set."""
    go_on = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for part in parts:
            await go_on.wait()
            go_on.clear()
            await wire.send(part)
        if not then:
            await asyncio.Event().wait()
        wire.writer.close()

    server.script = script
    return go_on


async def test_each_piece_is_told_of_and_the_end(client: Client, server: WireUpstream) -> None:
    go_on = scripted(server, b"1\r\na\r\n", b"1\r\nb\r\n1\r\nc\r\n", b"1\r\nd\r\n0\r\n\r\n")
    told = Told(await client.send(GET, repeatable=True, deadline=deadline()))
    for came in ([b"a"], [b"a", b"bc"], [b"a", b"bc", b"d"]):
        assert not told.over
        go_on.set()
        await until(lambda came=came: told.got == came)
    await until(lambda: told.over)
    assert client.pool.open == 1, "the connection is kept"
    told.answer.subscribe(None, 0.0, 0.0)  # nobody's any more


async def test_half_a_piece_tells_nobody(client: Client, server: WireUpstream) -> None:
    go_on = scripted(server, b"5", b"\r\n", b"hello\r\n0\r\n\r\n")
    answer = await client.send(GET, repeatable=True, deadline=deadline())
    woken = []
    answer.subscribe(lambda: woken.append(answer.poll()), LONG_S, deadline())
    for _ in range(3):
        go_on.set()
        await until(lambda: not go_on.is_set())
    await until(lambda: answer.whole)
    assert woken == [b"hello"]


@pytest.mark.parametrize("then", [b"close"])
async def test_a_connection_that_ends_is_told_of(client: Client, server: WireUpstream, then: bytes) -> None:
    go_on = scripted(server, b"1\r\na\r\n", then=then)
    told = Told(await client.send(GET, repeatable=True, deadline=deadline()))
    go_on.set()
    await until(lambda: told.error is not None)
    assert (told.got, type(told.error)) == ([b"a"], ConnectionBroken)


async def test_silence_fails_the_exchange_and_each_piece_puts_it_off(client: Client, server: WireUpstream) -> None:
    go_on = scripted(server, *[b"1\r\na\r\n"] * 6)
    loop = asyncio.get_running_loop()
    told = Told(await client.send(GET, repeatable=True, deadline=deadline()), silence_s=SILENCE_S)
    for count in range(6):
        asked = loop.time()  # no piece is heard before
        go_on.set()
        await until(lambda count=count: len(told.got) > count)
    assert told.error is None
    await until(lambda: told.error is not None)
    assert isinstance(told.error, TimedOut)
    assert loop.time() >= asked + 0.99 * SILENCE_S
    await until(lambda: client.pool.open == 0)


async def test_all_of_it_has_to_come_in_time_whatever_comes_meanwhile(client: Client, server: WireUpstream) -> None:
    async def script(wire: Wire, _: Message) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        while True:
            await wire.send(b"1\r\na\r\n")
            await asyncio.sleep(SHORT_S / 20)

    server.script = script
    told = Told(await client.send(GET, repeatable=True, deadline=deadline()), total_s=SHORT_S)
    await until(lambda: told.error is not None)
    assert isinstance(told.error, TimedOut)


PIECES = 8192  # 4 KiB each: more than all sockets take


def sending(server: WireUpstream) -> Callable[[], Awaitable[int]]:
    """The server sends `PIECES`. Return a function that returns how many it sent once it sends no more."""
    sent, piece = 0, b"1000\r\n%s\r\n" % (b"x" * 4096)

    async def script(wire: Wire, _: Message) -> None:
        nonlocal sent
        await wire.send(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        for _i in range(PIECES):
            wire.writer.write(piece)
            await wire.writer.drain()
            sent += 1
        wire.writer.write(b"0\r\n\r\n")

    async def settled() -> int:
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(SHORT_S)
        return sent

    server.script = script
    return settled


async def test_while_nobody_waits_nothing_is_late_and_nothing_is_read(client: Client, server: WireUpstream) -> None:
    """A client that does not read is no silence of the server's."""
    settled = sending(server)
    answer = await client.send(GET, repeatable=True, deadline=deadline())
    answer.subscribe(lambda: None, SHORT_S, deadline())
    answer.subscribe(None, SHORT_S, deadline())
    had = answer.unread
    await asyncio.sleep(3 * SHORT_S)
    assert await settled() < PIECES
    assert answer.error is None
    assert answer.unread == had
    told = Told(answer)
    await until(lambda: told.over)
    assert sum(map(len, told.got)) == PIECES * 4096


async def test_what_is_told_and_not_taken_is_bounded(client: Client, server: WireUpstream) -> None:
    settled = sending(server)
    answer = await client.send(GET, repeatable=True, deadline=deadline())
    answer.subscribe(lambda: None, LONG_S, deadline())
    await until(lambda: answer.unread > MAX_UNREAD_BYTES)
    assert await settled() < PIECES
    assert MAX_UNREAD_BYTES < answer.unread < MAX_UNREAD_BYTES + 2**20
    told = Told(answer)
    await until(lambda: told.over)
    assert sum(map(len, told.got)) == PIECES * 4096
