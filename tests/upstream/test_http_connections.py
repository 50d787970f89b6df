"""A kept connection that its server closes costs no request; a fresh one that it closes is a failure."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.errors import BackendError
from gateway.upstream.http_client import AiohttpClient, Http1Client
from tests.contracts.test_backend import http_backend, request_of
from tests.fixtures.gateways import config_of, gateway_of
from tests.fixtures.upstream import Upstream

ANSWER = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 16\r\n\r\n{"choices": [1]}'


@asynccontextmanager
async def closing_after(answers: int) -> AsyncIterator[tuple[str, list[int]]]:
    """A server that answers so many requests a connection, and closes it when the next one has come. -> its address,
    and the requests that came over each connection."""
    came: list[int] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        number = len(came)
        came.append(0)
        try:
            while came[number] <= answers:
                head = await reader.readuntil(b"\r\n\r\n")
                length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
                await reader.readexactly(length)
                came[number] += 1
                if came[number] <= answers:
                    writer.write(ANSWER)
        except asyncio.IncompleteReadError:
            pass
        finally:
            writer.close()

    async with await asyncio.start_server(connected, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1", came


async def test_a_request_that_a_kept_connection_did_not_survive_is_sent_again() -> None:
    async with closing_after(1) as (url, came):
        backend = http_backend(url)
        assert [(await backend.send(request_of())).status for _ in range(3)] == [200, 200, 200]
        await backend.close()
    assert came[:2] == [2, 2] and len(came) == 3


async def test_a_fresh_connection_that_is_closed_without_an_answer_is_a_failure() -> None:
    async with closing_after(0) as (url, came):
        backend = http_backend(url)
        for _ in range(2):  # also where the task has asked before
            with pytest.raises(BackendError, match="cannot be reached"):
                await backend.send(request_of())
        await backend.close()
    assert came == [1, 1]


@pytest.mark.parametrize(("section", "client"), [({}, Http1Client), ({"client": "aiohttp"}, AiohttpClient)])
async def test_the_configuration_names_the_client(
    tmp_path: Path, upstream: Upstream, section: dict[str, str], client: type[object]
) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url, **section}})
    async with gateway_of(config) as served:
        assert (await served.chat("hi")).text == "upstream answers: hi"
        assert (await served.chat("hi", stream=True)).status == 200
        backend: Any = served.gateway.parts.pools["main"].endpoints[0].backend
        assert type(backend._client) is client
