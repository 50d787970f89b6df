"""A client that does not read its answer holds nothing that others wait for, and is not waited for without end."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import orjson
import pytest

from gateway.dialects.sse import SSEParser
from gateway.http_server.slow_readers import ReadingPace, SlowReaders
from tests.fixtures import waiting
from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.wire import Message, Wire, wire_upstream

until = partial(waiting.until, timeout_s=20.0)
MB = 2**20
SIZE = 24 * MB  # more than all sockets between the backend and a client take
PLACES = 2
SMALL = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
GET = b"GET /v1/files/f/content HTTP/1.1\r\nHost: g\r\nConnection: close\r\n\r\n"


def chat(question: str, **fields: Any) -> bytes:
    body = orjson.dumps({"model": "m", "messages": [{"role": "user", "content": question}], **fields})
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nConnection: close\r\n"
    return b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body)


async def large(wire: Wire, request: Message) -> None:
    """Answers a question after a file with some bytes; events to a call that streams."""
    if b'"small"' in request.body:
        await wire.send(SMALL)
    elif b'"stream":true' in request.body:
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
        event = b'data: {"choices":[{"index":0,"delta":{"content":"%b"}}]}\n\n' % (b"x" * 10_000)
        for _ in range(SIZE // len(event)):
            await wire.send(b"%x\r\n%b\r\n" % (len(event), event))
        await wire.send(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    else:
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % SIZE)
        for _ in range(SIZE // MB):
            await wire.send(b"x" * MB)


@asynccontextmanager
async def behind(
    tmp_path: Path, *, policy: str = NO_CACHE, plain: bool = True, backend: Any = None, **server: Any
) -> AsyncIterator[Served]:
    """A gateway with few places. `plain` False: aiohttp reads all requests."""
    async with wire_upstream() as raw:
        raw.script = large
        section = {"adapter": "openai", "url": raw.url, "max_concurrency": PLACES, "adaptive": "off", **(backend or {})}
        async with gateway_of(config_of(tmp_path, {"main": section}, server=server), policy) as served:
            connections = served.gateway.data_port._connections
            assert connections is not None
            connections.accepts_plain = plain
            yield served


async def unread(stack: AsyncExitStack, served: Served, request: bytes = GET) -> Wire:
    """Send a request over a connection with small buffers, of which nothing is read."""
    host, _, port = served.url.removeprefix("http://").partition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 65536)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock, limit=65536)
    wire = Wire(reader, writer)
    stack.push_async_callback(wire.close)
    await wire.send(request)
    return wire


async def rest_of(wire: Wire, *, pause_s: float = 0.0) -> tuple[int, bool]:
    """Read to the end of the connection. Return the bytes of the body, framing included, and whether it is complete."""
    head, size, end = await wire.head(), 0, b""
    try:
        while piece := await wire.reader.read(65536):
            size, end = size + len(piece), (end + piece)[-5:]
            await asyncio.sleep(pause_s)
    except ConnectionError:
        pass
    length = head.all("content-length")
    return size, size == int(length[0]) if length else end == b"0\r\n\r\n"


def held(served: Served) -> int:
    return served.gateway.parts.pools["main"].inflight


def used(served: Served) -> int:
    return served.gateway.parts.unread.used


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize(
    ("policy", "sent"),
    [(NO_CACHE, GET), (NO_CACHE, chat("hi", stream=True)), (EXACT_CACHE, chat("hi", stream=True))],
)
async def test_an_unread_answer_gives_its_place_back_once_the_backend_is_done(
    tmp_path: Path, plain: bool, policy: str, sent: bytes
) -> None:
    async with behind(tmp_path, policy=policy, plain=plain) as served, AsyncExitStack() as stack:
        wires = [await unread(stack, served, sent) for _ in range(PLACES)]
        await until(lambda: used(served) > SIZE / 2)
        await until(lambda: held(served) == 0)
        assert (await served.chat("small")).status == 200
        for wire in wires:
            size, complete = await rest_of(wire)
            assert complete, (size, used(served))
            assert size > 0.9 * SIZE
        await until(lambda: used(served) == 0)


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("policy", [NO_CACHE, EXACT_CACHE])
async def test_all_unread_answers_share_one_memory(tmp_path: Path, plain: bool, policy: str) -> None:
    """Beyond it the backend has to wait, as long as the client may."""
    async with behind(tmp_path, policy=policy, plain=plain, max_unread="4MiB") as served, AsyncExitStack() as stack:
        wires = [await unread(stack, served, chat(str(n), stream=True)) for n in range(PLACES)]
        await until(lambda: used(served) > MB)
        most = 0
        for _ in range(100):
            await asyncio.sleep(0.01)
            most = max(most, used(served))
        assert most < 5 * MB
        assert held(served) == PLACES
        for wire in wires:
            size, complete = await rest_of(wire)
            assert complete, (size, used(served))
            assert size > 0.9 * SIZE
        await until(lambda: (used(served), held(served)) == (0, 0))


@pytest.mark.parametrize("plain", [True, False])
async def test_a_client_that_reads_nothing_is_cut_off(tmp_path: Path, plain: bool) -> None:
    limits = {"max_unread": "4MiB", "read_timeout": "300ms"}
    async with behind(tmp_path, plain=plain, **limits) as served, AsyncExitStack() as stack:
        wires = [await unread(stack, served) for _ in range(PLACES)]
        await until(lambda: used(served) > MB)
        await until(lambda: (used(served), held(served)) == (0, 0))
        for wire in wires:
            assert not (await rest_of(wire))[1]


@pytest.mark.parametrize("plain", [True, False])
async def test_a_client_that_reads_now_and_then_is_cut_off(tmp_path: Path, plain: bool) -> None:
    limits = {"max_unread": "4MiB", "read_timeout": "300ms", "read_min_rate": "100MiB"}
    async with behind(tmp_path, plain=plain, **limits) as served, AsyncExitStack() as stack:
        wire = await unread(stack, served)
        assert not (await rest_of(wire, pause_s=0.01))[1]
        await until(lambda: (used(served), held(served)) == (0, 0))


async def test_a_client_that_reads_slowly_enough_gets_all(tmp_path: Path) -> None:
    limits = {"max_unread": "4MiB", "read_timeout": "2s"}
    async with behind(tmp_path, **limits) as served, AsyncExitStack() as stack:
        wire = await unread(stack, served)
        assert await rest_of(wire, pause_s=0.001) == (SIZE, True)


async def test_an_unread_answer_ends_at_the_total_of_its_backend(tmp_path: Path) -> None:
    timeouts = {"timeouts": {"total": "500ms"}}
    async with behind(tmp_path, backend=timeouts, max_unread="1MiB") as served, AsyncExitStack() as stack:
        wires = [await unread(stack, served) for _ in range(PLACES)]
        await until(lambda: held(served) == PLACES)
        await until(lambda: held(served) == 0)
        for wire in wires:
            assert not (await rest_of(wire))[1]


@pytest.mark.parametrize("plain", [True, False])
async def test_whole_answers_beyond_the_memory_cost_the_slowest_clients(tmp_path: Path, plain: bool) -> None:
    """A hit in memory is written at once, to any number of clients."""
    body = b'{"choices":[{"index":0,"message":{"role":"assistant","content":"%b"}}]}' % (b"x" * 12 * MB)

    async def whole(wire: Wire, _: Message) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n")
        await wire.send(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))

    async with wire_upstream() as raw:
        raw.script = whole
        section = {"adapter": "openai", "url": raw.url}
        server = {"max_unread": "20MiB"}
        config = config_of(tmp_path, {"main": section}, server=server)
        async with gateway_of(config, NO_CACHE) as served, AsyncExitStack() as stack:
            connections = served.gateway.data_port._connections
            assert connections is not None
            connections.accepts_plain = plain
            wires = []
            for n in range(6):
                wires.append(await unread(stack, served, chat(str(n))))
                await until(lambda n=n: used(served) > min(n + 1, 2) * 6 * MB)
                assert not served.gateway.parts.unread.is_exceeded
            cut = 0
            for wire in wires:
                try:
                    cut += not (await rest_of(wire))[1]
                except asyncio.IncompleteReadError:  # not even its head was taken
                    cut += 1
            assert 2 <= cut <= 5
            await until(lambda: used(served) == 0)


def slow_readers(served: Served) -> SlowReaders:
    connections = served.gateway.data_port._connections
    assert connections is not None
    return connections.slow_readers


async def all_unread(stack: AsyncExitStack, served: Served) -> list[ReadingPace]:
    """Leave a stream unread at each place. Return their paces once none of them is read further ahead."""
    for n in range(PLACES):
        await unread(stack, served, chat(str(n), stream=True))
    paces = slow_readers(served)._paces
    await until(lambda: len(paces) == PLACES and not any(pace.has_room for pace in paces))
    return list(paces)


def spend_credit(paces: list[ReadingPace]) -> None:
    """Have the next check cut off the clients, as if `server.read_timeout` had passed."""
    for pace in paces:
        pace.credit_s = -1.0


@pytest.mark.parametrize("plain", [True, False])
async def test_bytes_of_a_client_that_is_cut_off_count_until_they_are_freed(tmp_path: Path, plain: bool) -> None:
    """uvloop frees them after it has read all sockets. Other answers would fill the memory a second time."""
    async with behind(tmp_path, plain=plain, max_unread="4MiB") as served, AsyncExitStack() as stack:
        paces, memory = await all_unread(stack, served), served.gateway.parts.unread
        before = memory.used
        memory.limit = before - 1
        assert memory.is_exceeded
        for pace in paces:
            pace.cut_off("a test")
        assert (memory.used, memory.leaving) == (before, before)
        assert not memory.has_room
        assert not memory.is_exceeded  # nobody else has to go for bytes that are about to leave
        await until(lambda: (memory.used, memory.leaving) == (0, 0))


@pytest.mark.parametrize("plain", [True, False])
async def test_nothing_of_an_answer_waits_for_the_garbage_collector_once_its_client_is_cut_off(
    tmp_path: Path, plain: bool
) -> None:
    """An answer that is cut off has a batch of up to 256 KiB in its frames."""
    async with behind(tmp_path, plain=plain, max_unread="4MiB") as served, AsyncExitStack() as stack:
        gc.collect()
        gc.disable()
        stack.callback(gc.enable)
        paces = await all_unread(stack, served)
        assert parsers() == PLACES
        spend_credit(paces)
        del paces
        await until(lambda: (used(served), held(served)) == (0, 0))
        await until(lambda: parsers() == 0)


def parsers() -> int:
    """Return how many streams are in memory."""
    return sum(isinstance(each, SSEParser) for each in gc.get_objects())


async def test_freed_memory_is_given_back_once_nobody_reads_slowly(tmp_path: Path) -> None:
    given = list[int]()
    async with behind(tmp_path, max_unread="4MiB") as served, AsyncExitStack() as stack:
        memory, readers = served.gateway.parts.unread, slow_readers(served)
        readers.give_back = lambda: given.append(memory.used)
        spend_credit(await all_unread(stack, served))
        await until(lambda: given == [0])
        assert not readers._paces
