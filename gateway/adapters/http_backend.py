"""An HTTP endpoint that speaks one of the dialects, and the pass-through of every path that no dialect knows."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from functools import partial
from typing import Any

import aiohttp
import orjson
from yarl import URL

from gateway.adapters.gate import Gate, Place
from gateway.adapters.http_headers import NOT_SENT, request_headers, response_headers
from gateway.adapters.http_session import Connection
from gateway.adapters.http_websocket import HttpWebSocket, open_websocket
from gateway.adapters.sse import SSEParser
from gateway.bodies import Guarded
from gateway.config.backends import Timeouts
from gateway.credentials import SECRET
from gateway.errors import BackendError, BadRequest, StreamBroken
from gateway.messages import ByteStream, Event, EventStream, Request, Response, Tunnel, Whole
from gateway.ports import Clock, Crowd
from gateway.precedence import Priority
from gateway.routing.naming import ModelNames

MAX_WHOLE_BYTES = 16 * 1024 * 1024  # larger answers are relayed as they come, and not cached
TCP_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux
ENCODINGS = frozenset({"accept-encoding", "content-encoding"})


class HttpBackend:
    """`speaks`: the name of the dialect that the endpoint understands. `forward_credentials`: the client's own
    credentials go upstream unless `api_key` replaces them."""

    http = True

    def __init__(
        self,
        name: str,
        url: str,
        *,
        speaks: str = "openai",
        session: aiohttp.ClientSession,
        models: ModelNames,
        api_key: str | None,
        forward_credentials: bool,
        max_concurrency: int,
        timeouts: Timeouts,
        clock: Clock,
        adaptive: bool = True,
    ) -> None:
        self.name = name
        self.speaks = speaks
        base = url.rstrip("/")
        self._root = base.removesuffix("/v1")  # what stands for /
        # What stands for /v1: OpenAI's is part of the URL that people configure, and may be another path there.
        self._base = base if speaks == "openai" else f"{self._root}/v1"
        self._session = session
        self._models = models
        self._api_key = api_key
        self._not_sent = NOT_SENT | (frozenset() if forward_credentials and api_key is None else SECRET)
        self._not_sent_when_read = self._not_sent | ENCODINGS
        self._timeouts = timeouts
        self._gate = Gate(name, max_concurrency, timeouts.first_byte, clock, adaptive=adaptive)

    def url(self, path: str, query: str) -> URL:
        """`/v1/...` goes below the configured URL, everything else below its root; path and query as sent."""
        if not path.startswith("/") or "#" in path + query:  # yarl would drop what follows the #
            raise BadRequest(f"the request target {path[:100]!r} is not a path with a query")
        target = self._base + path[3:] if path == "/v1" or path.startswith("/v1/") else self._root + path
        return URL(f"{target}?{query}" if query else target, encoded=True)

    @property
    def crowd(self) -> Crowd:
        return self._gate.crowd

    def wait_s(self, priority: Priority) -> float:
        return self._gate.wait_s(priority)

    async def send(self, request: Request) -> Response:
        call = request.call
        if call is not None and call.dialect.name != self.speaks:
            raise BadRequest(f"backend '{self.name}' speaks {self.speaks}, and cannot be asked by {call.dialect.name}")
        if call is None and request.headers.get("upgrade", "").lower() == "websocket":
            upgraded = await self._websocket(request)
            if upgraded is not None:
                return upgraded
        place = await self._gate.enter(request)
        try:
            response = await self._open(request)
        except BaseException as error:
            if isinstance(error, BackendError) and error.status == 504:
                place.overdue()
            place.leave()
            raise
        place.answered(request, response.status)
        exchange = _Exchange(self.name, response, place, self._timeouts)
        try:
            return await exchange.answer(parse=request.call is not None)
        except BaseException:
            exchange.close()
            raise

    async def _websocket(self, request: Request) -> Response | None:
        """None where the endpoint does not take it up, as it may (RFC 9110 section 7.8): it is then asked without,
        so that the client gets what it says to that."""
        place = await self._gate.enter(request)
        place.lasting = True
        url, headers = self.url(request.path, request.query), self._headers(request)
        try:
            async with asyncio.timeout(self._timeouts.first_byte):
                socket = await open_websocket(self._session, url, headers, request)
        except BaseException as error:
            place.leave()
            if isinstance(error, aiohttp.WSServerHandshakeError):
                return None
            if isinstance(error, TimeoutError):
                raise BackendError(f"backend '{self.name}' sent no answer in time", status=504) from None
            if isinstance(error, aiohttp.ClientError | OSError):
                raise BackendError(f"backend '{self.name}' cannot be reached ({type(error).__name__})") from None
            raise
        return Response(101, (), Tunnel(HttpWebSocket(socket, place)))

    async def models(self, request: Request) -> list[dict[str, Any]]:
        place = await self._gate.enter(request)
        try:
            async with await self._open(request, method="GET", path="/v1/models", body=b"") as response:
                async with asyncio.timeout(self._timeouts.first_byte):
                    listed = orjson.loads(await response.read())
                if response.status == 200:
                    return [model for model in listed["data"] if isinstance(model, dict)]
        except (orjson.JSONDecodeError, KeyError, TypeError, aiohttp.ClientError, TimeoutError):
            pass
        finally:
            place.leave()
        raise BackendError(f"backend '{self.name}' does not list its models")

    async def ready(self) -> bool:
        """Whether the endpoint accepts connections; what it answers says nothing without credentials."""
        try:
            async with asyncio.timeout(self._timeouts.connect):
                async with self._session.get(self.url("/v1/models", ""), allow_redirects=False) as response:
                    return response.status < 500
        except (aiohttp.ClientError, TimeoutError, OSError):
            return False

    async def close(self) -> None:
        await self._session.close()

    async def _open(
        self, request: Request, *, method: str | None = None, path: str | None = None, body: bytes | None = None
    ) -> aiohttp.ClientResponse:
        """Status and headers of the answer. Raises `BackendError`."""
        call = request.call
        data: bytes | AsyncIterator[bytes] | None = body
        headers = self._headers(request)
        target, query = path or request.path, "" if path else request.query
        if body is None and call is not None:
            sent = call.dialect.outgoing(
                request.path,
                call,
                model=self._models.sent_for(call.model),
                kept=bool(request.fingerprint) or request.metered,
            )
            target, data = sent.path, sent.body
            if sent.headers:
                instead = {name.lower() for name, _ in sent.headers}
                headers = [*(h for h in headers if h[0].lower() not in instead), *sent.headers]
        elif body is None:
            data = request.source.stream()
        connection = Connection()
        attempt = partial(
            self._session.request,
            method or request.method,
            self.url(target, query),
            headers=headers,
            data=data or None,
            allow_redirects=False,
            trace_request_ctx=connection,
        )
        uploads = call is None and data is not None
        limit = self._timeouts.total if uploads else self._timeouts.first_byte
        try:
            async with asyncio.timeout(limit):
                try:
                    return await attempt()
                except (aiohttp.ServerDisconnectedError, ConnectionResetError):
                    # A kept connection that the server closed in the same moment: that is no failure of the endpoint,
                    # and calls may be repeated. On a fresh one it is one, and whoever asks may ask again.
                    if uploads or not connection.kept:
                        raise
                    return await attempt()
        except TimeoutError as error:
            connected = not isinstance(error, aiohttp.ConnectionTimeoutError)
            raise BackendError(f"backend '{self.name}' sent no answer in time", status=504, sent=connected) from None
        except (aiohttp.ClientError, OSError) as error:
            said = f"backend '{self.name}' cannot be reached ({type(error).__name__})"
            raise BackendError(said, sent=not isinstance(error, aiohttp.ClientConnectorError)) from None

    def _headers(self, request: Request) -> list[tuple[str, str]]:
        read_here = request.call is not None  # the answer will be, and the request's body was already decoded
        headers = request_headers(request.headers, self._not_sent_when_read if read_here else self._not_sent)
        if self._api_key is not None:
            headers.append(("Authorization", f"Bearer {self._api_key}"))
        if read_here:
            headers.append(("Accept-Encoding", "identity"))
        elif "content-length" in request.headers:
            headers.append(("Content-Length", request.headers["content-length"]))
        return headers


class _Exchange:
    """One answer on its way: holds the connection and the place at the gate until the body is done or given up."""

    def __init__(self, name: str, response: aiohttp.ClientResponse, place: Place, timeouts: Timeouts) -> None:
        self._name = name
        self._response = response
        self._place = place
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeouts.total

    async def answer(self, *, parse: bool) -> Response:
        response = self._response
        first = await self._first()
        headers = response_headers(response.headers)
        encoded = response.headers.get("content-encoding", "identity") != "identity"
        if parse and not encoded and response.content_type == "text/event-stream" and response.status == 200:
            return Response(response.status, headers, EventStream(Guarded(self._events(first), self.close)))
        if not parse:
            return Response(response.status, headers + self._length(), self._opaque(first))
        data, complete = await self._collect(first)
        if not complete:
            return Response(response.status, headers, ByteStream(Guarded(self._bytes(data), self.close)))
        self.close()
        return Response(response.status, headers, Whole(data))

    async def _first(self) -> bytes:
        """The first piece of the body; empty where there is none."""
        content = self._response.content
        try:
            if content.is_eof():  # it came whole, with its head: no waiting, no timer
                return await content.readany()
            self._acknowledge()
            async with asyncio.timeout(self._timeouts.first_byte):
                return await content.readany()
        except TimeoutError:
            raise BackendError(f"backend '{self._name}' sent no body in time", status=504) from None
        except (aiohttp.ClientError, OSError) as error:
            raise BackendError(f"backend '{self._name}' broke off ({type(error).__name__})") from None

    def _length(self) -> tuple[tuple[str, str], ...]:
        """What passes through undecoded keeps its length; of an answer to HEAD it is all there is of the body."""
        length = self._response.headers.get("content-length")
        return () if length is None else (("Content-Length", length),)

    def _opaque(self, first: bytes) -> Whole | ByteStream:
        if self._response.content.at_eof():
            self.close()
            return Whole(first)
        return ByteStream(Guarded(self._bytes(first), self.close))

    async def _collect(self, first: bytes) -> tuple[bytes, bool]:
        """-> (what came, whether it is all): up to `MAX_WHOLE_BYTES`. Nothing has gone to the client yet."""
        pieces, size = [first], len(first)
        try:
            while size <= MAX_WHOLE_BYTES:
                piece = await self._read()
                if not piece:
                    return b"".join(pieces), True
                pieces.append(piece)
                size += len(piece)
        except StreamBroken as error:
            raise BackendError(str(error)) from None
        return b"".join(pieces), False

    async def _events(self, first: bytes) -> AsyncGenerator[Event, None]:
        parser = SSEParser()
        for event in parser.feed(first):
            yield event
        while chunk := await self._read():
            for event in parser.feed(chunk):
                yield event
        for event in parser.close():
            yield event

    async def _bytes(self, first: bytes) -> AsyncGenerator[bytes, None]:
        if first:
            yield first
        while chunk := await self._read():
            yield chunk

    async def _read(self) -> bytes:
        """The next piece; empty at the end. Raises `StreamBroken`.

        The total time is checked here and not by one timeout around the generator: that would fire in whatever task
        happens to hold the generator while it is suspended.
        """
        content = self._response.content
        if content.at_eof():
            return b""  # what has come whole needs no timer
        self._acknowledge()
        until = min(self._loop.time() + self._timeouts.idle, self._deadline)
        try:
            async with asyncio.timeout_at(until):
                return await content.readany()
        except TimeoutError:
            what = "exceeded its total time" if until == self._deadline else "fell silent"
            raise StreamBroken(f"backend '{self._name}' {what}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise StreamBroken(f"backend '{self._name}' broke off ({type(error).__name__})") from None

    def _acknowledge(self) -> None:
        """Before each wait for more: a server that writes in pieces with Nagle's algorithm on sends the next one when
        the last is acknowledged, and the kernel delays that on a kept-alive connection (measured: 44 ms an answer)."""
        connection = self._response.connection
        transport = None if connection is None else connection.transport
        opened = None if transport is None else transport.get_extra_info("socket")
        if opened is not None and TCP_QUICKACK is not None:
            with contextlib.suppress(OSError):
                opened.setsockopt(socket.IPPROTO_TCP, TCP_QUICKACK, 1)

    def close(self) -> None:
        """Gives the connection back if the body is done, and cuts it otherwise, which cancels the call upstream."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()
        self._place.leave()
