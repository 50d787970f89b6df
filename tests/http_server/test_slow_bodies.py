"""A body that does not come holds nothing that others wait for, and is not waited for without end."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from gateway.http_server.request_body import BUFFER_BYTES
from tests.fixtures.gateways import NO_CACHE, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until
from tests.fixtures.wire import Wire, connected


def upload(length: int, chunked: bool) -> bytes:
    framing = b"Transfer-Encoding: chunked" if chunked else b"Content-Length: %d" % length
    return b"POST /v1/files HTTP/1.1\r\nHost: g\r\n%b\r\n\r\n" % framing


@pytest.mark.parametrize("chunked", [True, False])
async def test_bodies_that_do_not_come_take_no_place(upstream: Upstream, tmp_path: Path, chunked: bool) -> None:
    backend = {"adapter": "openai", "url": upstream.url, "max_concurrency": 1}
    async with (
        gateway_of(config_of(tmp_path, {"main": backend}), NO_CACHE) as served,
        connected(served.url) as first,
        connected(served.url) as second,
    ):
        for wire in (first, second):
            await wire.send(upload(100, chunked) + (b"1\r\nx\r\n" if chunked else b"x"))
        await until(lambda: served.gateway.inflight.count == 2)
        assert (await served.chat("hi")).status == 200
        assert (await served.get("/v1/models")).status == 200
        assert served.gateway.parts.pools["main"].inflight == 0
        await first.send(b"63\r\n" + b"y" * 99 + b"\r\n0\r\n\r\n" if chunked else b"y" * 99)
        answer = await first.message()
        assert (answer.status, answer.body) == (200, b"x" + b"y" * 99)


@pytest.mark.parametrize("upgrade", [b"", b"Connection: upgrade\r\nUpgrade: websocket\r\n"])
async def test_uploads_of_one_tenant_leave_places_to_the_others(
    upstream: Upstream, tmp_path: Path, upgrade: bytes
) -> None:
    """Four bodies are longer than the buffer and never end. Two hold a place, and the others wait for their turn."""
    backend = {"adapter": "openai", "url": upstream.url, "max_concurrency": 4, "adaptive": "off"}
    async with gateway_of(config_of(tmp_path, {"main": backend}), NO_CACHE) as served, AsyncExitStack() as stack:
        pool, piece = served.gateway.parts.pools["main"], b"x" * (2 * BUFFER_BYTES)
        wires = [await stack.enter_async_context(connected(served.url)) for _ in range(4)]
        for wire in wires:
            head = upload(2 * len(piece), chunked=False).replace(b"Host", b"Authorization: Bearer slow\r\nHost")
            await wire.send(head.replace(b"Host", upgrade + b"Host") + piece)
        await until(lambda: pool.inflight == 2)
        answers = [await served.chat(str(n), headers={"authorization": "Bearer other"}) for n in range(8)]
        assert {answer.status for answer in answers} == {200}
        assert pool.inflight == 2
        for wire in wires:
            await wire.send(piece)
        for wire in wires:
            assert (await wire.message()).status == 200
        await until(lambda: pool.inflight == 0)


async def slow(upstream: Upstream, folder: Path, sent: int, **server: Any) -> str:
    """The error of an upload that stops after `sent` bytes."""
    config = config_of(folder, {"main": {"adapter": "openai", "url": upstream.url}}, server=server)
    async with gateway_of(config, NO_CACHE) as served, connected(served.url) as wire:
        await wire.send(upload(10 * BUFFER_BYTES, chunked=False) + bytes(sent))
        answer = await wire.message()
        assert answer.status == 408
        return answer.body.decode()


async def test_a_body_that_stops_is_a_408_that_names_the_setting(upstream: Upstream, tmp_path: Path) -> None:
    assert "nothing more of the body arrived within 0.2 s (server.body_timeout)" in await slow(
        upstream, tmp_path, 100_000, body_timeout="200ms"
    )


async def test_a_body_has_a_total(upstream: Upstream, tmp_path: Path) -> None:
    assert "within 0.3 s (server.body_total)" in await slow(
        upstream, tmp_path, 10, body_timeout="60s", body_total="300ms"
    )


async def test_a_body_has_a_least_rate(upstream: Upstream, tmp_path: Path) -> None:
    """A byte now and then meets `body_timeout`."""
    server = {"body_timeout": "500ms", "body_min_rate": "1MiB"}
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, server=server)
    async with gateway_of(config, NO_CACHE) as served, connected(served.url) as wire:
        dripping = asyncio.create_task(drip(wire))
        answer = await wire.message()
        dripping.cancel()
    assert answer.status == 408
    assert "less than 1048576 bytes a second (server.body_min_rate)" in answer.body.decode()


async def drip(wire: Wire) -> None:
    await wire.send(upload(BUFFER_BYTES, chunked=False))
    with suppress(ConnectionError):
        for _ in range(BUFFER_BYTES):
            await wire.send(b"x")
            await asyncio.sleep(0.05)
