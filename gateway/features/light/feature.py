"""The declaration of the feature `route.rollout`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gateway.cache.stored_parts import StoredPart, UnreachedPart
from gateway.config.policy.model import Route
from gateway.config.validation import Problem
from gateway.context import Handler, RequestContext
from gateway.feature import Core, Feature, FeatureStep, Place, Runtime, Unsupported
from gateway.features.light.comparison import ROWS
from gateway.features.light.metrics import RolloutMetrics
from gateway.features.light.rule import SUMMARY, RolloutForm, RolloutRule, rollout_problems
from gateway.features.light.runtime import Rollouts
from gateway.features.light.store import RolloutStore
from gateway.tasks import restart_on_failure, run_in


class Idle(Runtime):
    """The feature where no request is served: it rolls nothing out."""

    def observe(self, route: Route, inner: Handler) -> Handler:
        return inner

    def stored_parts(self) -> tuple[StoredPart]:
        return (UnreachedPart(ROWS, exists=False),)


class Rollout(Feature):
    """The rollout of versions of the light model."""

    key = "route.rollout"
    after = "shadow"
    summary = SUMMARY
    form = RolloutForm
    among_tiers = True
    metrics = RolloutMetrics
    steps = (
        FeatureStep(
            "CompareVersions",
            Place.ANSWERS,
            "keeps what the large model answers, and compares versions of the light one with it",
            lambda runtime, route, inner: runtime.observe(route, inner),
        ),
    )
    stores = (ROWS,)

    def problems(self, route: Mapping[str, Any]) -> Iterator[Problem]:
        return rollout_problems(route)

    def open(self, core: Core) -> Runtime:
        if core.store is None:
            return Idle()
        rollouts = Rollouts(core, RolloutStore(core.store), core.telemetry.include(RolloutMetrics()))
        core.stack.push_async_callback(rollouts.close)
        run_in(core.stack, restart_on_failure(rollouts.run))
        return rollouts

    def explain(self, request: RequestContext, route: Route) -> Mapping[str, str]:
        rule = route.of(RolloutRule)
        if rule is None:
            return {}
        steps = ", ".join(f"{share:.0%}" for share in rule.steps)
        return {"rollout": f"steps {steps}; nearhit light explain --route {route.name} has the versions in force"}

    def doctor(self, route: Route) -> Unsupported:
        return Unsupported("nearhit light list shows what the model servers lack")

    def simulate(self) -> Unsupported:
        return Unsupported("versions of models are not replayed: a simulation calls no model")


ROLLOUT = Rollout()
