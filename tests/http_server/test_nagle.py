"""A server that writes its answers in pieces and keeps Nagle's algorithm on, as Python's own http.server does."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from tests.fixtures.gateways import NO_CACHE, config_of, gateway_of
from tests.fixtures.upstream import chunk, completion

FIRST, MOST = 12, 200  # answers: before an acknowledgement is delayed at all, and of which one has to come in time
DELAYED_ACK_S = 0.04  # Linux' shortest


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    body = json.dumps(completion({"model": "m"}, "yes")).encode()
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            await reader.readexactly(length)
            start = f"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
            writer.write(start.encode())
            await asyncio.sleep(0)  # the head goes out by itself
            writer.write(body)
    except (asyncio.IncompleteReadError, ConnectionResetError):
        pass
    finally:
        writer.close()


async def stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Each event in three pieces, which go out by themselves where nothing is unacknowledged."""
    writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 0)
    event = chunk({"model": "m"}, {"content": "yes"})
    try:
        while head := await reader.readuntil(b"\r\n\r\n"):
            await reader.readexactly(int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0]))
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n")
            for _ in range(5):
                for piece in (b"%x\r\n" % len(event), event, b"\r\n"):
                    writer.write(piece)
                    await asyncio.sleep(0)
            writer.write(b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n")
    except (asyncio.IncompleteReadError, ConnectionResetError):
        pass
    finally:
        writer.close()


async def some_are_in_time(ask: Callable[[int], Awaitable[None]]) -> bool:
    """Not a measurement: without the acknowledgement in time each answer but the first few takes 40 ms. One that takes
    less did not wait for it; on a busy machine it may take many until one does."""
    for i in range(FIRST + MOST):
        started = time.perf_counter()
        await ask(i)
        if i >= FIRST and time.perf_counter() - started < DELAYED_ACK_S:
            return True
    return False


async def test_no_stream_waits_for_a_delayed_acknowledgement(tmp_path: Path) -> None:
    """Nor does one that is relayed, though the acknowledgement is asked for once an answer."""
    server = await asyncio.start_server(stream, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    backend = {"adapter": "openai", "url": f"http://{host}:{port}/v1"}
    async with gateway_of(config_of(tmp_path, {"main": backend}), NO_CACHE) as it:

        async def ask(_: int) -> None:
            assert (await it.chat("question", stream=True)).body.count(b"yes") == 5

        assert await some_are_in_time(ask)
    server.close()
    await server.wait_closed()


async def test_no_answer_waits_for_a_delayed_acknowledgement(tmp_path: Path) -> None:
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with gateway_of(
        config_of(tmp_path, {"main": {"adapter": "openai", "url": f"http://{host}:{port}/v1"}})
    ) as it:
        await it.chat("warm up")

        async def ask(i: int) -> None:
            assert (await it.chat(f"question w{i} of x{i}")).text == "yes"

        assert await some_are_in_time(ask)
    server.close()
    await server.wait_closed()
