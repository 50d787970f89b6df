"""Converts requests that aiohttp has read, and the answers to them. These are all requests that are not plain
(`ServerConnections`)."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import replace

from aiohttp import HttpVersion11, web
from multidict import CIMultiDictProxy

from gateway.context import RequestContext, resolve_response
from gateway.dialects.targets import target_of
from gateway.errors import UpstreamStreamError
from gateway.http_server.connections import closing_response, refused_version
from gateway.http_server.request_body import HttpBody, read_buffered
from gateway.http_server.response_writer import body_nowait, comment_of, keep_alive_of
from gateway.http_server.service import RequestService
from gateway.http_server.websocket import relay
from gateway.http_server.wire import Prebuilt, prebuilt, unbuffered
from gateway.messages import Body, ByteStream, Comment, Event, EventStream, FullBody, Response, Tunnel
from gateway.streams import ObservedStream, as_observed, close_body

ABSOLUTE = re.compile(r"https?://[^/?#]*(.*)", re.IGNORECASE)
Sendable = web.StreamResponse | Prebuilt


class AiohttpEdge:
    def __init__(self, service: RequestService) -> None:
        self._service = service

    async def __call__(self, http: web.BaseRequest) -> Sendable:
        service = self._service
        path, query = target_of(http.method, _target(http))
        if (refusal := refused_version(http.version)) is not None:
            return closing_response(*refusal)
        if http.headers.get("transfer-encoding", "chunked").lower() != "chunked":
            # aiohttp's parser accepts `gzip, chunked`. Another parser on the way may not, and find another end.
            return closing_response(400, "Transfer-Encoding: expected chunked alone")
        direct = None if http.method == "POST" else service.direct(http.method, path, http.headers)
        if direct is not None:
            response = await resolve_response(direct)
            assert isinstance(response.body, FullBody)
            return prebuilt(http, response.status, response.headers, response.body.data)
        source = HttpBody(http, read_buffered(http), service.config)
        request = service.request(http.method, path, query, _headers_of(http), source, http.remote or "")
        answer = service.answer(request)
        service.inflight.count += 1
        try:
            return await self._send(http, request, await resolve_response(answer))
        finally:
            service.inflight.count -= 1

    async def _send(self, http: web.BaseRequest, request: RequestContext, response: Response) -> Sendable:
        service, body = self._service, response.body
        headers = service.headers.all(request, response)
        try:
            if isinstance(body, Tunnel):
                return await self._send_frames(http, body, headers)
            data = body_nowait(body)
            if data is not None:
                return prebuilt(http, response.status, headers, data)
            headers = service.headers.all(request, replace(response, headers=tuple(unbuffered(response.headers))))
            out = web.StreamResponse(status=response.status, headers=headers)
            await out.prepare(http)
            silence_s = service.config.stream_keep_alive
            await _relay(http, out, body, keep_alive_of(request), comment_of(request), silence_s)
            return out
        finally:
            await close_body(body)

    async def _send_frames(
        self, http: web.BaseRequest, tunnel: Tunnel, headers: list[tuple[str, str]]
    ) -> web.WebSocketResponse:
        service = self._service
        own = int(tunnel.carries_requests)  # what the caller counted for a connection that may be idle for long
        service.inflight.count -= own
        try:
            limit, stopping = service.config.max_body, service.stopping
            return await relay(
                http,
                tunnel.upstream,
                headers,
                max_frame=limit,
                stopping=stopping,
                drain_s=service.config.drain_timeout,
            )
        finally:
            service.inflight.count += own


async def _relay(
    http: web.BaseRequest,
    out: web.StreamResponse,
    body: Body,
    keep_alive: Event,
    comment: Event | None,
    silence_s: float,
) -> None:
    """Write a stream as it arrives, and `keep_alive` to events that are silent for `silence_s` seconds. With 0 it is
    never written."""
    try:
        if isinstance(body, EventStream):
            await _relay_events(out, as_observed(body.events), keep_alive, comment, silence_s or None)
        elif isinstance(body, ByteStream):
            async for piece in body.chunks:
                if piece:
                    await out.write(piece)
        await out.write_eof()
    except UpstreamStreamError:
        # No dialect has an error event here: abort the connection, so that the client sees an incomplete body.
        if http.transport is not None:
            http.transport.abort()


async def _relay_events(
    out: web.StreamResponse,
    events: ObservedStream[Event],
    keep_alive: Event,
    comment: Event | None,
    silence_s: float | None,
) -> None:
    reading: asyncio.Future[Sequence[Event]] = asyncio.ensure_future(events.next_batch())
    try:
        while True:
            done, _ = await asyncio.wait({reading}, timeout=silence_s)
            if not done:
                await out.write(keep_alive.frame())
                continue
            if not (items := reading.result()):
                return
            for event in items:
                shown = comment if comment is not None and isinstance(event, Comment) else event
                await out.write(shown.frame())
            reading = asyncio.ensure_future(events.next_batch())
    finally:
        if not reading.done():
            reading.cancel()
            await asyncio.wait({reading})


def _headers_of(http: web.BaseRequest) -> CIMultiDictProxy[str]:
    """Return the headers. In HTTP/1.0 a server ignores `Upgrade` (RFC 9110 section 7.8)."""
    if http.version >= HttpVersion11 or "upgrade" not in http.headers:
        return http.headers
    headers = http.headers.copy()
    headers.popall("upgrade")
    return CIMultiDictProxy(headers)


def _target(http: web.BaseRequest) -> str:
    """Return path and query as sent. Clients of a proxy send the absolute form (RFC 9112 section 3.2.2). Its host is
    ignored, since the policy chooses the backend."""
    target = http.raw_path
    absolute = None if target.startswith("/") else ABSOLUTE.fullmatch(target)
    if absolute is None:
        return target
    return absolute[1] if absolute[1].startswith("/") else "/" + absolute[1]
