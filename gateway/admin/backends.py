"""How backends and their upstreams fare: what `GET /admin/backends` and the dashboard show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from aiohttp import web

from gateway.admin.responses import json_answer
from gateway.routing.rate_limiter import MAX_SEEN, RateLimiter
from gateway.upstream.backend import UpstreamPool
from gateway.upstream.latency import CONFIDENCE, CallFeatures
from gateway.upstream.upstream import Upstream


# How backends and their upstreams fare: what `GET /admin/backends` and the dashboard show.
def shown(pools: Mapping[str, UpstreamPool], now: float) -> dict[str, Any]:
    """`now`: monotonic clock. Latencies are milliseconds; null where nothing recent is known."""
    return {
        name: {
            "inflight": pool.inflight,
            "queued": pool.crowd.queued,
            "limit": pool.crowd.limit,
            "breaker": pool.state(now).name.lower(),
            "upstreams": [_upstream(lane, now) for lane in pool.lanes],
        }
        for name, pool in pools.items()
    }


def _upstream(lane: Upstream, now: float) -> dict[str, Any]:
    crowd, hosted = lane.backend.crowd, lane.upstream.hosted
    whole, streamed = (lane.predict(CallFeatures(stream=stream), now, CONFIDENCE) for stream in (False, True))
    return {
        "address": lane.upstream.address,
        "weight": lane.upstream.weight,
        "state": lane.state(now).name.lower(),
        "breaker": lane.breaker.state(now).name.lower(),
        "waits_s": round(lane.told_to_wait_s(None, now), 3),
        "models": {} if hosted is None else dict(hosted.conditions),
        "inflight": crowd.inflight,
        "queued": crowd.queued,
        "limit": crowd.limit,
        "latency_ewma_ms": _ms(lane.slowest_s()),
        "predicted_ms": {
            "whole": _ms(None if whole is None else whole.total_s),
            "first_token": _ms(None if streamed is None else streamed.ttft_s),
        },
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None or math.isinf(seconds) else round(1e3 * seconds, 3)


# GET /admin/limits: who has how much left, as this gateway saw it last.
SHOWN = 50


class LimitsHandler:
    def __init__(self, quotas: RateLimiter) -> None:
        self._quotas = quotas

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.get("/admin/limits", self._get)]

    async def _get(self, request: web.Request) -> web.StreamResponse:
        asked = request.query.get("top", str(SHOWN))
        if not asked.isascii() or not asked.isdigit() or not 1 <= int(asked[:9]) <= MAX_SEEN:
            return json_answer({"error": f"top: expected a number from 1 to {MAX_SEEN}"}, status=400)
        seen = [asdict(one) for one in self._quotas.seen(int(asked[:9]))]
        return json_answer({"gateways": self._quotas.gateways, "waiting": self._quotas.waiting, "limits": seen})
