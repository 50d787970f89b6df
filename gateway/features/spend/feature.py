"""The declaration of the feature `spend`."""

from __future__ import annotations

from gateway.cache.stored_parts import UnreachedPart
from gateway.config.policy.model import Route
from gateway.context import RequestContext
from gateway.feature import Core, Feature, Runtime, Unsupported
from gateway.features.spend.alerts import Alerts
from gateway.features.spend.ledger import SPEND, Ledger
from gateway.features.spend.metrics import SpendMetrics
from gateway.features.spend.rule import SUMMARY, SpendForm
from gateway.features.spend.store import SpendStore
from gateway.tasks import restart_on_failure, run_in


class Unbooked(Runtime):
    """The feature where no request is served: it books nothing."""

    def stored_parts(self) -> tuple[UnreachedPart]:
        return (UnreachedPart(SPEND, exists=False),)


class Spend(Feature):
    """The books of a route's calls."""

    key = "spend"
    after = "record"
    summary = SUMMARY
    form = SpendForm
    metrics = SpendMetrics
    meters = True
    stores = (SPEND,)

    def open(self, core: Core) -> Runtime:
        if core.store is None:
            return Unbooked()
        store, metrics = SpendStore(core.store), core.telemetry.include(SpendMetrics())
        alerts = Alerts(store, core.clock, metrics)
        ledger = Ledger(store, core, metrics, alerts)
        core.stack.push_async_callback(ledger.close)
        run_in(core.stack, restart_on_failure(ledger.run))
        run_in(core.stack, restart_on_failure(alerts.run))
        return ledger

    def explain(self, request: RequestContext, route: Route) -> Unsupported:
        return Unsupported("no decision reads the spend")

    def doctor(self, route: Route) -> Unsupported:
        return Unsupported("nearhit doctor names the models without a price, whatever the route")

    def simulate(self) -> Unsupported:
        return Unsupported("a simulation has its own costs, and names no client")


BOOKS = Spend()
