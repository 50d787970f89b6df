"""A server that writes its answers in pieces and keeps Nagle's algorithm on, as Python's own http.server does."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from pathlib import Path

from tests.fixtures.gateways import config_of, gateway_of
from tests.fixtures.upstream import completion

ANSWERS = 24
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


async def test_no_answer_waits_for_a_delayed_acknowledgement(tmp_path: Path) -> None:
    """Not a measurement: without the acknowledgement in time each answer but the first few takes 40 ms. One of the last
    dozen that takes less, on however busy a machine, did not wait for it."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    async with gateway_of(
        config_of(tmp_path, {"main": {"adapter": "openai", "url": f"http://{host}:{port}/v1"}})
    ) as it:
        await it.chat("warm up")
        took = []
        for i in range(ANSWERS):
            started = time.perf_counter()
            assert (await it.chat(f"question w{i} of x{i}")).text == "yes"
            took.append(time.perf_counter() - started)
        assert min(took[ANSWERS // 2 :]) < DELAYED_ACK_S
    server.close()
    await server.wait_closed()
