"""The server of the admin port, with the operations that belong to no other module."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from gateway.admin.backends import BackendReport
from gateway.admin.learning import QualityHandler
from gateway.admin.middleware import PAGE, AccessMiddleware, actor_of
from gateway.admin.operations import TEXT, operation
from gateway.admin.responses import json_response
from gateway.admin.stats import Stats, StatsReport
from gateway.config.units import Address
from gateway.observability.telemetry import Telemetry
from gateway.principal import Actor


class AdminPort:
    """`AdminPort` serves the admin operations.

    `guard` checks every request first. `before_scrape` updates the gauges, and `before_stats` the totals of all
    gateways.
    """

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
        """`listening_socket` already listens at `address`."""
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

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/", self._home),
            web.get("/metrics", self._metrics),
            web.get("/admin/whoami", self._whoami),
            web.get("/admin/stats", self._get_stats),
            web.get("/admin/backends", self._get_backends),
        ]

    async def start(self) -> tuple[str, int]:
        """Listen, and return host and port."""
        app = web.Application(middlewares=[self._guard.handle])
        app.on_response_prepare.append(_forbid_sniffing)
        app.add_routes([*self.routes(), *self._routes, *self._quality.routes()])
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        if self._listening_socket is None:
            await web.TCPSite(self._runner, self._address.host, self._address.port).start()
        else:
            await web.SockSite(self._runner, self._listening_socket).start()
        address: tuple[str, int] = self._runner.addresses[0][:2]
        return address

    async def stop(self) -> None:
        """Close the listener and all connections."""
        if self._runner is not None:
            await self._runner.cleanup()

    @operation(status=302)
    async def _home(self, request: web.Request) -> web.StreamResponse:
        """Redirect to the dashboard."""
        raise web.HTTPFound(PAGE)

    @operation(Actor)
    async def _whoami(self, request: web.Request) -> web.StreamResponse:
        """Show the name and the role of the caller."""
        return json_response(asdict(actor_of(request)))

    @operation(str, returns_type=TEXT)
    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        """Return the metrics for Prometheus. With a matching `Accept` header, the format is OpenMetrics."""
        await self._before_scrape()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))  # OpenMetrics has exemplars
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    @operation(StatsReport)
    async def _get_stats(self, request: web.Request) -> web.StreamResponse:
        """Return the figures of the dashboard: totals of all gateways, and the state of this one."""
        await self._before_stats()
        return json_response(self._stats.report())

    @operation(dict[str, BackendReport])
    async def _get_backends(self, request: web.Request) -> web.StreamResponse:
        """Show the state of each backend and its upstreams, by name."""
        return json_response(self._stats.report()["backends"])


async def _forbid_sniffing(_: web.Request, response: web.StreamResponse) -> None:
    """Forbid browsers to guess another type than the one that the response names, such as a page in JSON."""
    response.headers["X-Content-Type-Options"] = "nosniff"
