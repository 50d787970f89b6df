"""The gateway reads what an MCP server announces in its own stream, in whatever content coding that stream is."""

from __future__ import annotations

import asyncio
import zlib
from pathlib import Path

import pytest

from tests.fixtures.gateways import config_of, gateway_of
from tests.fixtures.wire import Message, Wire, connected, wire_upstream
from tests.http_server.test_coded_answers import Compressor, head_of
from tests.http_server.test_large_events import CLIENTS
from tests.http_server.test_live_streams import chunked

LISTS = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 10m}, share: global, mcp: {results: {tools/list: {ttl: 5m, scope: public}}}}
    route: {backend: main}
"""
LIST = b'{"jsonrpc":"2.0","id":1,"method":"tools/list","params":{}}'
CHANGED = b'data: {"jsonrpc":"2.0","method":"notifications/tools/list_changed"}\n\n'
LISTEN = b"GET /mcp HTTP/1.1\r\nHost: g\r\nAccept: text/event-stream\r\nAccept-Encoding: gzip, deflate\r\n\r\n"


@CLIENTS
@pytest.mark.parametrize("insists", [False, True], ids=["if asked", "always"])
async def test_a_change_that_comes_in_a_compressed_stream_ends_the_list(
    tmp_path: Path, client: str, insists: bool
) -> None:
    changes, lists = asyncio.Event(), 0

    async def script(wire: Wire, request: Message) -> None:
        nonlocal lists
        if not request.start.startswith("GET"):
            lists += 1
            body = b'{"jsonrpc":"2.0","id":1,"result":{"tools":[{"name":"t%d"}]}}' % lists
            head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
            await wire.send(head % len(body) + body)
            return
        compresses = insists or "gzip" in "".join(request.all("accept-encoding"))
        coder = Compressor(16 + zlib.MAX_WBITS)
        await wire.send(head_of("text/event-stream", "gzip" if compresses else "identity"))
        for event in (b": open\n\n", CHANGED):
            await wire.send(chunked(coder.piece(event) if compresses else event))
            await changes.wait()
        await wire.reader.read(1)

    async with wire_upstream() as endpoint:
        endpoint.script = script
        config = config_of(tmp_path, {"main": {"adapter": "mcp", "url": endpoint.url, "client": client}})
        async with gateway_of(config, LISTS) as served, connected(served.url) as wire:
            await wire.send(LISTEN)
            pieces = wire.chunks(await wire.head())
            await anext(pieces)
            for _ in range(2):
                assert b"t1" in (await served.post("/mcp", LIST)).body
            changes.set()
            await anext(pieces)
            assert b"t2" in (await served.post("/mcp", LIST)).body
