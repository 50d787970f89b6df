"""Reports of the admin port: what the gateways on the store saved, and what routes have spent of their budgets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aiohttp import web

from gateway.admin.on_demand import AdminCore
from gateway.admin.operations import NotRequired, TypedDict, operation
from gateway.admin.responses import json_errors, json_response
from gateway.features.spend.budgets import Books, Costs, forecast, named_in, spent_since
from gateway.features.spend.figures import Figures
from gateway.features.spend.periods import PeriodQuery, first_of_month, hours_of, iso_time
from gateway.features.spend.rows import HOUR_S, Groups, Party, add_hour, dollars
from gateway.features.spend.rule import SpendRule
from gateway.features.spend.savings import SavingsReport, Share, savings
from gateway.features.spend.store import SpendStore


class RouteBudget(TypedDict):
    route: str
    budget: float | None
    """US dollars of the month, as the policy says. Null: it says none."""
    spent: float
    left: float | None
    forecast: float | None
    """US dollars of the whole month, by the mean of the last seven days. Null: nothing is booked."""


class PartyBudget(RouteBudget):
    tenant: NotRequired[str]
    key: NotRequired[str]


class BudgetReport(TypedDict):
    month: str
    """Such as 2026-11 (UTC)."""
    spent: float
    """US dollars of all routes in the month so far."""
    forecast: float | None
    routes: list[RouteBudget]
    parties: list[PartyBudget]
    """Tenants and keys with a budget of their own on a route."""


class ReportAdmin:
    """`ReportAdmin` serves `GET /admin/report` and `GET /admin/budgets`."""

    def __init__(self, core: AdminCore) -> None:
        self._store = SpendStore(core.stores.redis)
        self._clock = core.clock
        self._policy = core.policy
        self._parts = core.parts
        self._books = Books(self._store)

    def routes(self) -> list[web.RouteDef]:
        return [
            web.get("/admin/report", json_errors(self._get)),
            web.get("/admin/budgets", json_errors(self._get_budgets)),
        ]

    @operation(SavingsReport, query=PeriodQuery)
    async def _get(self, request: web.Request) -> web.StreamResponse:
        """Report what hits and the choice among models saved, how often they were wrong, and what they cost. The
        figures are those of all gateways on the store, up to the last second, on routes with `spend`."""
        now = int(self._clock.wall())
        first, end = hours_of(request.query, now, first_of_month(now))
        rows: Groups = {}
        async for hour, page in self._store.read(first, end):
            add_hour(rows, hour, page, ["route"])
        figures: dict[str, Figures] = {}
        async for _, found_figures in self._store.read_figures(first, end):
            for route, more in found_figures:
                figures.setdefault(route, Figures()).add(more)
        found = savings(rows, figures, self._wrong_shares())
        return json_response({**found, "since": iso_time(first * HOUR_S), "until": iso_time(min(end * HOUR_S, now))})

    @operation(BudgetReport)
    async def _get_budgets(self, request: web.Request) -> web.StreamResponse:
        """Report what routes with `spend` have spent of their budgets in this month (UTC), with a forecast."""
        now = int(self._clock.wall())
        rules = {route.name: rule for route in self._policy().routes if (rule := route.of(SpendRule)) is not None}
        costs = await self._books.costs(now, named_in(rules))
        whole = {hour: sum(n for party, n in each.items() if not party.kind) for hour, each in costs.items()}
        budgets = {party: one for route, rule in rules.items() for party, one in rule.budgets(route).items()}
        return json_response(
            {
                "month": iso_time(now)[:7],
                "spent": dollars(sum(n for hour, n in whole.items() if hour >= first_of_month(now))),
                "forecast": forecast(whole, now),
                "routes": [_budget(Party(route), budgets.get(Party(route)), costs, now) for route in rules],
                "parties": [_budget(party, one, costs, now) for party, one in budgets.items() if party.kind],
            }
        )

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


def _budget(party: Party, budget: float | None, costs: Costs, now: int) -> dict[str, Any]:
    used = dollars(spent_since(costs, first_of_month(now)).get(party, 0))
    by_hour = {hour: each[party] for hour, each in costs.items() if party in each}
    named = {party.kind: party.name} if party.kind else {}
    left = None if budget is None else budget - used
    told = {"route": party.route, **named, "budget": budget, "spent": used, "left": left}
    return {**told, "forecast": forecast(by_hour, now)}
