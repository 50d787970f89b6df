"""The declaration of the feature `limits`.

Its steps `CountRequests` and `RateLimit` are in the list of the pipeline: with API keys, prices or a traffic log, a
route without limits has them, too. Keys have limits of their own, so the sections are in
`gateway.config.policy.limits`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import AfterValidator

from gateway.config.policy.limits import (
    LimitRules,
    compile_limits,
    duplicate_limit_problems,
    tier_limit_problems,
)
from gateway.config.policy.model import Route
from gateway.config.validation import Problem
from gateway.context import RequestContext
from gateway.feature import Core, Feature, Runtime, Unsupported
from gateway.limits import Limits, RouteLimits


class LimitsOfRoutes(Feature):
    """Limits on the requests, tokens and cost of a tenant, key or user."""

    key = "limits"
    after = "route"
    summary = "One limit or a list of them, for each tenant, key or user, or for the route."
    form = Annotated[LimitRules, AfterValidator(lambda rules: RouteLimits(compile_limits(rules)) if rules else None)]
    stores = Unsupported("its counts have digests and no texts, and expire")

    def problems(self, route: Mapping[str, Any]) -> Iterator[Problem]:
        target, limits = route.get("route"), route.get("limits")
        if isinstance(target, dict) and target.get("backend") is not None:
            yield from tier_limit_problems(limits)
        yield from duplicate_limit_problems(limits)

    def open(self, core: Core) -> Runtime:
        return Runtime()

    def explain(self, request: RequestContext, route: Route) -> Unsupported:
        return Unsupported("its line follows those of the backends")

    def explain_fields(self, request: RequestContext, route: Route) -> Mapping[str, Any]:
        limits = route.of(RouteLimits)
        return {} if limits is None else {"limits": tuple(map(_in_words, limits.rules))}

    def doctor(self, route: Route) -> Unsupported:
        return Unsupported("nearhit check finds the faults of its rules")

    def simulate(self) -> Unsupported:
        return Unsupported("limits are not replayed: requests that they would refuse count as answered")


def _in_words(rule: Limits) -> str:
    parts = [f"{pace} requests" for pace in rule.requests] + [f"{pace} tokens" for pace in rule.tokens]
    if rule.concurrency is not None:
        parts.append(f"{rule.concurrency} at once")
    if rule.large_share is not None:
        parts.append(f"{100 * rule.large_share:g}% of the requests to the large backend, then the lightest")
    parts += [f"{cap.micros / 1e6:g} USD a {cap.window}{', then the lightest' * cap.light}" for cap in rule.caps]
    return f"{', '.join(parts)} for each {rule.per}" if rule.per != "route" else f"{', '.join(parts)} for the route"


LIMITS = LimitsOfRoutes()
