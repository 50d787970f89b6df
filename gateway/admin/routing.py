"""How routes come to their large model: the rule, the threshold now, and what it keeps. And the way back: a route can
be made to forget what it has learnt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import orjson
from aiohttp import web

from gateway.admin.answers import json_answer
from gateway.errors import StoreUnavailable
from gateway.observing.telemetry import Telemetry
from gateway.policy.model import Policy, Target
from gateway.ports import Clock
from gateway.quality.escalations import Escalations
from gateway.quality.learning import Learning


class Routing:
    """`policy` is the one in force: routes that it no longer has keep what they know, and are not shown."""

    def __init__(
        self,
        escalations: Escalations,
        learning: Learning,
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
        return [self._shown(name, target) for name, target in self._targets().items()]

    def sample(self) -> None:
        """Sets the gauges."""
        telemetry, now = self._telemetry, self._clock.monotonic()
        for route, target in self._targets().items():
            standing = self._escalations.of(route).standing(target, now)
            telemetry.large_share.set(route, value=standing.large_share)
            telemetry.escalation_threshold.set(route, value=standing.threshold)
            telemetry.quality_kept.set(route, value=standing.kept.part)
            telemetry.quality_kept_low.set(route, value=standing.kept.low)
            telemetry.quality_kept_high.set(route, value=standing.kept.high)

    async def _get(self, request: web.Request) -> web.StreamResponse:
        return json_answer({"routes": self.shown()})

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        # A page of another site can send a form or plain text here without asking; JSON it cannot.
        if request.content_type != "application/json":
            return json_answer({"error": "expected content-type application/json"}, 415)
        route, targets = _route_of(await request.read()), self._targets()
        if route is None:
            return json_answer({"error": 'expected a body such as {"route": "default"}'}, 400)
        if route not in targets:
            return json_answer({"error": f"no route {route[:64]!r} has two models", "routes": list(targets)}, 404)
        self._escalations.of(route).reset()
        try:
            await self._learning.save_one(route)
            stored = True
        except StoreUnavailable:
            stored = False  # saved with the next change, or at the end: until then a restart would bring it back
        return json_answer({**self._shown(route, targets[route]), "stored": stored})

    def _targets(self) -> Mapping[str, Target]:
        return {route.name: route.target for route in self._policy().routes if len(route.target.tiers) > 1}

    def _shown(self, route: str, target: Target) -> dict[str, Any]:
        """Shares are in [0, 1], None where nothing is known."""
        standing = self._escalations.of(route).standing(target, self._clock.monotonic())
        kept = standing.kept
        return {
            "route": route,
            "rule": standing.rule,
            "asked": standing.asked,
            "threshold": standing.threshold,
            "large_share": _known(standing.large_share),
            "quality_kept": {"part": _known(kept.part), "low": kept.low, "high": kept.high},
            "calibration": {"shift": standing.fit.shift, "slope": standing.fit.slope},
            "labels": dict(standing.labels),
            "audit": target.audit.share,
            "learning": standing.learning,
            "version": standing.version,
        }


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


def _route_of(body: bytes) -> str | None:
    try:
        given = orjson.loads(body)
    except orjson.JSONDecodeError:
        return None
    route = given.get("route") if isinstance(given, dict) else None
    return route if isinstance(route, str) else None
