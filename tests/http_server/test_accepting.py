"""A client that comes as a server of asyncio's closes is told so, whatever the turn (tests/fixtures/accepting.py)."""

from __future__ import annotations

import asyncio
import socket

import pytest


@pytest.mark.parametrize("turns", range(8))
async def test_a_client_that_comes_as_a_server_closes_is_closed(turns: int) -> None:
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        client.setblocking(False)
        for _ in range(turns):
            await asyncio.sleep(0)
        server.close()
        try:
            async with asyncio.timeout(60):
                assert await asyncio.get_running_loop().sock_recv(client, 1) == b""
        except ConnectionResetError:
            pass
