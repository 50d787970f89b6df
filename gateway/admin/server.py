"""The admin port: metrics, dashboard, what the gateway knows of itself. Loopback by default, a token otherwise."""

from __future__ import annotations

import base64
import hmac
from collections.abc import Awaitable, Callable, Sequence
from importlib import resources

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from gateway.admin.answers import json_answer
from gateway.admin.quality import Quality
from gateway.admin.stats import Stats
from gateway.observing.telemetry import Telemetry
from gateway.written.units import Address

SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
# The page is one file: nothing is loaded from anywhere else, and nobody may frame it.
PAGE_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; "
    "connect-src 'self'; img-src data:; frame-ancestors 'none'; base-uri 'none'",
    "X-Content-Type-Options": "nosniff",
}


class AdminPort:
    """`token` None: whoever reaches the port may use it, which is why the configuration then demands loopback.

    `hosts`: names beside its own address that it may be called by. `before_scrape` brings gauges up to date.
    """

    def __init__(
        self,
        address: Address,
        hosts: Sequence[str],
        token: str | None,
        telemetry: Telemetry,
        stats: Stats,
        quality: Quality,
        *,
        before_scrape: Callable[[], Awaitable[None]],
        routes: Sequence[web.RouteDef] = (),
    ) -> None:
        self._address = address
        self._hosts = frozenset(hosts)
        self._token = token
        self._stats = stats
        self._quality = quality
        self._before_scrape = before_scrape
        self._routes = routes
        self._registry = CollectorRegistry()
        self._registry.register(telemetry)
        self._page = (resources.files("gateway.admin") / "dashboard.html").read_bytes()
        self._runner: web.AppRunner | None = None

    async def start(self) -> tuple[str, int]:
        """Listens; returns the address."""
        app = web.Application(middlewares=[self._guard])
        app.add_routes(
            [
                web.get("/", self._home),
                web.get("/metrics", self._metrics),
                web.get("/dashboard", self._dashboard),
                web.get("/admin/stats", self._get_stats),
                web.get("/admin/backends", self._get_backends),
                *self._routes,
                *self._quality.routes(),
            ]
        )
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        await web.TCPSite(self._runner, self._address.host, self._address.port).start()
        address: tuple[str, int] = self._runner.addresses[0][:2]
        return address

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(
        self, request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        if not self._is_ours(request):
            return web.json_response({"error": "the Host header is not this listener's"}, status=403)
        if self._token is not None and not hmac.compare_digest(_presented(request), self._token.encode()):
            return web.json_response(
                {"error": "a bearer token is required"},
                status=401,
                headers={"WWW-Authenticate": 'Basic realm="nearhit admin", charset="UTF-8"'},
            )
        if request.method not in SAFE and _from_another_site(request):
            return web.json_response({"error": "a page of another site sent this"}, status=403)
        return await handler(request)

    def _is_ours(self, request: web.Request) -> bool:
        """A page of another site that has its name resolved to us (DNS rebinding) sends that name as Host."""
        transport = request.transport
        local = transport.get_extra_info("sockname") if transport is not None else None
        if local is None:
            return False
        host, port = local[0], local[1]
        names = {self._address.host, host} | ({"localhost"} if self._address.loopback else set())
        bracketed = {f"[{name}]" if ":" in name else name for name in names}
        if request.host in {f"{name}:{port}" for name in bracketed}:
            return True
        return request.host in self._hosts or request.host.rpartition(":")[0] in self._hosts

    async def _home(self, request: web.Request) -> web.StreamResponse:
        raise web.HTTPFound("/dashboard")

    async def _metrics(self, request: web.Request) -> web.StreamResponse:
        await self._before_scrape()
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))  # OpenMetrics has exemplars
        return web.Response(body=encode(self._registry), headers={"Content-Type": content_type})

    async def _dashboard(self, request: web.Request) -> web.StreamResponse:
        return web.Response(body=self._page, content_type="text/html", charset="utf-8", headers=PAGE_HEADERS)

    async def _get_stats(self, request: web.Request) -> web.StreamResponse:
        await self._before_scrape()
        return json_answer(self._stats.report())

    async def _get_backends(self, request: web.Request) -> web.StreamResponse:
        return json_answer(self._stats.report()["backends"])


def _from_another_site(request: web.Request) -> bool:
    """Browsers say where a request that changes something comes from; whatever else sends one says nothing."""
    origin = request.headers.get("Origin")
    if origin is not None and origin.partition("://")[2] != request.host:
        return True
    return request.headers.get("Sec-Fetch-Site", "none") not in ("none", "same-origin")


def _presented(request: web.Request) -> bytes:
    """The token as a bearer, or as the password of the dialog that a browser opens for the dashboard."""
    scheme, _, value = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip().encode("utf-8", "surrogateescape")  # the bytes that came, text or not
    if scheme.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).partition(b":")[2]
        except ValueError:  # binascii.Error, or what is not even ASCII
            return b""
    return b""
