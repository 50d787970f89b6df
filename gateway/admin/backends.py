"""`GET /admin/backends`: the state of backends and upstreams."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated

from pydantic import Field

from gateway.admin.operations import TypedDict
from gateway.upstream.backend import UpstreamPool
from gateway.upstream.latency import CONFIDENCE, CallFeatures
from gateway.upstream.refusals import Refusal
from gateway.upstream.upstream import Upstream

SHOWN_S = 600.0  # for which a refusal is shown after its last time

BreakerName = Annotated[str, Field(json_schema_extra={"enum": ["closed", "half_open", "open"]})]
UpstreamStateName = Annotated[str, Field(json_schema_extra={"enum": ["closed", "half_open", "open", "waits"]})]


class PredictedLatency(TypedDict):
    whole: float | None
    """Milliseconds to the complete response."""
    first_token: float | None
    """Milliseconds to the first token of a stream."""


class RefusalReport(TypedDict):
    refused: Annotated[str, Field(json_schema_extra={"enum": ["key", "model", "path"]})]
    """The upstream refused the gateway's own key or account, a model, or a path."""
    status: int
    scope: str
    """The model or the path; empty: everything."""
    ago_s: float
    """Seconds since then."""


class UpstreamReport(TypedDict):
    address: str
    weight: float
    state: UpstreamStateName
    """The state of its breaker, or `waits` until the time that the upstream named."""
    breaker: BreakerName
    waits_s: float
    """Seconds until the upstream may be called."""
    refusal: RefusalReport | None
    """The last refusal of the last ten minutes."""
    models: dict[str, str]
    """The condition of each model that the upstream hosts, if the upstream reports it."""
    inflight: int
    queued: int
    limit: float
    """The most calls in flight."""
    queued_elsewhere: int
    """Calls of other clients at the server, by its metrics; 0 without a `metrics_url`."""
    kv_cache_usage: float | None
    """The share of the server's KV cache in use, in [0, 1]; null: its metrics do not say."""
    gpu_utilization: float | None
    """The use of the server's busiest GPU, in [0, 1]; null: its metrics do not say."""
    gpu_memory_bytes: float | None
    latency_ewma_ms: float | None
    """Null: no recent call."""
    predicted_ms: PredictedLatency


class BackendReport(TypedDict):
    inflight: int
    queued: int
    limit: float
    """The most calls in flight."""
    breaker: BreakerName
    upstreams: list[UpstreamReport]


def shown(pools: Mapping[str, UpstreamPool], now: float) -> dict[str, BackendReport]:
    """Return the state of each backend. `now` is monotonic. Latencies are in milliseconds, or None without recent
    calls."""
    return {
        name: {
            "inflight": pool.inflight,
            "queued": pool.occupancy.queued,
            "limit": pool.occupancy.limit,
            "breaker": pool.state(now).name.lower(),
            "upstreams": [_upstream_report(endpoint, now) for endpoint in pool.endpoints],
        }
        for name, pool in pools.items()
    }


def _upstream_report(endpoint: Upstream, now: float) -> UpstreamReport:
    occupancy = endpoint.backend.occupancy
    whole, streamed = (endpoint.predict(CallFeatures(stream=stream), now, CONFIDENCE) for stream in (False, True))
    return {
        "address": endpoint.upstream.address,
        "weight": endpoint.upstream.weight,
        "state": endpoint.state(now).name.lower(),
        "breaker": endpoint.breaker.state(now).name.lower(),
        "waits_s": round(endpoint.retry_after_s(None, now), 3),
        "refusal": _refusal_report(endpoint.refusal, now),
        "models": dict(endpoint.upstream.conditions),
        "inflight": occupancy.inflight,
        "queued": occupancy.queued,
        "limit": occupancy.limit,
        "queued_elsewhere": endpoint.server_load.queued_elsewhere,
        "kv_cache_usage": endpoint.server_load.kv_cache,
        "gpu_utilization": endpoint.server_load.gpu_utilization,
        "gpu_memory_bytes": endpoint.server_load.gpu_memory_bytes,
        "latency_ewma_ms": _ms(endpoint.slowest_s()),
        "predicted_ms": {
            "whole": _ms(None if whole is None else whole.total_s),
            "first_token": _ms(None if streamed is None else streamed.ttft_s),
        },
    }


def _refusal_report(refusal: Refusal | None, now: float) -> RefusalReport | None:
    if refusal is None or now - refusal.at > SHOWN_S:
        return None
    scope = refusal.scope.partition(" ")[2]
    return {"refused": str(refusal.what), "status": refusal.status, "scope": scope, "ago_s": round(now - refusal.at, 1)}


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None or math.isinf(seconds) else round(1e3 * seconds, 3)
