"""How backends and their upstreams fare: what `GET /admin/backends` and the dashboard show."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from gateway.upstream.backend import Pool
from gateway.upstream.latency import CONFIDENCE, Asked
from gateway.upstream.upstream import Lane


def shown(pools: Mapping[str, Pool], now: float) -> dict[str, Any]:
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


def _upstream(lane: Lane, now: float) -> dict[str, Any]:
    crowd, hosted = lane.backend.crowd, lane.upstream.hosted
    whole, streamed = (lane.predict(Asked(stream=stream), now, CONFIDENCE) for stream in (False, True))
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
