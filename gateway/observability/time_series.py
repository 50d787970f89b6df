"""What the dashboard shows over time: the series that are kept of the metrics, and how they are told. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from gateway.messages import Verdict
from gateway.observability.metrics import LATENCY_BUCKETS, Counter, Gauge, Histogram
from gateway.observability.telemetry import Telemetry
from gateway.observability.timeline import UP, Rows, Values, Window, quantiles

MAX_ROUTES = 24  # that have levels of their own; three each
BUCKETS = len(LATENCY_BUCKETS) + 1
LEVELS = {"share": "wrong_hit_ratio", "low": "wrong_hit_ratio_low", "high": "wrong_hit_ratio_high"}
SAVED = {"tokens": "tokens_saved", "dollars": "cost_saved", "backend_s": "backend_seconds_saved"}


def totals(telemetry: Telemetry) -> dict[str, float]:
    """Everything that is counted, since the start."""
    found: dict[str, float] = {}
    _add(found, telemetry.requests, "verdict", 2)
    found["unrouted"] = telemetry.unrouted
    _add(found, telemetry.routed, "routed", 1, 2)
    _add(found, telemetry.shed, "shed")
    for name, metric in SAVED.items():
        _add(found, getattr(telemetry, metric), f"saved.{name}")
    _add_buckets(found, telemetry.request_seconds, "seconds", 1)
    _add_buckets(found, telemetry.stage_seconds, "stage", 0)
    return found


def levels(telemetry: Telemetry) -> dict[str, float]:
    """What is measured of each route, as it stands; what is not known is left out."""
    found: dict[str, float] = {}
    for name, metric in LEVELS.items():
        gauge: Gauge = getattr(telemetry, metric)
        for (route,), value in list(gauge.values.items())[:MAX_ROUTES]:
            if not math.isnan(value):
                found[f"=wrong.{name}.{route}"] = value
    return found


def since(before: Values, now: Mapping[str, float]) -> dict[str, float]:
    """What has been added, without what has not."""
    return {name: value - before.get(name, 0.0) for name, value in now.items() if value != before.get(name, 0.0)}


def told(window: Window) -> dict[str, Any]:
    """Lists of one value a slot, for `orjson` with numpy; null where nothing is known."""
    watched = window.watched
    return {
        "step_s": window.resolution.step_s,
        "at": window.starts,
        "watched_s": np.nan_to_num(window.level(UP)),
        "verdicts": {str(verdict): window.total(f"verdict.{verdict}") for verdict in Verdict},
        "unrouted": window.total("unrouted"),
        "latency_ms": _latencies(window, "seconds."),
        "stage_ms": _latencies(window, "stage."),
        "routed": {name: window.total(f"routed.{name}") for name in window.named("routed.")},
        "saved": {name: window.total(f"saved.{name}") for name in SAVED},
        "shed": window.total("shed"),
        "wrong_hits": {
            route: {name: np.where(watched, window.level(f"=wrong.{name}.{route}"), np.nan) for name in LEVELS}
            for route in window.named("=wrong.low.")
        },
    }


def _latencies(window: Window, prefix: str) -> dict[str, dict[str, Rows]]:
    """Milliseconds, of what has any in this window."""
    found = {}
    for name in sorted({each.rpartition(".")[0] for each in window.named(prefix)}):
        counts = window.counts(f"{prefix}{name}.", BUCKETS)
        found[name] = {f"p{q:g}": np.round(1e3 * quantiles(counts, LATENCY_BUCKETS, q / 100), 3) for q in (50.0, 95.0)}
    return found


def _add(found: dict[str, float], counter: Counter, name: str, *picked: int) -> None:
    """By the labels at the places `picked`, over all others."""
    for labels, value in counter.values.items():
        series = ".".join([name, *(labels[i] for i in picked)])
        found[series] = found.get(series, 0.0) + value


def _add_buckets(found: dict[str, float], histogram: Histogram, name: str, picked: int) -> None:
    for labels, counts in histogram.counts.items():
        for i, count in enumerate(counts):
            if count:
                series = f"{name}.{labels[picked]}.{i}"
                found[series] = found.get(series, 0.0) + count
