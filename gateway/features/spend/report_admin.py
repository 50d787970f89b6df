"""`GET /admin/report`: what the gateways on the store saved, and what that cost."""

from __future__ import annotations

from collections.abc import Mapping

from aiohttp import web

from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import operation
from gateway.admin.responses import json_errors, json_response
from gateway.features.spend.figures import Figures
from gateway.features.spend.periods import PeriodQuery, first_of_month, hours_of, iso_time
from gateway.features.spend.rows import HOUR_S, Counts, grouped
from gateway.features.spend.savings import SavingsReport, Share, savings
from gateway.features.spend.store import SpendStore


class ReportAdmin:
    """`ReportAdmin` serves `GET /admin/report`."""

    def __init__(self, core: AdminCore) -> None:
        self._store = SpendStore(core.stores.redis)
        self._clock = core.clock
        self._policy = core.policy
        self._parts = core.parts

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/admin/report", json_errors(self._get))]

    @operation(SavingsReport, query=PeriodQuery)
    async def _get(self, request: web.Request) -> web.StreamResponse:
        """Report what hits and the choice among models saved, how often they were wrong, and what they cost. The
        figures are those of all gateways on the store, up to the last second, on routes with `spend`."""
        now = int(self._clock.wall())
        first, end = hours_of(request.query, now, first_of_month(now))
        rows: dict[tuple[str, ...], Counts] = {}
        async for _, page in self._store.read(first, end):
            for name, counts in grouped(page, ["route"]).items():
                rows.setdefault(name, Counts()).add(counts)
        figures: dict[str, Figures] = {}
        async for _, hour in self._store.read_figures(first, end):
            for route, more in hour:
                figures.setdefault(route, Figures()).add(more)
        found = savings(rows, figures, self._wrong_shares())
        return json_response({**found, "since": iso_time(first * HOUR_S), "until": iso_time(min(end * HOUR_S, now))})

    def _wrong_shares(self) -> Mapping[str, Share]:
        """Return the shares of wrong semantic hits, by route, from all audits that the gateway remembers."""
        spaces = self._parts().spaces
        if not spaces.is_open:
            return {}
        shares = {}
        for route in self._policy().routes:
            if route.semantic is not None:
                estimate = spaces.serving.controls.of(route.name).estimate()
                shares[route.name] = Share(estimate.of_served, estimate.of_served_low, estimate.of_served_high)
        return shares
