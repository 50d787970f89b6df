"""What routes have learnt of hits and of tiers, as the admin port shows it, and how an operator resets it."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping
from typing import Any

import orjson
from aiohttp import web

from gateway.admin.responses import json_response
from gateway.cache.embedding_spaces import Spaces
from gateway.cache.learned_state import StateKeeper
from gateway.cache.threshold.route_control import RouteControl
from gateway.config.policy.model import Policy, Semantic, Target
from gateway.errors import StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.routing.tier_learning import TierLearning


async def parse_reset_route(request: web.Request, routes: Collection[str], requirement: str) -> str | web.Response:
    """The one of `routes`, all that have what is `requirement`, that the body names; else the refusal."""
    # A page of another site can send a form or plain text here without asking; JSON it cannot.
    if request.content_type != "application/json":
        return json_response({"error": "expected content-type application/json"}, 415)
    try:
        given = orjson.loads(await request.read())
    except orjson.JSONDecodeError:
        given = None
    route = given.get("route") if isinstance(given, dict) else None
    if not isinstance(route, str):
        return json_response({"error": 'expected a body such as {"route": "default"}'}, 400)
    if route not in routes:
        return json_response({"error": f"no route {route[:64]!r} has {requirement}", "routes": list(routes)}, 404)
    return route


async def save_now(learning: StateKeeper, route: str) -> bool:
    """False: with the next change, or at the end; until then a restart would bring back what was forgotten."""
    try:
        await learning.save_one(route)
    except StoreUnavailable:
        return False
    return True


# What is known of wrong hits, by route, and the way back: a route can be made to forget what it has learnt.
class QualityHandler:
    """`policy` is the one in force: routes that it no longer has keep what they know, and are not shown."""

    def __init__(self, spaces: Spaces, policy: Callable[[], Policy]) -> None:
        self._spaces = spaces
        self._policy = policy

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/admin/quality", self._get), web.post("/admin/quality/reset", self._reset)]

    def shown(self) -> list[dict[str, Any]]:
        """Every route with a semantic cache, in the policy's order."""
        return [
            _route_report(name, rule, self._spaces.serving.controls.of(name))
            for name, rule in self._semantic_rules().items()
        ]

    async def _get(self, request: web.Request) -> web.StreamResponse:
        return json_response({"routes": self.shown()})

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        rules = self._semantic_rules()
        route = await parse_reset_route(request, rules, "a semantic cache")
        if isinstance(route, web.Response):
            return route
        space = self._spaces.serving
        control = space.controls.of(route)
        control.reset()
        stored = await save_now(space.learning, route)
        return json_response({**_route_report(route, rules[route], control), "stored": stored})

    def _semantic_rules(self) -> Mapping[str, Semantic]:
        return {route.name: route.semantic for route in self._policy().routes if route.semantic is not None}


def _route_report(route: str, rule: Semantic, control: RouteControl) -> dict[str, Any]:
    """Shares are in [0, 1], None where nothing is known. `requests` and `served` fade: they are those that the shares
    are about."""
    estimate = control.estimate()
    return {
        "route": route,
        "max_wrong_hits": rule.acceptance.max_wrong_hits,
        "min_similarity": rule.acceptance.min_similarity,
        "audit": rule.audit.share,
        "learning": control.learning,
        "threshold": control.threshold(rule.acceptance),
        "labels": control.labels,
        "version": control.version,
        "requests": round(control.requests, 1),
        "served": round(control.served, 1),
        "wrong_hits": {
            "of_all": _interval(estimate.of_all, estimate.of_all_low, estimate.of_all_high),
            "of_served": _interval(estimate.of_served, estimate.of_served_low, estimate.of_served_high),
        },
    }


def _interval(share: float, low: float, high: float) -> dict[str, float | None]:
    """With its 95 % interval."""
    return {name: None if math.isnan(x) else x for name, x in (("share", share), ("low", low), ("high", high))}


# How routes come to their large model: the rule, the threshold now, and what it keeps. And the way back: a route can
# be made to forget what it has learnt.
class RoutingHandler:
    """`policy` is the one in force: routes that it no longer has keep what they know, and are not shown."""

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

    def shown(self) -> list[dict[str, Any]]:
        """Every route with a light and a large model, in the policy's order."""
        return [self._route_report(name, target) for name, target in self._tiered_targets().items()]

    def sample(self) -> None:
        """Sets the gauges."""
        telemetry, now = self._telemetry, self._clock.monotonic()
        for route, target in self._tiered_targets().items():
            tier_state = self._escalations.of(route).tier_state(target, now)
            telemetry.large_share.set(route, value=tier_state.large_share)
            telemetry.escalation_threshold.set(route, value=tier_state.threshold)
            telemetry.quality_kept.set(route, value=tier_state.kept.part)
            telemetry.quality_kept_low.set(route, value=tier_state.kept.low)
            telemetry.quality_kept_high.set(route, value=tier_state.kept.high)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        return json_response({"routes": self.shown()})

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        targets = self._tiered_targets()
        route = await parse_reset_route(request, targets, "two models")
        if isinstance(route, web.Response):
            return route
        self._escalations.of(route).reset()
        stored = await save_now(self._learning, route)
        return json_response({**self._route_report(route, targets[route]), "stored": stored})

    def _tiered_targets(self) -> Mapping[str, Target]:
        return {route.name: route.target for route in self._policy().routes if len(route.target.tiers) > 1}

    def _route_report(self, route: str, target: Target) -> dict[str, Any]:
        """Shares are in [0, 1], None where nothing is known."""
        tier_state = self._escalations.of(route).tier_state(target, self._clock.monotonic())
        kept = tier_state.kept
        return {
            "route": route,
            "rule": tier_state.rule,
            "asked": tier_state.setting,
            "threshold": tier_state.threshold,
            "large_share": _finite(tier_state.large_share),
            "quality_kept": {"part": _finite(kept.part), "low": kept.low, "high": kept.high},
            "calibration": {"shift": tier_state.fit.shift, "slope": tier_state.fit.slope},
            "labels": dict(tier_state.labels),
            "audit": target.audit.share,
            "learning": tier_state.learning,
            "version": tier_state.version,
        }


def _finite(value: float) -> float | None:
    return None if math.isnan(value) else value
