"""How routes come to their large model: the rule, the threshold now, and what it keeps. And the way back: a route can
be made to forget what it has learnt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from gateway.admin.reset import route_to_forget, saved
from gateway.admin.responses import json_answer
from gateway.cache.learned_state import Learning
from gateway.config.policy.model import Policy, Target
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.routing.tier_learning import Escalations


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
        targets = self._targets()
        route = await route_to_forget(request, targets, "two models")
        if isinstance(route, web.Response):
            return route
        self._escalations.of(route).reset()
        stored = await saved(self._learning, route)
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
