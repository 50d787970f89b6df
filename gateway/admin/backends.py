"""`GET /admin/backends` and `GET /admin/limits`: the state of backends, upstreams and limits."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from aiohttp import web

from gateway.admin.responses import json_response
from gateway.routing.rate_limiter import MAX_SEEN, RateLimiter
from gateway.upstream.backend import UpstreamPool
from gateway.upstream.latency import CONFIDENCE, CallFeatures
from gateway.upstream.upstream import Upstream


def shown(pools: Mapping[str, UpstreamPool], now: float) -> dict[str, Any]:
    """`now`: monotonic clock. Latencies are milliseconds; null where nothing recent is known."""
    return {
        name: {
            "inflight": pool.inflight,
            "queued": pool.crowd.queued,
            "limit": pool.crowd.limit,
            "breaker": pool.state(now).name.lower(),
            "upstreams": [_upstream_report(endpoint, now) for endpoint in pool.endpoints],
        }
        for name, pool in pools.items()
    }


def _upstream_report(endpoint: Upstream, now: float) -> dict[str, Any]:
    crowd, hosted = endpoint.backend.crowd, endpoint.upstream.hosted
    whole, streamed = (endpoint.predict(CallFeatures(stream=stream), now, CONFIDENCE) for stream in (False, True))
    return {
        "address": endpoint.upstream.address,
        "weight": endpoint.upstream.weight,
        "state": endpoint.state(now).name.lower(),
        "breaker": endpoint.breaker.state(now).name.lower(),
        "waits_s": round(endpoint.retry_after_s(None, now), 3),
        "models": {} if hosted is None else dict(hosted.conditions),
        "inflight": crowd.inflight,
        "queued": crowd.queued,
        "limit": crowd.limit,
        "latency_ewma_ms": _ms(endpoint.slowest_s()),
        "predicted_ms": {
            "whole": _ms(None if whole is None else whole.total_s),
            "first_token": _ms(None if streamed is None else streamed.ttft_s),
        },
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None or math.isinf(seconds) else round(1e3 * seconds, 3)


# GET /admin/limits: who has how much left, as this gateway saw it last.
DEFAULT_LIMIT = 50


class LimitsHandler:
    def __init__(self, quotas: RateLimiter) -> None:
        self._quotas = quotas

    def routes(self) -> Sequence[web.RouteDef]:
        return [web.get("/admin/limits", self._get)]

    async def _get(self, request: web.Request) -> web.StreamResponse:
        asked = request.query.get("top", str(DEFAULT_LIMIT))
        if not asked.isascii() or not asked.isdigit() or not 1 <= int(asked[:9]) <= MAX_SEEN:
            return json_response({"error": f"top: expected a number from 1 to {MAX_SEEN}"}, status=400)
        usage = [asdict(one) for one in self._quotas.usage(int(asked[:9]))]
        return json_response({"gateways": self._quotas.gateways, "waiting": self._quotas.waiting, "limits": usage})
