"""The connections to one origin: kept for the next request, and no more of them than allowed."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any

from aiohappyeyeballs import start_connection

from gateway.upstream.http1.connection import ClientConnection
from gateway.upstream.http1.errors import ConnectFailed, ConnectTimedOut, PoolExhausted
from gateway.upstream.http1.headers import HeaderNames, Origin
from gateway.upstream.http1.parser import ResponseHeadCache

# New connections to an origin: its addresses, TCP, TLS.
HAPPY_EYEBALLS_DELAY_S = 0.25  # RFC 8305 section 5: before the next address is tried beside the first

ADDRESSES_KEPT_S = 60.0

TLS_SHUTDOWN_S = 2.0  # for a goodbye that a server does not return

Made = Callable[[], ClientConnection]

PLAIN = (), (0, 0)  # behind an address's host and port: nothing, or IPv6's without a flow and a zone


def client_context() -> ssl.SSLContext:
    """Certificates are checked against the system's authorities (or `SSL_CERT_FILE`), names too."""
    context = ssl.create_default_context()
    context.set_alpn_protocols(["http/1.1"])
    return context


class Connector:
    """`timeout_s` for all of it together. `tls`: of an origin of https."""

    def __init__(self, origin: Origin, timeout_s: float, tls: ssl.SSLContext | None = None) -> None:
        self._origin = origin
        self._timeout_s = timeout_s
        self._tls = (tls or client_context()) if origin.tls else None
        self._looking = asyncio.Lock()
        self._addresses: list[Any] = []
        self._known_until = 0.0  # time of the event loop

    async def open(self, made: Made, due: float) -> ClientConnection:
        """`due`: time of the event loop, by which it is wanted. Raises `ConnectFailed`."""
        try:
            async with asyncio.timeout_at(min(due, asyncio.get_running_loop().time() + self._timeout_s)):
                return await self._open(made)
        except TimeoutError:
            raise ConnectTimedOut("no connection in time") from None
        except OSError as error:  # ssl.SSLError and socket.gaierror among them
            self._addresses = []
            raise ConnectFailed(_said(error)) from None

    async def _open(self, made: Made) -> ClientConnection:
        loop = asyncio.get_running_loop()
        begun: list[ClientConnection] = []

        def making() -> ClientConnection:
            begun.append(made())
            return begun[0]

        addresses = await self._known()
        to: dict[str, Any] = {}
        opened: socket.socket | None = None
        if len(addresses) == 1 and addresses[0][4][2:] in PLAIN:  # uvloop connects to it in a third of the time
            to["host"], to["port"] = addresses[0][4][:2]
        else:
            to["sock"] = opened = await start_connection(
                addresses, happy_eyeballs_delay=HAPPY_EYEBALLS_DELAY_S, interleave=1, loop=loop
            )
        if self._tls is not None:
            to |= {
                "ssl": self._tls, "server_hostname": self._origin.host, "ssl_shutdown_timeout": TLS_SHUTDOWN_S,
            }  # fmt: skip
        try:
            if opened is not None:
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            _, connection = await loop.create_connection(making, **to)
        except BaseException:
            if opened is not None:
                opened.close()
            for connection in begun:
                connection.dropped()
            raise
        return connection

    async def _known(self) -> list[Any]:
        """The origin's addresses. Who comes while they are looked up waits for that."""
        loop = asyncio.get_running_loop()
        async with self._looking:
            if not self._addresses or loop.time() >= self._known_until:
                found = await loop.getaddrinfo(self._origin.host, self._origin.port, type=socket.SOCK_STREAM)
                self._addresses, self._known_until = list(found), loop.time() + ADDRESSES_KEPT_S
            self._addresses.append(self._addresses.pop(0))  # each connection begins with the next one
            return list(self._addresses)


def _said(error: OSError) -> str:
    """Words for it that name no address."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        if error.reason == "WRONG_VERSION_NUMBER":
            return "it does not speak TLS: is its url http:// rather than https://?"
        return f"no TLS: {error.reason or 'the handshake failed'}"
    if isinstance(error, socket.gaierror):
        return "its name is not known"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused"
    return f"no connection ({type(error).__name__})"


# The connections to one origin: kept for the next request, and no more of them than allowed.
MAX_WAITING = 1024

CLOSE_S = 5.0  # transports say in the next turn of the loop that they are closed


class ConnectionPool:
    """At most `max_connections`, each of which may lie idle for `idle_s` seconds at most."""

    def __init__(self, connector: Connector, *, max_connections: int, idle_s: float) -> None:
        self._connector = connector
        self._max_connections = max_connections
        self._idle_s = idle_s
        self._names, self._known = HeaderNames(), ResponseHeadCache()
        self._all: set[ClientConnection] = set()
        self._idle: dict[ClientConnection, None] = {}  # the last one freed is the first one taken: the others may end
        self._opening = 0  # and those that were promised to who waits
        self._waiting: deque[asyncio.Future[ClientConnection | None]] = deque()
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def open(self) -> int:
        return len(self._all)

    def idle(self) -> ClientConnection | None:
        """One that lies idle, and is not any more."""
        while self._idle:
            connection, _ = self._idle.popitem()
            transport = connection.transport
            if transport is not None and not transport.is_closing():
                return connection
        return None

    async def connected(self, due: float) -> ClientConnection:
        """A new one where there is room; else the first that is freed. `due`: time of the event loop, until which there
        is to be one. Raises `ConnectFailed`."""
        while len(self._all) + self._opening >= self._max_connections:
            if self._idle:  # whoever wants a new one has found them to be stale
                stale = next(iter(self._idle))
                del self._idle[stale]
                stale.abort()
            given = await self._turn(due)
            if given is None:
                break
            if given.transport is not None and not given.transport.is_closing():
                return given
        else:
            self._opening += 1
        try:
            connection = await self._connector.open(self._made, due)
        finally:
            self._opening -= 1
            self._invite()
        if self._closed:
            connection.abort()
        return connection

    def opened(self, connection: ClientConnection) -> None:
        self._all.add(connection)
        self._empty.clear()

    def freed(self, connection: ClientConnection) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if self._closed:
            connection.close()
        else:
            self._idle[connection] = None

    def gone(self, connection: ClientConnection) -> None:
        self._all.discard(connection)
        if not self._all:
            self._empty.set()
        self._idle.pop(connection, None)
        self._invite()

    async def close(self) -> None:
        """Cuts what is under way."""
        self._closed = True
        self._idle.clear()
        for connection in tuple(self._all):
            connection.abort()
        async with asyncio.timeout(CLOSE_S):
            await self._empty.wait()

    def _made(self) -> ClientConnection:
        return ClientConnection(self, self._names, self._known, self._idle_s)

    async def _turn(self, due: float) -> ClientConnection | None:
        """One that was freed, or None: there is room for a new one, which is promised to who asked."""
        if len(self._waiting) >= MAX_WAITING:
            raise PoolExhausted("too many wait for a connection")
        waiter: asyncio.Future[ClientConnection | None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        try:
            async with asyncio.timeout_at(due):
                return await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled():
                self._returned(waiter.result())
            if isinstance(error, TimeoutError):
                raise ConnectTimedOut("no connection became free in time") from None
            raise
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _returned(self, given: ClientConnection | None) -> None:
        """By who has given up in the moment in which it was given."""
        if given is not None:
            self.freed(given)
            return
        self._opening -= 1
        self._invite()

    def _invite(self) -> None:
        """Those who wait, as far as there is room."""
        while self._waiting and len(self._all) + self._opening < self._max_connections:
            waiter = self._waiting.popleft()
            if not waiter.done():
                self._opening += 1
                waiter.set_result(None)
