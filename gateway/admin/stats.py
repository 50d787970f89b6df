"""The figures of the dashboard, from the same numbers as the metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from gateway.messages import Verdict
from gateway.observability.metrics import LATENCY_BUCKETS, Counter, Histogram
from gateway.observability.quantiles import quantile_of
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock

QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


class Figures(Protocol):
    """Of `gateways` gateways, the oldest of which has `started` then, seconds since 1970."""

    telemetry: Telemetry
    started: float
    gateways: int


class Stats:
    """`describe` adds what is no metric, and is of this gateway alone: policy, backends, cache sizes."""

    def __init__(self, figures: Figures, clock: Clock, describe: Callable[[], dict[str, Any]]) -> None:
        self._figures = figures
        self._telemetry = figures.telemetry
        self._clock = clock
        self._describe = describe
        self.policy_faults: tuple[str, ...] = ()  # of the last reload; empty where it succeeded

    def report(self) -> dict[str, Any]:
        telemetry = self._telemetry
        verdicts = self._verdicts()
        requests = sum(verdicts.values())
        hits = sum(verdicts[v] for v in (Verdict.EXACT, Verdict.SEMANTIC, Verdict.STALE))
        # What was never looked up says nothing of the cache: it is left out of the rate.
        asked = requests - verdicts[Verdict.BYPASS] - telemetry.unrouted
        latencies = {str(verdict): _latencies(telemetry.request_seconds, verdict) for verdict in Verdict}
        report = {
            "now": self._clock.wall(),
            "started": self._figures.started,
            "gateways": self._figures.gateways,
            "requests": requests,
            "hit_rate": hits / asked if asked else None,
            "verdicts": verdicts,
            "unrouted": telemetry.unrouted,
            "latency_ms": {verdict: _quantiles(counts) for verdict, counts in latencies.items()},
            # As they are counted: the quantiles of a stretch of time are those of the difference of two reports.
            "latency_counts": {"bounds_s": LATENCY_BUCKETS, "verdicts": latencies},
            "stage_ms": {
                stage: _quantiles(counts) for (stage,), counts in sorted(telemetry.stage_seconds.counts.items())
            },
            "tiers": self._tiers(),
            "routed": [
                {"route": route, "tier": tier, "reason": reason, "count": count}
                for (route, tier, reason), count in telemetry.routed.values.items()
            ],
            "refusals": _by_last(telemetry.refusals),
            "admissions": _by_last(telemetry.admissions),
            "tokens_saved": telemetry.tokens_saved.total(),
            "dollars_saved": telemetry.cost_saved.total(),
            "backend_seconds_saved": telemetry.backend_seconds_saved.total(),
            "shed": telemetry.shed.total(),
            "backend_outcomes": [
                {"backend": backend, "outcome": outcome, "count": count}
                for (backend, outcome), count in telemetry.backend_requests.values.items()
            ],
            "store_errors": telemetry.store_errors.total(),
            "loop_stalls": _by_last(telemetry.loop_stalls),
            **self._describe(),
        }
        report["policy"] = {**report["policy"], "faults": list(self.policy_faults)}
        return report

    def _verdicts(self) -> dict[str, float]:
        totals = dict.fromkeys(map(str, Verdict), 0.0)
        for (_, _, verdict, _), count in self._telemetry.requests.values.items():
            totals[verdict] += count
        return totals

    def _tiers(self) -> dict[str, float]:
        totals = {"light": 0.0, "large": 0.0}
        for (_, tier, _), count in self._telemetry.routed.values.items():
            if tier in totals:
                totals[tier] += count
        return totals


def _by_last(counter: Counter) -> dict[str, float]:
    """Totals by a counter's last label, over all others."""
    totals: dict[str, float] = {}
    for labels, count in counter.values.items():
        totals[str(labels[-1])] = totals.get(str(labels[-1]), 0.0) + count
    return totals


def _quantiles(counts: Sequence[int]) -> dict[str, float | None]:
    return {name: _ms(quantile_of(counts, LATENCY_BUCKETS, q)) for name, q in QUANTILES}


def _latencies(histogram: Histogram, verdict: str) -> list[int]:
    """Counts by bucket, of all routes together."""
    merged = [0] * (len(LATENCY_BUCKETS) + 1)
    for (_, of), counts in histogram.counts.items():
        if of == verdict:
            merged = [a + b for a, b in zip(merged, counts, strict=True)]
    return merged


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 3)
