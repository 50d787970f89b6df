"""Admin operations that show the learned state of routes (wrong hits, tiers) and reset it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import TYPE_CHECKING, Annotated

import orjson
from aiohttp import web
from pydantic import Field

from gateway.admin.operations import TypedDict, operation
from gateway.admin.responses import json_response
from gateway.cache.embedding_spaces import Spaces
from gateway.cache.learned_state import StateKeeper
from gateway.config.policy.model import Policy, Target
from gateway.config.policy.schema import SemanticRule
from gateway.errors import StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.routing.tier_learning import TierLearning

if TYPE_CHECKING:  # imported with the first route that compares questions
    from gateway.cache.threshold.route_control import RouteControl


async def parse_reset_route(request: web.Request, routes: Collection[str], requirement: str) -> str | web.Response:
    """Return the route that the body names, or the error response. `requirement` is the property of all `routes`."""
    # A page of another site can send a form or plain text without a preflight request, but no JSON.
    if request.content_type != "application/json":
        return json_response({"error": "expected content-type application/json"}, 415)
    try:
        body = orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        body = None
    route = body.get("route") if isinstance(body, dict) else None
    if not isinstance(route, str):
        return json_response({"error": 'expected a body such as {"route": "default"}'}, 400)
    if route not in routes:
        return json_response({"error": f"no route {route[:64]!r} has {requirement}", "routes": list(routes)}, 404)
    return route


async def save_now(learning: StateKeeper, route: str) -> bool:
    """Save the state of a route in the store, and return whether it was saved.

    If not, it is saved with the next change or at shutdown. A restart before that restores the former state.
    """
    try:
        await learning.save_one(route)
    except StoreUnavailable:
        return False
    return True


class ResetBody(TypedDict):
    route: str


class Interval(TypedDict):
    """A share in [0, 1] with its 95 % interval. Null: nothing is known."""

    share: float | None
    low: float | None
    high: float | None


class WrongHitsReport(TypedDict):
    of_all: Interval
    """Share of all requests."""
    of_served: Interval
    """Share of the semantic hits."""


class RouteQuality(TypedDict):
    route: str
    max_wrong_hits: float | None
    min_similarity: float | None
    audit: float
    """The share of hits that is audited."""
    learning: bool
    threshold: float
    labels: int
    """Labelled lookups that the route has learned from."""
    labels_since_drift: int | None
    """Labels since the last drift alarm. Null: no alarm so far."""
    answer_share: float
    """Share of the most frequent answer among those that were compared. With a high one, equal answers say little."""
    version: int
    requests: float
    """Requests behind the shares. Old ones count less."""
    served: float
    """Semantic hits behind the shares. Old ones count less."""
    wrong_hits: WrongHitsReport


class QualityReport(TypedDict):
    routes: list[RouteQuality]


class QualityReset(RouteQuality):
    stored: bool
    """False: the store does not answer. The gateway saves the reset later."""


class QualityHandler:
    """`QualityHandler` serves `/admin/quality`.

    `policy` returns the policy in force. Routes that it no longer has keep their state and are not shown.
    """

    def __init__(self, spaces: Spaces, policy: Callable[[], Policy]) -> None:
        self._spaces = spaces
        self._policy = policy

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/admin/quality", self._get), web.post("/admin/quality/reset", self._reset)]

    def shown(self) -> list[RouteQuality]:
        """Return the state of every route with a semantic cache, in the policy's order."""
        return [self._report(name, rule) for name, rule in self._semantic_rules().items()]

    @operation(QualityReport)
    async def _get(self, request: web.Request) -> web.StreamResponse:
        """Show the estimated share of wrong hits of each route with a semantic cache, and its threshold."""
        return json_response({"routes": self.shown()})

    @operation(QualityReset, body=ResetBody)
    async def _reset(self, request: web.Request) -> web.StreamResponse:
        """Delete what a route has learned about wrong hits. It starts again from the verifier's calibration."""
        rules = self._semantic_rules()
        route = await parse_reset_route(request, rules, "a semantic cache")
        if isinstance(route, web.Response):
            return route
        space = self._spaces.serving
        control = space.controls.of(route)
        control.reset()
        stored = await save_now(space.learning, route)
        return json_response({**self._report(route, rules[route]), "stored": stored})

    def _report(self, route: str, rule: SemanticRule) -> RouteQuality:
        space = self._spaces.serving
        return _route_report(route, rule, space.controls.of(route), space.comparisons.answers_of(route).largest)

    def _semantic_rules(self) -> Mapping[str, SemanticRule]:
        return {route.name: route.semantic for route in self._policy().routes if route.semantic is not None}


def _route_report(route: str, rule: SemanticRule, control: RouteControl, answer_share: float) -> RouteQuality:
    estimate = control.estimate()
    return {
        "route": route,
        "max_wrong_hits": rule.acceptance.max_wrong_hits,
        "min_similarity": rule.acceptance.min_similarity,
        "audit": rule.audits.share,
        "learning": control.learning,
        "threshold": control.threshold(rule.acceptance, control.entries),
        "labels": control.labels,
        "labels_since_drift": control.labels_since_drift,
        "answer_share": round(answer_share, 4),
        "version": control.version,
        "requests": round(control.requests, 1),
        "served": round(control.served, 1),
        "wrong_hits": {
            "of_all": _interval(estimate.of_all, estimate.of_all_low, estimate.of_all_high),
            "of_served": _interval(estimate.of_served, estimate.of_served_low, estimate.of_served_high),
        },
    }


def _interval(share: float, low: float, high: float) -> Interval:
    return {"share": _finite(share), "low": _finite(low), "high": _finite(high)}


class QualityKept(TypedDict):
    part: float | None
    """The share of the large model's quality that the routing keeps, in [0, 1]. Null: nothing is known."""
    low: float
    high: float


class CalibrationReport(TypedDict):
    shift: float
    slope: float


class RouteRouting(TypedDict):
    route: str
    rule: Annotated[str, Field(json_schema_extra={"enum": ["escalate_above", "large_share", "quality"]})]
    """The key of the policy that decides."""
    asked: float | tuple[float, ...]
    """The value of the rule in the policy."""
    threshold: float
    """The complexity above which the lightest model is not used, now."""
    large_share: float | None
    """The large model's share of the misses of the last hour, in [0, 1]. Null: nothing is known."""
    quality_kept: QualityKept
    calibration: CalibrationReport
    labels: dict[str, int]
    """The number of labels by source."""
    audit: float
    """The share of calls that is audited."""
    learning: bool
    version: int


class RoutingReport(TypedDict):
    routes: list[RouteRouting]


class RoutingReset(RouteRouting):
    stored: bool
    """False: the store does not answer. The gateway saves the reset later."""


class RoutingHandler:
    """`RoutingHandler` serves `/admin/routing`.

    `policy` returns the policy in force. Routes that it no longer has keep their state and are not shown.
    """

    def __init__(
        self,
        escalations: TierLearning,
        learning: StateKeeper,
        policy: Callable[[], Policy],
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._escalations = escalations
        self._learning = learning
        self._policy = policy
        self._clock = clock
        self._telemetry = telemetry

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/admin/routing", self._get), web.post("/admin/routing/reset", self._reset)]

    def shown(self) -> list[RouteRouting]:
        """Return the state of every route with a light and a large model, in the policy's order."""
        return [self._route_report(name, target) for name, target in self._tiered_targets().items()]

    def sample(self) -> None:
        """Set the gauges."""
        telemetry, now = self._telemetry, self._clock.monotonic()
        for route, target in self._tiered_targets().items():
            tier_state = self._escalations.of(route).tier_state(target, now)
            telemetry.large_share.set(route, value=tier_state.large_share)
            telemetry.escalation_threshold.set(route, value=tier_state.threshold)
            telemetry.quality_kept.set(route, value=tier_state.retention.part)
            telemetry.quality_kept_low.set(route, value=tier_state.retention.low)
            telemetry.quality_kept_high.set(route, value=tier_state.retention.high)

    @operation(RoutingReport)
    async def _get(self, request: web.Request) -> web.StreamResponse:
        """Show how each route with several tiers chooses its model: the rule, the threshold and the quality kept."""
        return json_response({"routes": self.shown()})

    @operation(RoutingReset, body=ResetBody)
    async def _reset(self, request: web.Request) -> web.StreamResponse:
        """Delete what a route has learned about its models."""
        targets = self._tiered_targets()
        route = await parse_reset_route(request, targets, "two models")
        if isinstance(route, web.Response):
            return route
        self._escalations.reset(route)
        stored = await save_now(self._learning, route)
        return json_response({**self._route_report(route, targets[route]), "stored": stored})

    def _tiered_targets(self) -> Mapping[str, Target]:
        return {route.name: route.target for route in self._policy().routes if len(route.target.tiers) > 1}

    def _route_report(self, route: str, target: Target) -> RouteRouting:
        tier_state = self._escalations.of(route).tier_state(target, self._clock.monotonic())
        retention = tier_state.retention
        return {
            "route": route,
            "rule": tier_state.rule,
            "asked": tier_state.setting,
            "threshold": tier_state.threshold,
            "large_share": _finite(tier_state.large_share),
            "quality_kept": {"part": _finite(retention.part), "low": retention.low, "high": retention.high},
            "calibration": {"shift": tier_state.fit.shift, "slope": tier_state.fit.slope},
            "labels": dict(tier_state.labels),
            "audit": target.audit.share,
            "learning": tier_state.learning,
            "version": tier_state.version,
        }


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else value
