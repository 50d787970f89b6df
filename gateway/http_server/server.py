"""The data port: listens, and stops without losing a request."""

from __future__ import annotations

import asyncio
import logging
import socket
from contextlib import suppress
from ssl import SSLContext

from aiohttp import web

from gateway.config.schema import ServerConfig
from gateway.context import Handler
from gateway.http_server.aiohttp_edge import AiohttpEdge
from gateway.http_server.connections import ServerConnections
from gateway.http_server.service import Health, RequestService
from gateway.ports import Clock
from gateway.steps.error_boundary import Inflight
from gateway.unread_memory import UnreadMemory

HTTP_LOG = logging.getLogger("nearhit.http")
# How long a handover waits for the next request on open connections. Busy clients send one sooner.
DRAIN_GRACE_S = 3.0
LINGER_S = 2.0  # for the rest of a refused body: the next request begins after it


class HttpServer:
    """The HTTP server of the data port. `handler` is the pipeline. `health` answers /readyz with readiness and the
    checks behind it. `inflight` counts the requests that wait, over all ports. `unread` bounds the memory for answers
    that clients have not read. Without `tls` the port speaks plain HTTP. `listen_socket` listens already, and still
    listens when this port has stopped."""

    def __init__(
        self,
        config: ServerConfig,
        clock: Clock,
        handler: Handler,
        inflight: Inflight,
        health: Health,
        unread: UnreadMemory,
        tls: SSLContext | None = None,
        listen_socket: socket.socket | None = None,
    ) -> None:
        self._config = config
        self._service = RequestService(config, clock, handler, inflight, health)
        self._unread = unread
        self._listen_socket = listen_socket
        self._connections: ServerConnections | None = None
        self._runner: web.ServerRunner | None = None
        self._tls = tls

    async def start(self) -> tuple[str, int]:
        """Listen and return the address, with the port that the system chose if the configured one is 0."""
        connections = ServerConnections(
            AiohttpEdge(self._service),
            self._service,
            self._config,
            self._unread,
            handler_cancellation=True,  # a client that leaves cancels its request, upstream too
            access_log=None,
            logger=HTTP_LOG,
            lingering_time=LINGER_S,
            auto_decompress=False,  # bodies that pass through stay as they are
        )
        self._runner = web.ServerRunner(connections, shutdown_timeout=self._config.drain_timeout)
        await self._runner.setup()
        host, port = self._config.listen
        if self._listen_socket is None:
            await web.TCPSite(self._runner, host, port, backlog=1024, ssl_context=self._tls).start()
        else:
            await web.SockSite(self._runner, self._listen_socket, backlog=1024, ssl_context=self._tls).start()
        self._connections = connections
        address: tuple[str, int] = self._runner.addresses[0][:2]
        return address

    async def stop(self) -> None:
        """Accept no more connections, wait up to `drain_timeout` for the requests in flight, then abort them."""
        self._service.draining = True
        self._service.stopping.set()
        if self._runner is not None:
            await _accept_waiting()
            if self._listen_socket is not None:
                await self._drain_connections(self._runner)
            await self._runner.cleanup()

    async def _drain_connections(self, runner: web.ServerRunner) -> None:
        """Close each open connection with its next answer, while other processes listen already. Closing one while its
        client sends a request would lose the request."""
        for site in list(runner.sites):
            await site.stop()
        if self._connections is None:
            return
        self._connections.is_draining = True
        with suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_GRACE_S):
                await self._connections.emptied()


async def _accept_waiting() -> None:
    """Let the loop accept the connections that wait in the kernel: closing the port would reset them.

    The first turn of the loop sees them, and the second has accepted them.
    """
    for _ in range(2):
        await asyncio.sleep(0)
