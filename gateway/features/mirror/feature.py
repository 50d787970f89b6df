"""The declaration of the feature `route.shadow`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.config.policy.model import Route
from gateway.context import RequestContext
from gateway.feature import Core, Feature, Unsupported
from gateway.features.mirror.mirroring import Mirroring, ShadowMetrics
from gateway.features.mirror.rule import SUMMARY, ShadowRule


class Mirror(Feature):
    """Copies of requests to a backend whose answers no client gets."""

    key = "route.shadow"
    after = "fallback"
    summary = SUMMARY
    embeds = True
    form = ShadowRule | None
    backend_fields = ("backend",)
    metrics = ShadowMetrics
    stores = Unsupported("the answers of a shadow are compared and not stored")

    def open(self, core: Core) -> Mirroring:
        metrics = core.telemetry.include(ShadowMetrics())
        on_compared = None if core.recording is None else core.recording.compared
        mirroring = Mirroring(core.pools, core.prices, metrics, core.clock, core.draw, on_compared)
        core.stack.push_async_callback(mirroring.close)
        return mirroring

    def explain(self, request: RequestContext, route: Route) -> Unsupported:
        return Unsupported("its line stands next to those of the backends")

    def explain_fields(self, request: RequestContext, route: Route) -> Mapping[str, Any]:
        rule = route.of(ShadowRule)
        return {} if rule is None else {"shadow": f"{rule.backend}, {100 * rule.share:g}% of the misses"}

    def doctor(self, route: Route) -> Unsupported:
        return Unsupported("nearhit check finds the faults of its rule")

    def simulate(self) -> None:
        return None  # it changes no answer


MIRROR = Mirror()
