"""The data port: sockets, limits, health, drain. Turns aiohttp's requests into ours and our responses into bytes."""

from __future__ import annotations

import asyncio
import logging
import os
import re
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from ssl import SSLContext
from typing import Any

import orjson
from aiohttp import web

from gateway.bodies import Ready, close_body
from gateway.config.schema import Server as ServerConfig
from gateway.data_port.compression import compressed
from gateway.data_port.connection import refusal
from gateway.data_port.cors import CrossOrigin
from gateway.data_port.front import Front
from gateway.data_port.request_body import HttpBody, taken_whole
from gateway.data_port.timed_server import TimedServer
from gateway.data_port.websocket import relay
from gateway.data_port.wire import Prebuilt, whole
from gateway.errors import StreamBroken
from gateway.messages import ByteStream, Event, EventStream, Request, Response, Tunnel, Whole
from gateway.observing.trace import Trace
from gateway.pipeline import Handler
from gateway.ports import Clock
from gateway.response_headers import answer_headers

HTTP_LOG = logging.getLogger("nearhit.http")
ABSOLUTE = re.compile(r"https?://[^/?#]*(.*)", re.IGNORECASE)
REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
# Events that are all there already go out in pieces of this size: one write an event costs five times as much.
BURST_BYTES = 64 * 1024
# In a hand-over: how long clients that keep a connection may take to ask once more. Those that are busy ask sooner.
LEAVE_S = 3.0
Sendable = web.StreamResponse | Prebuilt
Health = Callable[[], Awaitable[tuple[bool, dict[str, Any]]]]


class DataPort:
    """`health` answers /readyz: whether it is ready, and what it looked at; `table` is the policy in force. `tls` None:
    plain HTTP. `given` listens already, and goes on to when this port is stopped."""

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        health: Health,
        front: Front,
        table: Callable[[], object],
        tls: SSLContext | None = None,
        given: socket.socket | None = None,
    ) -> None:
        self._config = config
        self._front = front
        self._cors = CrossOrigin(config.cors)
        self._fits = bool(config.cors.origins) or config.compress
        self._table = table
        self._clock = clock
        self._health = health
        self._given = given
        self._server: TimedServer | None = None
        self._runner: web.ServerRunner | None = None
        self._tls = tls
        self.inflight = 0
        self.draining = False
        self._stopping = asyncio.Event()

    async def start(self, handler: Handler) -> tuple[str, int]:
        """Listens; returns the address, with the port that the system chose where 0 was asked for."""
        self._handler = handler
        server = TimedServer(
            self._serve,
            head_timeout_s=self._config.header_timeout,
            handler_cancellation=True,  # a client that leaves cancels its request, upstream too
            access_log=None,
            logger=HTTP_LOG,
            keepalive_timeout=self._config.idle_timeout,
            max_line_size=self._config.max_header,
            max_field_size=self._config.max_header,
            lingering_time=2.0,
            auto_decompress=False,  # what passes through stays as it is
        )
        self._runner = web.ServerRunner(server, shutdown_timeout=self._config.drain_timeout)
        await self._runner.setup()
        host, port = self._config.listen
        if self._given is None:
            await web.TCPSite(self._runner, host, port, backlog=1024, ssl_context=self._tls).start()
        else:
            await web.SockSite(self._runner, self._given, backlog=1024, ssl_context=self._tls).start()
        self._server = server
        address: tuple[str, int] = self._runner.addresses[0][:2]
        return address

    async def stop(self) -> None:
        """Takes no more connections, lets what is in flight end within `drain_timeout`, then cuts."""
        self.draining = True
        self._stopping.set()
        if self._runner is not None:
            if self._given is not None:
                await self._take_leave(self._runner)
            await self._runner.cleanup()

    async def _take_leave(self, runner: web.ServerRunner) -> None:
        """Others listen already: connections that are open are told with their next answer that it was the last. One
        that is cut while its client sends a request is a request that is lost."""
        for site in list(runner.sites):
            await site.stop()
        if self._server is None:
            return
        self._server.leaving = True
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._server.emptied()

    async def _serve(self, http: web.BaseRequest) -> Sendable:
        path, _, query = _target(http).partition("?")
        if http.headers.get("transfer-encoding", "chunked").lower() != "chunked":
            # The parser takes `gzip, chunked`; another one on the way may not, and see the end elsewhere.
            return refusal(400, "Transfer-Encoding: expected chunked alone")
        if path in ("/healthz", "/readyz") and http.method in ("GET", "HEAD"):
            return await self._report(path)
        preflight = self._cors.preflight(http.method, http.headers) if http.method == "OPTIONS" else None
        if preflight is not None:
            return web.Response(status=204, headers=preflight)
        request_id, table, body = _request_id(http), self._table(), taken_whole(http)
        key = None if body is None else self._front.key(http, body)
        if key is not None:
            hit = self._front.answer(http, key, request_id, path)
            if hit is not None:
                return hit
        self.inflight += 1
        try:
            request = Request(
                id=request_id,
                method=http.method,
                path=path,
                query=query,
                headers=http.headers,
                source=HttpBody(http, body, max_bytes=self._config.max_body, timeout_s=self._config.body_timeout),
                received=self._clock.monotonic(),
                trace=Trace(self._clock),
                peer=http.remote or "",
            )
            response = await self._handler(request)
            if self._fits:
                response = await self._fitted(http, response)
            if key is not None:
                self._front.learn(key, table, request, response)
            return await self._send(http, request, response)
        finally:
            self.inflight -= 1

    async def _fitted(self, http: web.BaseRequest, response: Response) -> Response:
        """The answer as this client may and can take it."""
        headers = self._cors.added(http.headers, response.headers)
        if headers is not None:
            response = replace(response, headers=tuple(headers))
        return await compressed(http.headers, response) if self._config.compress else response

    async def _report(self, path: str) -> web.Response:
        if path == "/healthz":
            return web.Response(text="ok\n")
        ready, seen = (False, {"draining": True}) if self.draining else await self._health()
        body = orjson.dumps({"ready": ready, **seen})
        return web.Response(status=200 if ready else 503, body=body, content_type="application/json")

    async def _send(self, http: web.BaseRequest, request: Request, response: Response) -> Sendable:
        headers = answer_headers(response.headers, request.id, request.trace, response.provenance)
        if isinstance(response.body, Whole):
            if http.method == "HEAD":
                return _headless(response.status, headers)
            headers = [(name, value) for name, value in headers if name.lower() != "content-length"]
            return whole(http, response.status, headers, response.body.data)
        try:
            if isinstance(response.body, Tunnel):
                return await relay(
                    http, response.body.upstream, max_frame=self._config.max_body, stopping=self._stopping
                )
            return await self._relay(http, response, headers)
        finally:
            await close_body(response.body)

    async def _relay(
        self, http: web.BaseRequest, response: Response, headers: list[tuple[str, str]]
    ) -> web.StreamResponse:
        out = web.StreamResponse(status=response.status, headers=headers)
        await out.prepare(http)
        try:
            if isinstance(response.body, EventStream):
                await _write_events(out, response.body)
            elif isinstance(response.body, ByteStream):
                async for chunk in response.body.chunks:
                    await out.write(chunk)
            await out.write_eof()
        except StreamBroken:
            # No dialect to say it in: the connection is cut, so that the client sees an incomplete body.
            if http.transport is not None:
                http.transport.abort()
        return out


async def _write_events(out: web.StreamResponse, body: EventStream) -> None:
    if isinstance(body.events, Ready):
        for burst in _bursts(body.events.rest()):
            await out.write(burst)
        return
    async for event in body.events:
        await out.write(event.frame())


def _bursts(events: tuple[Event, ...]) -> list[bytes]:
    bursts: list[bytes] = []
    frames: list[bytes] = []
    size = 0
    for event in events:
        frame = event.frame()
        frames.append(frame)
        size += len(frame)
        if size >= BURST_BYTES:
            bursts.append(b"".join(frames))
            frames, size = [], 0
    return [*bursts, b"".join(frames)] if frames else bursts


def _headless(status: int, headers: list[tuple[str, str]]) -> web.Response:
    """An answer to HEAD: the length of a body that is not sent."""
    out = web.Response(status=status)
    out.headers.clear()
    for name, value in headers:
        out.headers.add(name, value)
    return out


def _target(http: web.BaseRequest) -> str:
    """Path and query as sent. Clients of a proxy send the absolute form (RFC 9112 section 3.2.2): whose host it names
    decides nothing here, as the backend is the policy's choice."""
    target = http.raw_path
    absolute = None if target.startswith("/") else ABSOLUTE.fullmatch(target)
    if absolute is None:
        return target
    return absolute[1] if absolute[1].startswith("/") else "/" + absolute[1]


def _request_id(http: web.BaseRequest) -> str:
    """The client's, where it is harmless in a log and a header; our own otherwise."""
    given = http.headers.get("x-request-id")
    if given is not None and REQUEST_ID.fullmatch(given):
        return given
    return os.urandom(12).hex()
