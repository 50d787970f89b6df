"""Prepares the routes of a policy for a replay, with the learnt state from the beginning of the traffic. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gateway.cache.freshness import exact_lifetime, longest_lifetime_s
from gateway.cache.threshold.route_control import RouteControl
from gateway.config.policy.model import Policy, Route
from gateway.config.policy.schema import SemanticRule
from gateway.entries import Lifetime
from gateway.errors import SnapshotInvalid
from gateway.ports import PriorBands
from gateway.routing.tier_controller import TierController
from gateway.steps.traffic_log.format import SegmentHeading

# For the first lookups of a route, the threshold is refreshed as often as in the gateway, every 10 lookups. Then it has
# settled, and refreshing it so often would be most of the work of a replay.
SETTLING_LOOKUPS, REFRESH_EVERY = 500, 100
STEP = 20  # requests between two advances of the control


@dataclass(slots=True)
class RoutePlan:
    """One route of a policy, ready for a replay."""

    route: Route
    exact: Lifetime | None
    semantic: SemanticRule | None
    within: Lifetime  # lifetime in the semantic cache
    longest_s: float
    control: RouteControl
    requests: int = 0
    lookups: int = 0
    advanced_to: int = 0  # requests counted by the control so far

    def count_lookup(self) -> None:
        """Count one lookup. The control advances in steps: its memory fades slowly, over 1,000 requests and more."""
        if self.requests - self.advanced_to >= STEP:
            self.advanced_to = self.requests
            self.control.advance(self.requests)
        self.lookups += 1
        if self.lookups == SETTLING_LOOKUPS:
            self.control.refresh_every = REFRESH_EVERY

    @property
    def is_caching(self) -> bool:
        return self.exact is not None or self.semantic is not None


def build_plan(route: Route, heading: SegmentHeading, prior: PriorBands) -> RoutePlan:
    rule = route.semantic
    control = RouteControl(prior, f"{heading.embedder} {heading.verifier}")
    snapshot = heading.controls.get(route.name)
    if snapshot is not None:
        try:
            control.restore(snapshot)
        except SnapshotInvalid:  # state of another version: start at the calibration, as the gateway does
            control.reset()
    control.learning = rule is not None and rule.learns
    within = Lifetime(0.0 if rule is None else rule.ttl, route.jitter)
    return RoutePlan(route, exact_lifetime(route), rule, within, longest_lifetime_s(route), control)


def build_escalation(route: Route, heading: SegmentHeading) -> TierController:
    escalation = TierController(heading.basis)
    snapshot = heading.escalations.get(route.name)
    if snapshot is not None:
        try:
            escalation.restore(snapshot)
        except SnapshotInvalid:
            escalation.reset()
    escalation.learning = route.target.learn
    return escalation


def semantic_floor(policies: Sequence[Policy], floor: float) -> float:
    """Return the least similarity at which any route reads a neighbour. `floor` is that of the verifier."""
    plain = (
        route.semantic.acceptance.min_similarity
        for policy in policies
        for route in policy.routes
        if route.semantic is not None and route.semantic.acceptance.min_similarity is not None
    )
    return min([floor, *plain])
