"""The admin port: metrics, dashboard, what the gateway knows of itself. Who may ask what is for `guard` to say."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from gateway.admin.learning import QualityHandler
from gateway.admin.middleware import AccessMiddleware, actor_of
from gateway.admin.responses import json_response
from gateway.admin.static_files import PATH
from gateway.admin.stats import Stats
from gateway.config.units import Address
from gateway.observability.telemetry import Telemetry


class AdminPort:
    """`guard` sees every request first. `before_scrape` brings gauges up to date,
    `before_stats` what all gateways say together."""

    def __init__(
        self,
        address: Address,
        guard: AccessMiddleware,
        telemetry: Telemetry,
        stats: Stats,
        quality: QualityHandler,
        *,
        before_scrape: Callable[[], Awaitable[None]],
        before_stats: Callable[[], Awaitable[None]],
        routes: Sequence[web.RouteDef] = (),
        listening_socket: socket.socket | None = None,
    ) -> None:
        """`listening_socket` listens already, at `address`."""
        self._address = address
        self._guard = guard
        self._stats = stats
        self._quality = quality
        self._before_scrape = before_scrape
        self._before_stats = before_stats
        self._routes = routes
        self._registry = CollectorRegistry()
        self._registry.register(telemetry)
        self._listening_socket = listening_socket
        self._runner: web.AppRunner | None = None

    async def start(self) -> tuple[str, int]:
        """Listens; returns the address."""
        app = web.Application(middlewares=[self._guard.handle])
        app.add_routes(
            [
                web.get("/", self._home),
                web.get("/metrics", self._metrics),
                web.get("/admin/whoami", self._whoami),
                web.get("/admin/stats", self._get_stats),
                web.get("/admin/backends", self._get_backends),
                *self._routes,
                *self._quality.routes(),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        if self._listening_socket is None:
            await web.TCPSite(self._runner, self._address.host, self._address.port).start()
        else:
            await web.SockSite(self._runner, self._listening_socket).start()
        address: tuple[str, int] = self._runner.addresses[0][:2]
        return address

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    async def _home(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound(PATH)

    async def _whoami(self, request: web.Request) -> web.StreamResponse:
        return json_response(asdict(actor_of(request)))

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        await self._before_scrape()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))  # OpenMetrics has exemplars
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    async def _get_stats(self, request: web.Request) -> web.StreamResponse:
        await self._before_stats()
        return json_response(self._stats.report())

    async def _get_backends(self, request: web.Request) -> web.StreamResponse:
        return json_response(self._stats.report()["backends"])
