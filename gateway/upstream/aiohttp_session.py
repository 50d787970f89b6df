"""The aiohttp session of one upstream, and a record of whether a connection was reused."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

import aiohttp
from aiohttp.client_proto import ResponseHandler
from aiohttp.connector import Connection

from gateway.upstream.http1.parser import MAX_NON_BODY_BYTES


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


class BoundedConnector(aiohttp.TCPConnector):
    """`BoundedConnector` records which requests had to open a connection."""

    async def _create_connection(
        self,
        req: aiohttp.ClientRequest,
        traces: list[aiohttp.tracing.Trace],
        timeout: aiohttp.ClientTimeout,  # noqa: ASYNC109 - aiohttp's own
    ) -> ResponseHandler:
        connection = CURRENT_CONNECTION.get()
        if connection is not None:
            connection.reused = False
        return await super()._create_connection(req, traces, timeout)


def open_session(connect_timeout_s: float, max_connections: int) -> aiohttp.ClientSession:
    """Return a session for one backend that passes bodies through: no decompression, no cookies, no redirects."""
    session = aiohttp.ClientSession(
        connector=BoundedConnector(limit=max_connections, keepalive_timeout=15.0, ttl_dns_cache=60),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        max_line_size=MAX_NON_BODY_BYTES,
        max_field_size=MAX_NON_BODY_BYTES,  # aiohttp's 8 KiB are less than some servers' policies and cookies
        response_class=RefusableResponse,
        # The gateway forwards the client's headers; aiohttp must not add its own.
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        trust_env=False,
    )
    # `AiohttpClient` asks the call before it sends a request again, and counts it. aiohttp itself would do neither.
    session._retry_connection = False
    return session


class AiohttpSession:
    """`AiohttpSession` opens its session on first use. Upstreams with the gateway's own client need it only for
    WebSockets.
    """

    def __init__(self, connect_timeout_s: float, max_connections: int) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None

    def get(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session(self._connect_timeout_s, self._max_connections)
        return self._session

    async def close(self) -> None:
        """Close the session. A second call does nothing."""
        if self._session is not None:
            await self._session.close()
