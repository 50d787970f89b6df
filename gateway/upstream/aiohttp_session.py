"""The HTTP client of one upstream, and what is known of the connections it keeps."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass

import aiohttp
from aiohttp.client_proto import ResponseHandler


@dataclass(slots=True)
class PooledConnection:
    """What is known of the connection that a request goes over."""

    reused: bool = True  # it had served another request before


# Of the request that this task is making. aiohttp's own tracing tells it too, at thirty calls a request.
CURRENT_CONNECTION: ContextVar[PooledConnection | None] = ContextVar("asked", default=None)


class BoundedConnector(aiohttp.TCPConnector):
    """Tells which requests had to open a connection."""

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
    """A session of one backend. Bodies are left as they are: no decompression, no cookies, no redirects."""
    return aiohttp.ClientSession(
        connector=BoundedConnector(limit=max_connections, keepalive_timeout=15.0, ttl_dns_cache=60),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=connect_timeout_s),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        # The client's headers are sent as they are, and none in its name.
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        trust_env=False,
    )


class AiohttpSession:
    """`open_session` when it is needed: what has a client of its own needs none, but for its WebSockets."""

    def __init__(self, connect_timeout_s: float, max_connections: int) -> None:
        self._connect_timeout_s = connect_timeout_s
        self._max_connections = max_connections
        self._session: aiohttp.ClientSession | None = None

    def get(self) -> aiohttp.ClientSession:
        if self._session is None:
            self._session = open_session(self._connect_timeout_s, self._max_connections)
        return self._session

    async def close(self) -> None:
        """Twice does no harm."""
        if self._session is not None:
            await self._session.close()
