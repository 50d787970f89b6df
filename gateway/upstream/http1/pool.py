"""The connections to one origin: kept for the next request, and no more of them than allowed."""

from __future__ import annotations

import asyncio
from collections import deque

from gateway.upstream.http1.connection import Connection
from gateway.upstream.http1.connector import Connector
from gateway.upstream.http1.errors import ConnectTimedOut, Crowded
from gateway.upstream.http1.headers import Names
from gateway.upstream.http1.response_head_cache import KnownHeads

MAX_WAITING = 1024
CLOSE_S = 5.0  # transports say in the next turn of the loop that they are closed


class Pool:
    """At most `max_connections`, each of which may lie idle for `idle_s` seconds at most."""

    def __init__(self, connector: Connector, *, max_connections: int, idle_s: float) -> None:
        self._connector = connector
        self._max_connections = max_connections
        self._idle_s = idle_s
        self._names, self._known = Names(), KnownHeads()
        self._all: set[Connection] = set()
        self._idle: dict[Connection, None] = {}  # the last one freed is the first one taken: the others may end
        self._opening = 0  # and those that were promised to who waits
        self._waiting: deque[asyncio.Future[Connection | None]] = deque()
        self._closed = False
        self._empty = asyncio.Event()
        self._empty.set()

    @property
    def open(self) -> int:
        return len(self._all)

    def idle(self) -> Connection | None:
        """One that lies idle, and is not any more."""
        while self._idle:
            connection, _ = self._idle.popitem()
            transport = connection.transport
            if transport is not None and not transport.is_closing():
                return connection
        return None

    async def connected(self, due: float) -> Connection:
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

    def opened(self, connection: Connection) -> None:
        self._all.add(connection)
        self._empty.clear()

    def freed(self, connection: Connection) -> None:
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if self._closed:
            connection.close()
        else:
            self._idle[connection] = None

    def gone(self, connection: Connection) -> None:
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

    def _made(self) -> Connection:
        return Connection(self, self._names, self._known, self._idle_s)

    async def _turn(self, due: float) -> Connection | None:
        """One that was freed, or None: there is room for a new one, which is promised to who asked."""
        if len(self._waiting) >= MAX_WAITING:
            raise Crowded("too many wait for a connection")
        waiter: asyncio.Future[Connection | None] = asyncio.get_running_loop().create_future()
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

    def _returned(self, given: Connection | None) -> None:
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
