"""The client of an HTTP backend: the protocol that both clients implement, our own, and the one on aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import aiohttp
from yarl import URL

from gateway.upstream.aiohttp_session import CURRENT_CONNECTION, AiohttpSession, PooledConnection
from gateway.upstream.http1.client import Client
from gateway.upstream.http1.errors import Broken, ConnectFailed, ConnectTimedOut, ExchangeFailed, TimedOut
from gateway.upstream.http1.headers import MAPPED_HEADERS, Origin, framing_lines, header_lines, request_opening


class Opening:
    """The part of a request's head that many requests share, as a client has written it: `None` before the first."""

    __slots__ = ("encoded",)

    def __init__(self) -> None:
        self.encoded: bytes | None = None


class UpstreamRequest(NamedTuple):
    """A request as it is to go out. `body` streams where it is not at hand, with its `length` where that is known;
    `repeatable`: it may be sent once more where the server closes a kept connection without a word. `opening`: shared
    by all requests of this method, target and headers, which then differ in `extra_headers`, body and length
    alone."""

    method: str
    target: str  # path and query, as they are to be sent
    headers: Sequence[tuple[str, str]]  # without Host and framing
    body: bytes | AsyncIterator[bytes] = b""
    length: int | None = None
    repeatable: bool = True
    extra_headers: Sequence[tuple[str, str]] = ()  # headers
    opening: Opening | None = None


class UpstreamResponse(Protocol):
    """Whoever has it reads it to its end, or closes it."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """In order, repeated ones kept, hop-by-hop ones included."""

    @property
    def header_map(self) -> Mapping[str, str]:
        """Of the headers those in `gateway.upstream.http1.headers.NOTED`, by their names in small letters."""

    @property
    def memo(self) -> dict[bool, Any] | None:
        """Shared by answers with the same headers, for what follows from these; None: nobody knows of others."""

    @property
    def whole(self) -> bool:
        """The last byte of the body has come."""

    @property
    def at_eof(self) -> bool:
        """And was read."""

    def take(self) -> bytes:
        """What of the body is here."""

    async def read(self, deadline: float) -> bytes:
        """What has come since the last time, as soon as there is anything; empty at the end. `deadline`: time of the
        event loop. Raises `ExchangeFailed`."""

    def close(self) -> None:
        """Gives the connection back where the body was read to its end, and cuts it otherwise. As often as you like."""


class HttpClient(Protocol):
    """Of one origin."""

    def send(self, request: UpstreamRequest, deadline: float) -> Awaitable[UpstreamResponse]:
        """Status and headers of the answer. `deadline`: time of the event loop. Raises `ExchangeFailed`, `ValueError`
        where the request cannot be said in HTTP/1.1, and what its body raises."""

    async def close(self) -> None: ...


# `gateway.http1` as the client of an HTTP backend.
class Http1Client:
    """Implements `HttpClient`."""

    def __init__(
        self, origin: str, *, connect_s: float, max_connections: int, tls: ssl.SSLContext | None = None
    ) -> None:
        self.client = Client(Origin.of(origin), connect_s=connect_s, max_connections=max_connections, tls=tls)
        self.authority = self.client.origin.authority

    def send(self, request: UpstreamRequest, deadline: float) -> Awaitable[UpstreamResponse]:
        method, target, headers, body, length, repeatable, extra_headers, opening = request
        encoded = None if opening is None else opening.encoded
        if encoded is None:
            encoded = request_opening(method, target, self.authority, headers)
            if opening is not None:
                opening.encoded = encoded
        if isinstance(body, bytes):
            length = len(body)
        lines = header_lines(extra_headers) if extra_headers else b""
        if length:
            head = b"%b%bContent-Length: %d\r\n\r\n" % (encoded, lines, length)
        else:
            head = b"%b%b%b\r\n" % (encoded, lines, framing_lines(method, length))
        return self.client.send(
            head, body, length=length, is_head_request=method == "HEAD", repeatable=repeatable, deadline=deadline
        )

    async def close(self) -> None:
        await self.client.close()


# aiohttp's client as that of an HTTP backend.
TCP_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux


class AiohttpClient:
    """Implements `HttpClient`."""

    def __init__(self, origin: str, session: AiohttpSession) -> None:
        self._origin = origin
        self._session = session

    async def send(self, request: UpstreamRequest, deadline: float) -> UpstreamResponse:
        headers, body = [*request.headers, *request.extra_headers], request.body
        if request.length is not None and not isinstance(body, bytes):
            headers.append(("Content-Length", str(request.length)))
        url, connection = URL(self._origin + request.target, encoded=True), PooledConnection()
        attempt = partial(
            self._session.get().request, request.method, url, headers=headers, data=body or None, allow_redirects=False
        )
        CURRENT_CONNECTION.set(connection)
        try:
            async with asyncio.timeout_at(deadline):
                try:
                    return _Answer(await attempt())
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError):
                    if not request.repeatable or not isinstance(body, bytes) or not connection.reused:
                        raise
                    return _Answer(await attempt())
        except aiohttp.ConnectionTimeoutError:
            raise ConnectTimedOut("no connection in time") from None
        except TimeoutError:
            raise TimedOut("nothing came in time") from None
        except aiohttp.ClientConnectorError as error:
            raise ConnectFailed(type(error).__name__) from None
        except (aiohttp.ClientError, OSError) as error:
            raise ExchangeFailed(type(error).__name__) from None

    async def close(self) -> None:
        await self._session.close()


class _Answer:
    """Implements `UpstreamResponse`."""

    memo = None

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._content = response.content
        self.status = response.status
        self.headers = tuple(response.headers.items())

        header_map = {name.lower(): value for name, value in self.headers if name.lower() in MAPPED_HEADERS}
        self.header_map = (
            header_map if "connection" not in header_map else header_map | {"connection": self._all("connection")}
        )

    def _all(self, name: str) -> str:
        return ", ".join(self._response.headers.getall(name))

    @property
    def whole(self) -> bool:
        return self._content.is_eof() and self._content.exception() is None

    @property
    def at_eof(self) -> bool:
        return self._content.at_eof()

    def take(self) -> bytes:
        return self._content.read_nowait(-1)

    async def read(self, deadline: float) -> bytes:
        try:
            if self.whole:
                return self.take()
            self._set_quickack()
            async with asyncio.timeout_at(deadline):
                return await self._content.readany()
        except TimeoutError:
            raise TimedOut("nothing came in time") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Broken(type(error).__name__) from None

    def close(self) -> None:
        if self.at_eof:
            self._response.release()
        else:
            self._response.close()

    def _set_quickack(self) -> None:
        """See `gateway.upstream.http1.connection`."""
        connection = self._response.connection
        transport = None if connection is None else connection.transport
        sock = None if transport is None else transport.get_extra_info("socket")
        if sock is not None and TCP_QUICKACK is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, TCP_QUICKACK, 1)
