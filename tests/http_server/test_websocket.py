"""WebSockets pass through: realtime clients see their backend's frames, subprotocol and close codes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSMsgType, web

from tests.fixtures.gateways import NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.waiting import until
from tests.fixtures.wire import connected


class Realtime:
    """A backend that answers each frame with the same one."""

    def __init__(self) -> None:
        self.url = ""
        self.handshakes: list[web.Request] = []
        self.codes: list[int | None] = []
        self.refuse = 0
        self.location = "/"
        self.more: asyncio.Event | None = None  # a refusal streams, and ends once it is set
        self.close_after: tuple[int, bytes] | None = None

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.handshakes.append(request)
        if self.more is not None:
            response = web.StreamResponse(status=self.refuse)
            await response.prepare(request)
            await response.write(b"first")
            await self.more.wait()
            await response.write(b"last")
            return response
        if self.refuse:
            return web.json_response(
                {"error": "not today"}, status=self.refuse, headers={"x-reason": "holiday", "Location": self.location}
            )
        socket = web.WebSocketResponse(protocols=("realtime", "other"), max_msg_size=2**24)
        await socket.prepare(request)
        async for message in socket:
            if self.close_after is not None:
                code, reason = self.close_after
                await socket.close(code=code, message=reason)
            elif message.type is WSMsgType.TEXT:
                await socket.send_str(message.data)
            else:
                await socket.send_bytes(message.data)
        self.codes.append(socket.close_code)
        return socket


@pytest.fixture
async def backend() -> AsyncIterator[Realtime]:
    realtime = Realtime()
    application = web.Application()
    application.router.add_get("/v1/realtime", realtime.answer)
    runner = web.AppRunner(application, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    host, port = runner.addresses[0][:2]
    realtime.url = f"http://{host}:{port}/v1"
    yield realtime
    await runner.cleanup()


@asynccontextmanager
async def before(backend: Realtime, folder: Path, **server: Any) -> AsyncIterator[Served]:
    config = config_of(folder, {"main": {"adapter": "openai", "url": backend.url}}, server=server)
    async with gateway_of(config) as served:
        yield served


@pytest.fixture
async def served(backend: Realtime, tmp_path: Path) -> AsyncIterator[Served]:
    async with before(backend, tmp_path) as gateway:
        yield gateway


def opened(served: Served, **options: Any) -> Any:
    return served.session.ws_connect(f"{served.url}/v1/realtime?model=m", **options)


async def test_frames_go_both_ways_as_they_are(served: Served, backend: Realtime) -> None:
    async with opened(served, headers={"Authorization": "Bearer k", "OpenAI-Beta": "realtime=v1"}) as socket:
        await socket.send_str("grüße")
        assert await socket.receive_str() == "grüße"
        await socket.send_bytes(bytes(range(256)) * 4096)
        assert await socket.receive_bytes() == bytes(range(256)) * 4096
    handshake = backend.handshakes[0]
    assert handshake.headers["Authorization"] == "Bearer k"
    assert handshake.headers["OpenAI-Beta"] == "realtime=v1"
    assert handshake.query_string == "model=m"


async def test_the_backend_chooses_the_subprotocol(served: Served) -> None:
    async with opened(served, protocols=("unknown", "realtime")) as socket:
        assert socket.protocol == "realtime"


async def test_a_handshake_that_the_backend_refuses_is_refused(served: Served, backend: Realtime) -> None:
    backend.refuse = 403
    with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
        await opened(served)
    assert caught.value.status == 403
    assert caught.value.headers is not None
    assert caught.value.headers["x-reason"] == "holiday"
    assert len(backend.handshakes) == 1


async def test_the_reason_of_a_refusal_reaches_the_client(served: Served, backend: Realtime) -> None:
    backend.refuse = 402
    handshake = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    handshake["Sec-WebSocket-Key"] = "dGhlIHNhbXBsZSBub25jZQ=="
    answer = await served.get("/v1/realtime", handshake)
    assert (answer.status, answer.json, answer.headers["x-reason"]) == (402, {"error": "not today"}, "holiday")
    assert [request.headers["Upgrade"] for request in backend.handshakes] == ["websocket"]
    pool = served.gateway.parts.pools["main"]
    assert (pool.inflight, pool.load) == (0, 0)


HANDSHAKE = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13",
             "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ=="}  # fmt: skip


@pytest.mark.parametrize("status", [200, 204, 301, 307, 401, 404, 426, 429, 500, 503])
async def test_a_backend_that_does_not_upgrade_is_asked_once(served: Served, backend: Realtime, status: int) -> None:
    backend.refuse, backend.location = status, "/v1/realtime?again"
    async with served.session.get(f"{served.url}/v1/realtime", headers=HANDSHAKE, allow_redirects=False) as answer:
        assert (answer.status, answer.headers["x-reason"]) == (status, "holiday")
        assert status == 204 or await answer.json() == {"error": "not today"}
    assert len(backend.handshakes) == 1
    pool = served.gateway.parts.pools["main"]
    await until(lambda: (pool.inflight, pool.load) == (0, 0))


async def test_a_stream_in_place_of_an_upgrade_comes_as_it_is_written(served: Served, backend: Realtime) -> None:
    backend.refuse, backend.more = 200, asyncio.Event()
    async with served.session.get(f"{served.url}/v1/realtime", headers=HANDSHAKE) as answer:
        assert await answer.content.readexactly(5) == b"first"
        backend.more.set()
        assert await answer.content.read() == b"last"
    assert len(backend.handshakes) == 1
    pool = served.gateway.parts.pools["main"]
    await until(lambda: (pool.inflight, pool.load) == (0, 0))


async def test_a_wrong_handshake_is_a_502_and_asked_once(tmp_path: Path) -> None:
    asked: list[bytes] = []

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                     b"Sec-WebSocket-Accept: wrong\r\n\r\n")  # fmt: skip
        await reader.read()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        backend = Realtime()
        backend.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
        async with before(backend, tmp_path) as served:
            assert (await served.get("/v1/realtime", HANDSHAKE)).status == 502
    assert len(asked) == 1


async def test_nobody_there_is_a_502_and_no_upgrade(tmp_path: Path) -> None:
    gone = Realtime()
    gone.url = "http://127.0.0.1:9/v1"  # the discard port: nobody listens there
    async with before(gone, tmp_path) as served:
        with pytest.raises(aiohttp.WSServerHandshakeError) as caught:
            await opened(served)
        assert caught.value.status == 502


async def test_the_backends_close_code_and_reason_reach_the_client(served: Served, backend: Realtime) -> None:
    backend.close_after = (4001, b"session expired")
    async with opened(served) as socket:
        await socket.send_str("hello")
        message = await socket.receive()
        assert (message.type, message.data, message.extra) == (WSMsgType.CLOSE, 4001, "session expired")


async def test_the_clients_close_code_reaches_the_backend(served: Served, backend: Realtime) -> None:
    async with opened(served) as socket:
        await socket.close(code=4002)
    await until(lambda: backend.codes == [4002])


async def test_a_client_that_is_gone_ends_the_session_upstream(served: Served, backend: Realtime) -> None:
    socket = await opened(served)
    pool = served.gateway.parts.pools["main"]
    assert (pool.inflight, pool.load) == (1, 1)
    transport = socket._response.connection.transport
    transport.abort()
    await until(lambda: len(backend.codes) == 1)
    await until(lambda: (pool.inflight, pool.load, served.gateway.inflight.count) == (0, 0, 0))


async def test_a_frame_beyond_the_bound_is_refused_with_1009(backend: Realtime, tmp_path: Path) -> None:
    async with before(backend, tmp_path, max_body="64KiB") as served, opened(served) as socket:
        await socket.send_bytes(bytes(65 * 1024))
        message = await socket.receive()
        assert (message.type, message.data) == (WSMsgType.CLOSE, aiohttp.WSCloseCode.MESSAGE_TOO_BIG)


async def test_an_upgrade_in_http_1_0_is_ignored(backend: Realtime, tmp_path: Path) -> None:
    async with before(backend, tmp_path) as served, connected(served.url) as wire:
        await wire.send(
            b"GET /v1/realtime HTTP/1.0\r\nHost: x\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
            b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )
        answer = await wire.message()
    assert answer.status == 400  # the backend answers no handshake, but a plain request
    assert "upgrade" not in backend.handshakes[0].headers


async def test_a_gateway_that_stops_says_going_away(backend: Realtime, tmp_path: Path) -> None:
    async with aiohttp.ClientSession() as session:
        async with before(backend, tmp_path, drain_timeout="120s") as served:
            socket = await session.ws_connect(f"{served.url}/v1/realtime")
            receiving = asyncio.create_task(socket.receive())  # which answers the goodbye, so that nobody is cut
        message = await receiving
        assert (message.type, message.data) == (WSMsgType.CLOSE, aiohttp.WSCloseCode.GOING_AWAY)
    await until(lambda: backend.codes == [aiohttp.WSCloseCode.GOING_AWAY])


async def test_sessions_are_seen_once_they_are_over(served: Served) -> None:
    async with opened(served) as socket:
        await socket.send_str("x")
        await socket.receive_str()
    requests = served.gateway.parts.telemetry.requests
    await until(lambda: any(labels[-1] == "101" for labels in requests.values))
    assert sum(count for labels, count in requests.values.items() if labels[-1] == "101") == 1


async def test_many_sessions_do_not_mix(served: Served) -> None:
    async def session(number: int) -> None:
        async with opened(served) as socket:
            for i in range(5):
                await socket.send_str(f"{number} {i}")
                assert await socket.receive_str() == f"{number} {i}"

    await asyncio.gather(*(session(number) for number in range(20)))


async def test_a_socket_is_opened_for_the_endpoint_s_name_of_the_model(backend: Realtime, tmp_path: Path) -> None:
    section = {"adapter": "openai", "url": backend.url, "model": "chat", "models": {"voice": "gpt-realtime-2"}}
    async with (
        gateway_of(config_of(tmp_path, {"main": section}), NO_CACHE) as served,
        served.session.ws_connect(f"{served.url}/v1/realtime?model=voice&intent=talk") as socket,
    ):
        await socket.close()
    (handshake,) = backend.handshakes
    assert handshake.query == {"model": "gpt-realtime-2", "intent": "talk"}
