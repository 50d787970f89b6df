"""The HTTP client of a backend: the protocol, the gateway's own implementation, and one on aiohttp."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol

import aiohttp
from yarl import URL

from gateway.errors import GatewayError
from gateway.tasks import cancel_and_wait, spawn
from gateway.upstream.aiohttp_session import CURRENT_CONNECTION, AiohttpSession, NoTunnel, PooledConnection
from gateway.upstream.http1.client import Client
from gateway.upstream.http1.errors import (
    ConnectFailed,
    ConnectionBroken,
    ConnectTimedOut,
    ExchangeFailed,
    TimedOut,
    describe_connect_error,
)
from gateway.upstream.http1.headers import MAPPED_HEADERS, Origin, framing_lines, header_lines, request_opening


class Opening:
    """`Opening` caches the encoded part of a head that many requests share; None before the first use."""

    __slots__ = ("encoded",)

    def __init__(self) -> None:
        self.encoded: bytes | None = None


class UpstreamRequest(NamedTuple):
    """A request to send.

    `body` may be a stream, with its `length` if known. A `repeatable` request may be sent once more if the server
    silently closes a reused connection. `opening` is shared by all requests with this method, target and headers. They
    differ only in `extra_headers`, body and length.
    """

    method: str
    target: str  # path and query, encoded
    headers: Sequence[tuple[str, str]]  # without Host and framing
    body: bytes | AsyncIterator[bytes] = b""
    length: int | None = None
    repeatable: bool = True
    extra_headers: Sequence[tuple[str, str]] = ()  # sent after `headers`
    opening: Opening | None = None


MayResend = Callable[[], bool]
"""Decides whether a repeatable request is sent once more, and counts it: `gateway.upstream.retry.Resends`."""


def always() -> bool:
    return True


class UpstreamResponse(Protocol):
    """A response whose owner reads it to the end or closes it."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Sequence[tuple[str, str]]:
        """All headers in order, with repeated and hop-by-hop ones."""

    @property
    def header_map(self) -> Mapping[str, str]:
        """The headers in `gateway.upstream.http1.headers.MAPPED_HEADERS`, by lower-case name."""

    @property
    def memo(self) -> dict[bool, Any] | None:
        """A store for results that follow from the headers, shared by responses with the same ones; or None."""

    @property
    def whole(self) -> bool:
        """Whether the last byte of the body has arrived."""

    @property
    def at_eof(self) -> bool:
        """Whether the whole body was read."""

    def take(self) -> bytes:
        """Return the received part of the body."""

    async def read(self, deadline: float) -> bytes:
        """Return the bytes that have arrived since the last call, once there are any; empty at the end.

        `deadline` is event-loop time. Raise `ExchangeFailed`.
        """

    def close(self) -> None:
        """Release the connection if the body was read, else close it. A second call does nothing."""

    def finish(self, deadline: float) -> None:
        """Drop the rest of the body, and release the connection at its end. Close it if the end has not come by
        `deadline`, which is event-loop time."""


class HttpClient(Protocol):
    """A client of one origin."""

    def send(self, request: UpstreamRequest, deadline: float) -> Awaitable[UpstreamResponse]:
        """Send a request and return the response once its head has arrived.

        `deadline` is event-loop time. Raise `ExchangeFailed`; `ValueError` if HTTP/1.1 cannot express the request; and
        whatever the body raises.
        """

    async def close(self) -> None: ...


class Identity(Protocol):
    """The gateway's credentials for an endpoint, where they are more than a constant key."""

    async def authorized(self, request: UpstreamRequest, origin: str, until: float) -> UpstreamRequest:
        """Return the request with credentials. `origin` is that of the endpoint, and `until` event-loop time. Raise
        `NoCredentials`."""

    async def renew(self, refused: UpstreamRequest, refusal: UpstreamResponse, until: float) -> bool:
        """Take note that the endpoint has answered an authorized request with a status of `REFUSALS`. Return whether
        there are other credentials by `until`, so that the request is worth another attempt. Leave the body alone."""

    async def close(self) -> None:
        """End all work in the background. A second call does nothing."""


REFUSALS = frozenset({401, 403})  # statuses that may be about credentials which have ended
PROXY_AUTHENTICATION_REQUIRED = 407  # of a proxy, never of the server behind it (RFC 9110, section 15.5.8)
AZURE_KEY = "api-key"  # the header with the key of Azure's dated API


class Http1Client:
    """`Http1Client` implements `HttpClient` on `gateway.upstream.http1`."""

    def __init__(
        self,
        origin: str,
        *,
        connect_s: float,
        max_connections: int,
        tls: ssl.SSLContext | None = None,
        may_resend: MayResend = always,
    ) -> None:
        self._may_resend = may_resend
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
            head,
            body,
            length=length,
            is_head_request=method == "HEAD",
            repeatable=repeatable,
            deadline=deadline,
            may_resend=self._may_resend,
        )

    async def close(self) -> None:
        await self.client.close()


TCP_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux


def _unicode(headers: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return headers that aiohttp can send, which writes UTF-8 alone and drops bytes that are not: they are Latin-1."""
    if all(value.isascii() for _, value in headers):
        return headers
    return [(name, value if value.isascii() else _from_latin_1(value)) for name, value in headers]


def _from_latin_1(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        return value.encode("utf-8", "surrogateescape").decode("latin-1")
    return value


class AiohttpClient:
    """`AiohttpClient` implements `HttpClient` on aiohttp."""

    def __init__(self, origin: str, session: AiohttpSession, may_resend: MayResend = always) -> None:
        self._origin = origin
        self._session = session
        self._finishing: set[asyncio.Task[None]] = set()  # of answers whose connections wait for the end of their body
        self._may_resend = may_resend

    async def send(self, request: UpstreamRequest, deadline: float) -> UpstreamResponse:
        headers, body = _unicode([*request.headers, *request.extra_headers]), request.body
        refused: list[GatewayError] = []  # by the gateway, while the body came from the client
        if not isinstance(body, bytes):
            body = _noting_refusal(body, refused)
            if request.length is not None:
                headers.append(("Content-Length", str(request.length)))
        url, connection = URL(self._origin + request.target, encoded=True), PooledConnection()
        attempt = partial(
            self._session.get().request, request.method, url, headers=headers, data=body or None, allow_redirects=False
        )
        CURRENT_CONNECTION.set(connection)
        resent = False
        try:
            async with asyncio.timeout_at(deadline):
                try:
                    return self._answer_of(await attempt())
                except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, ConnectionResetError):
                    resent = request.repeatable and isinstance(body, bytes) and connection.reused
                    if not resent or not self._may_resend():
                        raise
                    return self._answer_of(await attempt())
        except (aiohttp.ClientError, OSError) as error:  # TimeoutError is an OSError
            if refused:
                raise refused[0] from None
            failure = failure_of(error)
            raise (failure.after_resend() if resent else failure) from None

    def _answer_of(self, response: aiohttp.ClientResponse) -> UpstreamResponse:
        """Return the answer of the server. Raise `ConnectFailed` for that of a proxy, which sent nothing on."""
        if response.status == PROXY_AUTHENTICATION_REQUIRED and self._session.proxy is not None:
            response.close()
            raise proxy_refused()
        return _Answer(response, self._finishing)

    async def close(self) -> None:
        await cancel_and_wait(*self._finishing)
        await self._session.close()


async def _noting_refusal(body: AsyncIterator[bytes], refused: list[GatewayError]) -> AsyncIterator[bytes]:
    """Yield a body, and note why it may not go on. aiohttp turns each error of a body into one of the connection."""
    try:
        async for piece in body:
            yield piece
    except GatewayError as error:
        refused.append(error)
        raise


def failure_of(error: Exception) -> ExchangeFailed:
    """Return the error of aiohttp as one of `gateway.upstream.http1.errors`."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return ConnectTimedOut("no connection was established in time")
    if isinstance(error, TimeoutError):
        return TimedOut("nothing came in time")
    if isinstance(error, NoTunnel):
        return ConnectFailed(str(error))
    if isinstance(error, aiohttp.ClientConnectorError):
        words = describe_connect_error(error.os_error)
        return ConnectFailed(f"its proxy: {words}" if isinstance(error, aiohttp.ClientProxyConnectionError) else words)
    return ExchangeFailed(type(error).__name__)


def proxy_refused() -> ConnectFailed:
    """Return the error of a request for which a proxy wants other credentials."""
    return ConnectFailed(f"the proxy answers with status {PROXY_AUTHENTICATION_REQUIRED}")


def refusal_of(response: aiohttp.ClientResponse, status: int) -> UpstreamResponse:
    """Return the response of an endpoint that has refused a WebSocket with this status."""
    return _Answer(response, set(), status)


class _Answer:
    """`_Answer` implements `UpstreamResponse`."""

    memo = None

    def __init__(
        self, response: aiohttp.ClientResponse, finishing: set[asyncio.Task[None]], status: int | None = None
    ) -> None:
        self._response = response
        self._finishing = finishing
        self._content = response.content
        self.status = response.status if status is None else status
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
            raise ConnectionBroken(type(error).__name__) from None

    def close(self) -> None:
        if self.at_eof:
            self._response.release()
        else:
            self._response.close()

    def finish(self, deadline: float) -> None:
        if self.at_eof:
            self.close()
        else:
            spawn(self._finishing, self._finish(deadline))

    async def _finish(self, deadline: float) -> None:
        try:
            while not self.at_eof:
                await self.read(deadline)
        except ExchangeFailed:
            pass
        finally:
            self.close()

    def _set_quickack(self) -> None:
        """See `gateway.upstream.http1.connection`."""
        connection = self._response.connection
        transport = None if connection is None else connection.transport
        sock = None if transport is None else transport.get_extra_info("socket")
        if sock is not None and TCP_QUICKACK is not None:
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, TCP_QUICKACK, 1)
