"""The declaration of the feature `route.cascade`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.calls import Call
from gateway.config.policy.model import Route
from gateway.config.validation import Problem
from gateway.context import RequestContext
from gateway.feature import Core, Feature, Runtime, Unsupported
from gateway.features.cascade.policy import is_applicable
from gateway.features.cascade.rule import SUMMARY, CascadeRule, logprobs_warnings
from gateway.features.cascade.trials import CascadeDispatch, CascadeMetrics
from gateway.routing.trials import CallBackends, TrialParts
from gateway.steps.route_ports import RoutePorts


class RouteTrials:
    """The trials of one route."""

    def __init__(self, rule: CascadeRule, metrics: CascadeMetrics) -> None:
        self._rule = rule
        self._metrics = metrics

    def can_check(self, call: Call) -> bool:
        return is_applicable(self._rule.check, call, judged=self._rule.judge is not None)

    def caller(self, parts: TrialParts) -> CallBackends:
        return CascadeDispatch(self._rule, parts, self._metrics).answer


class CascadeRuntime(Runtime):
    """The metrics of all cascades."""

    def __init__(self, metrics: CascadeMetrics) -> None:
        self._metrics = metrics

    def ports(self, route: Route) -> RoutePorts:
        rule = route.of(CascadeRule)
        return RoutePorts(trials=None if rule is None else RouteTrials(rule, self._metrics))


class Cascade(Feature):
    """Trials of the lightest model, whose answers are checked."""

    key = "route.cascade"
    after = "shadow"
    summary = SUMMARY
    embeds = True
    form = CascadeRule | None
    among_tiers = True
    backend_fields = ("judge",)
    metrics = CascadeMetrics
    stores = Unsupported("an answer that fails its check is not stored")

    def open(self, core: Core) -> CascadeRuntime:
        return CascadeRuntime(core.telemetry.include(CascadeMetrics()))

    def warnings(self, route: Mapping[str, Any], adapters: Mapping[str, str]) -> Iterator[Problem]:
        return logprobs_warnings(route, adapters)

    def explain(self, request: RequestContext, route: Route) -> Unsupported:
        return Unsupported("its line stands next to that of the backend")

    def explain_fields(self, request: RequestContext, route: Route) -> Mapping[str, Any]:
        rule = route.of(CascadeRule)
        return {} if rule is None else {"cascade": rule.in_words}

    def doctor(self, route: Route) -> Unsupported:
        return Unsupported("nearhit check finds the faults of its rule")

    def simulate(self) -> Unsupported:
        return Unsupported("cascades are not replayed: the tier that the complexity selects is counted")


CASCADE = Cascade()
