"""Figures of the time between two reports of `GET /admin/stats`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from gateway.observability.metrics import quantile_of
from gateway.outcomes import Verdict

HITS = (Verdict.EXACT, Verdict.SEMANTIC, Verdict.STALE)
Report = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class VerdictFigures:
    """Figures of one verdict; share and latencies are None without requests."""

    share: float | None  # of all requests, in [0, 1]
    per_s: float
    p50_ms: float | None
    p95_ms: float | None


@dataclass(frozen=True, slots=True)
class BackendFigures:
    inflight: int
    limit: int
    queued: int
    breaker: str
    upstreams: int  # in use, of all upstreams
    all_upstreams: int


@dataclass(frozen=True, slots=True)
class RouteFigures:
    """Shares of one route, in [0, 1].

    A share is None if it is unknown, or if the route has no choice of models or no semantic cache.
    `wrong_hits` is the wrong share of the served hits; `wrong_low` and `wrong_high` bound its 95 % interval.
    """

    large_share: float | None
    wrong_hits: float | None
    wrong_low: float | None
    wrong_high: float | None


@dataclass(frozen=True, slots=True)
class TopFigures:
    """Figures of a period of `seconds`, or of the time since the gateway started (`since_start`).

    Backends and routes show the current state, and savings the total.
    """

    listen: str
    policy: str
    policy_faults: int
    gateways: int  # on one store; all figures are sums over them
    up_s: float
    seconds: float
    since_start: bool
    requests_per_s: float
    hit_rate: float | None
    shed: float
    stalls: Mapping[str, float]  # stalls of the event loop, by cause
    tokens_saved: float
    dollars_saved: float
    store_breaker: str
    index_ready: bool
    migration: Mapping[str, float]  # entries `done`, `left`, `skipped` of a re-embedding; empty without one
    verdicts: Mapping[str, VerdictFigures]
    backends: Mapping[str, BackendFigures]
    routes: Mapping[str, RouteFigures]

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def _gateway_identity(report: Report) -> tuple[float, int]:
    return report["started"], report.get("gateways", 1)


def figures(now: Report, before: Report | None) -> TopFigures:
    """Return the figures between two reports.

    Without `before`, or if it is from other gateways or from an earlier start, they cover the time since the start.
    """
    if before is not None and (_gateway_identity(before) != _gateway_identity(now) or before["now"] >= now["now"]):
        before = None
    seconds = max(1e-3, now["now"] - (now["started"] if before is None else before["now"]))
    counts = {str(v): _count_since(now, before, "verdicts", str(v)) for v in Verdict}
    requests = sum(counts.values())
    unrouted = max(0.0, now["unrouted"] - (0.0 if before is None else before["unrouted"]))
    lookups = requests - counts[Verdict.BYPASS] - unrouted  # a request without a lookup does not count
    return TopFigures(
        listen=now["listen"],
        policy=now["policy"]["hash"],
        policy_faults=len(now["policy"]["faults"]),
        gateways=now.get("gateways", 1),
        up_s=max(0.0, now["now"] - now["started"]),
        seconds=seconds,
        since_start=before is None,
        requests_per_s=requests / seconds,
        hit_rate=sum(counts[v] for v in HITS) / lookups if lookups else None,
        shed=now["shed"] - (0.0 if before is None else before["shed"]),
        stalls={cause: count - _stalls(before).get(cause, 0.0) for cause, count in _stalls(now).items()},
        tokens_saved=now["tokens_saved"],
        dollars_saved=now["dollars_saved"],
        store_breaker=now["store_breaker"],
        index_ready=now["index_ready"],
        migration=now["migration"],
        verdicts={v: _of_verdict(v, count, requests, seconds, now, before) for v, count in counts.items()},
        backends={name: _of_backend(one) for name, one in now["backends"].items()},
        routes=_routes(now),
    )


def _stalls(report: Report | None) -> Mapping[str, float]:
    """Return the stalls in a report; empty without a report."""
    stalls: Mapping[str, float] = {} if report is None else report["loop_stalls"]
    return stalls


def _count_since(now: Report, before: Report | None, key: str, verdict: str) -> float:
    value: float = now[key][verdict] - (0.0 if before is None else before[key][verdict])
    return max(0.0, value)


def _of_verdict(
    verdict: str, count: float, requests: float, seconds: float, now: Report, before: Report | None
) -> VerdictFigures:
    counted = now["latency_counts"]["verdicts"][verdict]
    if before is not None:
        earlier: Sequence[int] = before["latency_counts"]["verdicts"][verdict]
        counted = [max(0, a - b) for a, b in zip(counted, earlier, strict=True)]
    p50, p95 = (quantile_of(counted, now["latency_counts"]["bounds_s"], q) for q in (0.5, 0.95))
    return VerdictFigures(count / requests if requests else None, count / seconds, _ms(p50), _ms(p95))


def _of_backend(one: Mapping[str, Any]) -> BackendFigures:
    upstreams = one["upstreams"]
    in_use = sum(upstream["state"] == "closed" for upstream in upstreams)
    return BackendFigures(one["inflight"], one["limit"], one["queued"], one["breaker"], in_use, len(upstreams))


def _routes(now: Report) -> dict[str, RouteFigures]:
    """Return the routes in the order of the policy."""
    large = {one["route"]: one["large_share"] for one in now["routing"]}
    wrong = {one["route"]: one["wrong_hits"]["of_served"] for one in now["quality"]}
    nothing: Mapping[str, None] = {"share": None, "low": None, "high": None}
    return {
        name: RouteFigures(large.get(name), of["share"], of["low"], of["high"])
        for name in now["policy"]["routes"]
        for of in [wrong.get(name, nothing)]
    }


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 3)
