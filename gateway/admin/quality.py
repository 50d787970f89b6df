"""What is known of wrong hits, by route, and the way back: a route can be made to forget what it has learnt."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

from gateway.admin.reset import route_to_forget, saved
from gateway.admin.responses import json_answer
from gateway.cache.embedding_spaces import Spaces
from gateway.cache.threshold.route_control import RouteControl
from gateway.config.policy.model import Policy, Semantic


class Quality:
    """`policy` is the one in force: routes that it no longer has keep what they know, and are not shown."""

    def __init__(self, spaces: Spaces, policy: Callable[[], Policy]) -> None:
        self._spaces = spaces
        self._policy = policy

    def routes(self) -> list[web.RouteDef]:
        return [web.get("/admin/quality", self._get), web.post("/admin/quality/reset", self._reset)]

    def shown(self) -> list[dict[str, Any]]:
        """Every route with a semantic cache, in the policy's order."""
        return [_shown(name, rule, self._spaces.serving.controls.of(name)) for name, rule in self._rules().items()]

    async def _get(self, request: web.Request) -> web.StreamResponse:
        return json_answer({"routes": self.shown()})

    async def _reset(self, request: web.Request) -> web.StreamResponse:
        rules = self._rules()
        route = await route_to_forget(request, rules, "a semantic cache")
        if isinstance(route, web.Response):
            return route
        space = self._spaces.serving
        control = space.controls.of(route)
        control.reset()
        stored = await saved(space.learning, route)
        return json_answer({**_shown(route, rules[route], control), "stored": stored})

    def _rules(self) -> Mapping[str, Semantic]:
        return {route.name: route.semantic for route in self._policy().routes if route.semantic is not None}


def _shown(route: str, rule: Semantic, control: RouteControl) -> dict[str, Any]:
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
