"""A bounded pool of reusable connections to one origin."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

from aiohappyeyeballs import start_connection

from gateway.upstream.http1.connection import ClientConnection
from gateway.upstream.http1.errors import ConnectFailed, ConnectTimedOut, PoolExhausted, describe_connect_error
from gateway.upstream.http1.headers import HeaderNames, Origin
from gateway.upstream.http1.parser import ResponseHeadCache

# New connections: name lookup, TCP and TLS.
HAPPY_EYEBALLS_DELAY_S = 0.25  # RFC 8305 section 5: seconds until the next address is tried in parallel

DNS_TTL_S = 60.0

TLS_SHUTDOWN_S = 2.0  # wait for a server that does not answer the close

ConnectionFactory = Callable[[], ClientConnection]

PLAIN = (), (0, 0)  # rest of an address tuple: empty (IPv4), or IPv6 without flow and scope


def client_context() -> ssl.SSLContext:
    """Return a context that checks certificates and names against the system's authorities (or `SSL_CERT_FILE`)."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Connector:
    """`Connector` opens connections to an origin. `timeout_s` covers name lookup, TCP and TLS together.

    `tls` is the context for an https origin; the default is `client_context`.
    """

    def __init__(self, origin: Origin, timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
        self._origin = origin
        self._timeout_s = timeout_s
        self._tls = (tls or client_context()) if origin.tls else None
        self._resolve_lock = asyncio.Lock()
        self._addresses: list[Any] = []
        self._addresses_expire_at = 0.0  # event-loop time

    async def open(self, factory: ConnectionFactory, deadline: float) -> ClientConnection:
        """Open a connection before `deadline` (event-loop time). Raise `ConnectFailed`."""
        try:
            async with asyncio.timeout_at(min(deadline, asyncio.get_running_loop().time() + self._timeout_s)):
                return await self._open(factory)
        except TimeoutError:
            raise ConnectTimedOut("no connection was established in time") from None
        except OSError as error:  # includes ssl.SSLError and socket.gaierror
            self._addresses = []
            raise ConnectFailed(describe_connect_error(error)) from None

    async def _open(self, factory: ConnectionFactory) -> ClientConnection:
        loop = asyncio.get_running_loop()
        connections: list[ClientConnection] = []

        def create() -> ClientConnection:
            connections.append(factory())
            return connections[0]

        addresses = await self._known()
        arguments: dict[str, Any] = {}
        opened: socket.socket | None = None
        # uvloop connects a single address in a third of the time
        if len(addresses) == 1 and addresses[0][4][2:] in PLAIN:
            arguments["host"], arguments["port"] = addresses[0][4][:2]
        else:
            arguments["sock"] = opened = await start_connection(
                addresses, happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S, interleave=1, loop=loop
            )
        if self._tls is not None:
            arguments |= {
                "ssl": self._tls, "server_hostname": self._origin.host, "ssl_shutdown_timeout": TLS_SHUTDOWN_S,
            }  # fmt: skip
        try:
            if opened is not None:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _, connection = await loop.create_connection(create, **arguments)
        except BaseException:
            if opened is not None:
                opened.close()
            for connection in connections:
                connection.discard()
            raise
        return connection

    async def _known(self) -> list[Any]:
        """Return the origin's addresses. Concurrent callers share one lookup."""
        loop = asyncio.get_running_loop()
        async with self._resolve_lock:
            if not self._addresses or loop.time() >= self._addresses_expire_at:
                addresses = await loop.getaddrinfo(self._origin.host, self._origin.port, type=socket.SOCK_STREAM)
                self._addresses, self._addresses_expire_at = list(addresses), loop.time() + DNS_TTL_S
            self._addresses.append(self._addresses.pop(0))  # rotate: each connection starts with the next address
            return list(self._addresses)


MAX_WAITING = 1024

CLOSE_S = 5.0  # transports report their close in the next iteration of the loop


class ConnectionPool:
    """`ConnectionPool` keeps at most `max_connections`, each idle for at most `idle_s` seconds.

    Connections that only wait for the end of a body do not count. There are at most as many of them: a server that does
    not end its bodies holds up no further call.
    """

    def __init__(self, connector: Connector, *, max_connections: int, idle_s: float) -> None:
        self._connector = connector
        self._max_connections = max_connections
        self._idle_s = idle_s
        self._names, self._known = HeaderNames(), ResponseHeadCache()
        self._all: set[ClientConnection] = set()
        self._idle: dict[ClientConnection, None] = {}  # last freed, first used, so that the others can time out
        self._finishing: dict[ClientConnection, None] = {}  # those that wait for the end of a body, the oldest first
        self._opening = 0  # includes slots that are promised to waiters
        self._waiters: deque[asyncio.Future[ClientConnection | None]] = deque()
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def open(self) -> int:
        return len(self._all)

    def pop_idle(self) -> ClientConnection | None:
        """Take an idle connection out of the pool; None if there is none."""
        while self._idle:
            connection, _ = self._idle.popitem()
            if connection.can_serve:
                return connection
            connection.abort()
        return None

    async def acquire(self, deadline: float) -> ClientConnection:
        """Return a new connection if there is room, else the first one that is released before `deadline`.

        `deadline` is event-loop time. Raise `ConnectFailed`.
        """
        while self._counted >= self._max_connections:
            if self._idle:  # the caller wants a new one because idle ones may be stale
                stale = next(iter(self._idle))
                del self._idle[stale]
                stale.abort()
            released = await self._wait_for_slot(deadline)
            if released is None:
                break
            if released.can_serve:
                return released
            released.abort()
        else:
            self._opening += 1
        try:
            connection = await self._connector.open(self._new_connection, deadline)
        finally:
            self._opening -= 1
            self._wake_waiters()
        if self._closed:
            connection.abort()
        if not connection.can_serve:
            raise ConnectFailed("the server closed the connection, or sent something, before the request")
        return connection

    def add(self, connection: ClientConnection) -> None:
        self._all.add(connection)
        self._empty.clear()

    def finish(self, connection: ClientConnection) -> None:
        """Take note that a connection only waits for the end of a body. Close the oldest such one if there are too
        many."""
        if len(self._finishing) >= self._max_connections:
            oldest = next(iter(self._finishing))
            del self._finishing[oldest]
            oldest.abort()
        self._finishing[connection] = None
        self._wake_waiters()

    @property
    def _counted(self) -> int:
        return len(self._all) + self._opening - len(self._finishing)

    def release(self, connection: ClientConnection) -> None:
        if self._finishing:
            self._finishing.pop(connection, None)
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if self._closed or self._counted > self._max_connections:
            connection.close()
        else:
            self._idle[connection] = None

    def remove(self, connection: ClientConnection) -> None:
        self._all.discard(connection)
        self._finishing.pop(connection, None)
        if not self._all:
            self._empty.set()
        self._idle.pop(connection, None)
        self._wake_waiters()

    async def close(self) -> None:
        """Close all connections, and abort exchanges in flight."""
        self._closed = True
        self._idle.clear()
        for connection in tuple(self._all):
            connection.abort()
        async with asyncio.timeout(CLOSE_S):
            await self._empty.wait()

    def _new_connection(self) -> ClientConnection:
        return ClientConnection(self, self._names, self._known, self._idle_s)

    async def _wait_for_slot(self, deadline: float) -> ClientConnection | None:
        """Return a released connection, or None if there is room for a new one, which is reserved for the caller."""
        if len(self._waiters) >= MAX_WAITING:
            raise PoolExhausted("all connections are in use, and too many requests wait for one")
        waiter: asyncio.Future[ClientConnection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout_at(deadline):
                return await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self._put_back(waiter.result())
            if isinstance(error, TimeoutError):
                raise ConnectTimedOut("no connection became free in time") from None
            raise
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _put_back(self, released: ClientConnection | None) -> None:
        """Pass on the result of a waiter that gave up at the moment it was served."""
        if released is not None:
            self.release(released)
            return
        self._opening -= 1
        self._wake_waiters()

    def _wake_waiters(self) -> None:
        """Wake as many waiters as there is room for."""
        while self._waiters and self._counted < self._max_connections:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self._opening += 1
                waiter.set_result(None)
