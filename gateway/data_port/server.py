"""The data port: listens, and stops without losing a request."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from ssl import SSLContext

from aiohttp import web

from gateway.config.schema import Server as ServerConfig
from gateway.data_port.aiohttp_edge import AiohttpEdge
from gateway.data_port.connections import Connections
from gateway.data_port.front import Front
from gateway.data_port.lookups import Lookups
from gateway.data_port.misses import Misses
from gateway.data_port.service import Health, Service
from gateway.data_port.straight import Straight
from gateway.pipeline import Handler
from gateway.ports import Clock

HTTP_LOG = logging.getLogger("nearhit.http")
# In a hand-over: how long clients that keep a connection may take to ask once more. Those that are busy ask sooner.
LEAVE_S = 3.0
LINGER_S = 2.0  # for the rest of a body that was refused: the next request begins behind it


class DataPort:
    """`health` answers /readyz: whether it is ready, and what it looked at; `table` is the policy in force. `tls` None:
    plain HTTP. `given` listens already, and goes on to when this port is stopped. `beside`: see `Service`."""

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        health: Health,
        front: Front,
        lookups: Lookups,
        misses: Misses,
        straight: Straight,
        table: Callable[[], object],
        tls: SSLContext | None = None,
        given: socket.socket | None = None,
        beside: Callable[[], int] | None = None,
    ) -> None:
        self._config = config
        self._service = Service(config, clock, health, beside)
        self._front = front
        self._lookups = lookups
        self._misses = misses
        self._straight = straight
        self._table = table
        self._given = given
        self._connections: Connections | None = None
        self._runner: web.ServerRunner | None = None
        self._tls = tls

    @property
    def inflight(self) -> int:
        """Requests that are being answered."""
        return self._service.inflight

    async def start(self, handler: Handler) -> tuple[str, int]:
        """Listens; returns the address, with the port that the system chose where 0 was asked for."""
        self._service.handler = handler
        self._lookups.serve(self._service)
        self._misses.serve(self._service)
        self._straight.serve(self._service)
        connections = Connections(
            AiohttpEdge(self._service),
            self._service,
            self._front,
            self._lookups,
            self._misses,
            self._straight,
            self._table,
            self._config,
            handler_cancellation=True,  # a client that leaves cancels its request, upstream too
            access_log=None,
            logger=HTTP_LOG,
            lingering_time=LINGER_S,
            auto_decompress=False,  # what passes through stays as it is
        )
        self._runner = web.ServerRunner(connections, shutdown_timeout=self._config.drain_timeout)
        await self._runner.setup()
        host, port = self._config.listen
        if self._given is None:
            await web.TCPSite(self._runner, host, port, backlog=1024, ssl_context=self._tls).start()
        else:
            await web.SockSite(self._runner, self._given, backlog=1024, ssl_context=self._tls).start()
        self._connections = connections
        address: tuple[str, int] = self._runner.addresses[0][:2]
        return address

    async def stop(self) -> None:
        """Takes no more connections, lets what is in flight end within `drain_timeout`, then cuts."""
        self._service.draining = True
        self._service.stopping.set()
        if self._runner is not None:
            if self._given is not None:
                await self._take_leave(self._runner)
            await self._runner.cleanup()

    async def _take_leave(self, runner: web.ServerRunner) -> None:
        """Others listen already: connections that are open are told with their next answer that it was the last. One
        that is cut while its client sends a request is a request that is lost."""
        for site in list(runner.sites):
            await site.stop()
        if self._connections is None:
            return
        self._connections.leaving = True
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVE_S):
                await self._connections.emptied()
