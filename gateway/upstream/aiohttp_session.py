"""The aiohttp session of one upstream, and a record of whether a connection was reused."""

from __future__ import annotations

import asyncio
import ssl
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import aiohttp
from aiohttp.abc import AbstractStreamWriter
from aiohttp.client_proto import ResponseHandler
from aiohttp.client_reqrep import ConnectionKey
from aiohttp.connector import Connection
from aiohttp.http import RawResponseMessage
from aiohttp.streams import StreamReader

from gateway.upstream.http1.parser import MAX_NON_BODY_BYTES
from gateway.upstream.unread_bytes import UnreadBytes


@dataclass(slots=True)
class PooledConnection:
    """`PooledConnection` records facts about the connection that a request uses."""

    reused: bool = True  # it has served another request before


# For the request of the current task. aiohttp's tracing offers the same, at thirty function calls a request.
CURRENT_CONNECTION: ContextVar[PooledConnection | None] = ContextVar("asked", default=None)


@dataclass(slots=True)
class Handshake:
    """`Handshake` records the response of an endpoint to the handshake of a WebSocket."""

    headers: tuple[tuple[str, str], ...] = ()
    status: int = 0
    refusal: aiohttp.ClientResponse | None = None  # its owner reads and closes it; None: the endpoint has not refused


# For the handshake of the current task: aiohttp closes the response before it raises.
CURRENT_HANDSHAKE: ContextVar[Handshake | None] = ContextVar("handshake", default=None)

SWITCHING = 101


class RefusableResponse(aiohttp.ClientResponse):
    """A response that stays open if it refuses a WebSocket, whatever its status is, so that it is the answer."""

    _is_refusal = False

    async def start(self, connection: Connection) -> aiohttp.ClientResponse:
        await super().start(connection)
        handshake = CURRENT_HANDSHAKE.get()
        if handshake is not None:
            handshake.headers, handshake.status = tuple(self.headers.items()), self.status
            if self.status != SWITCHING:
                handshake.refusal, self._is_refusal = self, True
                self.status = 400  # aiohttp would follow a redirect, and send the handshake again
        return self

    def close(self) -> None:
        """Close the response. The first call for a refusal is aiohttp's, before it raises, and does nothing."""
        if self._is_refusal:
            self._is_refusal = False
        else:
            super().close()


# aiohttp queues whatever a server sends, also while a connection lies idle, and gives it to the next request (aiohttp
# #13656). The classes below use its private parts; `pyproject.toml` pins its minor version.
class OneAnswerProtocol(ResponseHandler):
    """`OneAnswerProtocol` takes one final answer for each request. It closes the connection if more bytes come."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self._unread: UnreadBytes | None = None  # from `connection_made` on
        self._is_due = False  # a request was sent, and its answer is incomplete
        self._body: StreamReader | None = None  # of the final answer; None: its head has not arrived
        self._has_excess = False
        self.has_served = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._unread = UnreadBytes(transport)

    @property
    def can_serve(self) -> bool:
        """Whether the connection is open, and the server has sent nothing since the last answer."""
        return self.is_connected() and not self.should_close and not (self.has_served and self._unread)

    def expect_answer(self) -> None:
        """Take note that a request is about to be sent. Close the connection if the server was faster."""
        if self._is_due:
            return
        if not self.can_serve:
            self._end()
            return
        self._is_due, self._body, self.has_served = True, None, True

    def set_response_params(self, **options: Any) -> None:
        """Expect the answer to a CONNECT, which aiohttp sends to a proxy by a request of its own class. It alone has no
        timer."""
        if "timer" not in options:
            self._is_due, self._body = True, None
        super().set_response_params(**options)

    def feed_data(self, data: tuple[RawResponseMessage, StreamReader], size: int = 0) -> None:
        message, body = data
        if not self._is_due or self._body is not None:
            self._has_excess = True
            return
        if message.code >= 200 or message.code == 101:
            self._body = body
        super().feed_data(data, size)

    def data_received(self, data: bytes) -> None:
        if self._upgraded:
            super().data_received(data)
            return
        if data and not self._is_due:
            self._end()
            return
        super().data_received(data)
        if self._body is not None and self._body.is_eof() and not self._upgraded:
            self._is_due = False
            if self._has_excess or self._has_begun_another():
                self._end()

    def _has_begun_another(self) -> bool:
        """Return whether bytes came behind the answer: the parser is within a message."""
        if self._parser is None:
            return False
        try:
            return self._parser.feed_eof() is not None
        except Exception:  # whatever it says about a part of a head
            return True

    def _end(self) -> None:
        """Close the connection. An answer that is complete can still be read."""
        self.force_close()
        self._parser = None
        self.abort()


class CheckedRequest(aiohttp.ClientRequest):
    """A request that looks at its connection at the moment it is written, which may be some turns of the loop later."""

    async def send(self, conn: Connection) -> aiohttp.ClientResponse:
        if not self._body:
            _protocol_of(conn).expect_answer()
        return await super().send(conn)

    async def write_bytes(
        self, writer: AbstractStreamWriter, conn: Connection, content_length: int | None = None
    ) -> None:
        _protocol_of(conn).expect_answer()
        await super().write_bytes(writer, conn, content_length)


def _new_protocol(loop: asyncio.AbstractEventLoop) -> ResponseHandler:
    return OneAnswerProtocol(loop)


def _protocol_of(connection: Connection) -> OneAnswerProtocol:
    protocol = connection.protocol
    assert isinstance(protocol, OneAnswerProtocol)
    return protocol


class NoTunnel(aiohttp.ClientConnectionError):
    """A proxy has opened no way to the server, so nothing of the request was sent. The message names no address."""


class BoundedConnector(aiohttp.TCPConnector):
    """`BoundedConnector` records which requests had to open a connection, and lends none that has unread bytes.

    The timeout of a connection covers name lookup, TCP, the tunnel of a proxy, and TLS together.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._factory = partial(_new_protocol, loop=self._loop)

    async def _get(self, key: ConnectionKey, traces: list[aiohttp.tracing.Trace]) -> Connection | None:
        while (connection := await super()._get(key, traces)) is not None:
            if _protocol_of(connection).can_serve:
                return connection
            connection.close()
        return None

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[aiohttp.tracing.Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own
    ) -> ResponseHandler:
        connection = CURRENT_CONNECTION.get()
        if connection is not None:
            connection.reused = False
        try:
            async with asyncio.timeout(timeout.sock_connect):
                return await super()._create_connection(req, traces, timeout)
        except aiohttp.ClientHttpProxyError as error:
            raise NoTunnel(f"the proxy answers with status {error.status}") from None
        except (aiohttp.ClientError, ConnectionError) as error:
            if req.proxy is None or isinstance(error, aiohttp.ClientConnectorError):
                raise
            raise NoTunnel(f"the proxy opens no tunnel ({type(error).__name__})") from None


def open_session(
    connect_timeout_s: float, max_connections: int, tls: ssl.SSLContext | None = None, proxy: str | None = None
) -> aiohttp.ClientSession:
    """Return a session for one backend that passes bodies through: no decompression, no cookies, no redirects.

    Without `tls`, the authorities of the machine count. `proxy` may have credentials.
    """
    session = aiohttp.ClientSession(
        connector=BoundedConnector(
            limit=max_connections, keepalive_timeout=15.0, ttl_dns_cache=60, ssl=True if tls is None else tls
        ),
        proxy=proxy,
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        max_line_size=MAX_NON_BODY_BYTES,
        max_field_size=MAX_NON_BODY_BYTES,  # aiohttp's 8 KiB are less than some servers' policies and cookies
        request_class=CheckedRequest,
        response_class=RefusableResponse,
        # The gateway forwards the client's headers; aiohttp must not add its own.
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        trust_env=False,
    )
    # `AiohttpClient` asks the call before it sends a request again, and counts it. aiohttp itself would do neither.
    session._retry_connection = False
    return session


@dataclass(slots=True, eq=False)
class AiohttpSession:
    """`AiohttpSession` opens its session on first use. Upstreams with the gateway's own client need it only for
    WebSockets.
    """

    connect_timeout_s: float
    max_connections: int
    tls: ssl.SSLContext | None = None
    proxy: str | None = field(default=None, repr=False)  # it may have credentials
    _session: aiohttp.ClientSession | None = field(init=False, default=None)

    def get(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session(self.connect_timeout_s, self.max_connections, self.tls, self.proxy)
        return self._session

    async def close(self) -> None:
        """Close the session. A second call does nothing."""
        if self._session is not None:
            await self._session.close()
