"""Keeps figures over thirty days in bounded memory: by series, in time slots of three lengths. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.observability.metrics import LATENCY_BUCKETS, Counter, Gauge, Histogram
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Verdict

MAX_SERIES = 512  # of 8 bytes a slot: 5.6 MB at most; further series are left out

UP = "up"  # the series of the seconds that were watched: without it nothing is known of a slot

Values = Mapping[str, float]

Rows = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Resolution:
    """A number of `slots` with a length of `step_s` seconds each."""

    step_s: int
    slots: int

    def slot_of(self, at: float) -> int:
        """Return the number of the slot that contains `at` (seconds since 1970)."""
        return int(at // self.step_s)


# An hour, a day and thirty days, each with few enough points to draw at once.
FINE, MIDDLE, COARSE = Resolution(10, 360), Resolution(300, 288), Resolution(3600, 720)

RESOLUTIONS = (FINE, MIDDLE, COARSE)


def is_level(series: str) -> bool:
    """Return whether the values of a series are levels: the last one in a slot counts. Other values are added up."""
    return series.startswith("=")


class Ring:
    """The newest slots of one resolution; they overwrite older ones."""

    def __init__(self, resolution: Resolution, columns: dict[str, int]) -> None:
        self.resolution = resolution
        self._columns = columns
        self._rows: Rows = np.full((resolution.slots, 64), math.nan)
        self._numbers = np.full(resolution.slots, -1, dtype=np.int64)  # the slot in each row

    def add(self, slot: int, values: Values) -> None:
        row = self._row(slot)
        if row is None:
            return
        for series, value in values.items():
            column = self._columns.get(series)
            if column is None:
                continue
            previous = self._rows[row, column]
            self._rows[row, column] = value if is_level(series) or math.isnan(previous) else previous + value

    def replace(self, slot: int, values: Values) -> None:
        """Replace all values of a slot."""
        row = self._row(slot)
        if row is not None:
            self._rows[row] = math.nan
            self.add(slot, values)

    def rows(self, first: int, last: int) -> Rows:
        """Return the slots from `first` to `last`, one column for each series; NaN: not known."""
        self._widen()
        slots = np.arange(first, last + 1)
        rows = self._rows[slots % self.resolution.slots].copy()
        rows[self._numbers[slots % self.resolution.slots] != slots] = math.nan
        return rows

    def _row(self, slot: int) -> int | None:
        """Return the row of a slot, or None if the slot is too old."""
        self._widen()
        row = slot % self.resolution.slots
        if self._numbers[row] > slot:
            return None
        if self._numbers[row] < slot:
            self._numbers[row] = slot
            self._rows[row] = math.nan
        return row

    def _widen(self) -> None:
        height, width = self._rows.shape
        if len(self._columns) > width:
            wider = np.full((height, min(MAX_SERIES, 2 * len(self._columns))), math.nan)
            wider[:, :width] = self._rows
            self._rows = wider


class Timeline:
    """Keeps a ring for each resolution. For use from one thread."""

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._rings = {resolution: Ring(resolution, self._columns) for resolution in RESOLUTIONS}

    def add(self, at: float, values: Values) -> None:
        """Add the values since the last call, up to `at` (seconds since 1970)."""
        self._add_columns(values)
        for resolution, ring in self._rings.items():
            ring.add(resolution.slot_of(at), values)

    def replace(self, resolution: Resolution, slot: int, values: Values) -> None:
        self._add_columns(values)
        self._rings[resolution].replace(slot, values)

    def window(self, resolution: Resolution, slots: int, now: float) -> TimelineWindow:
        """Return the last `slots` slots, including the one of `now`."""
        last = resolution.slot_of(now)
        first = last - min(slots, resolution.slots) + 1
        rows = self._rings[resolution].rows(first, last)
        return TimelineWindow(resolution, first, dict(self._columns), rows)

    def _add_columns(self, values: Values) -> None:
        for series in values:
            if series not in self._columns and len(self._columns) < MAX_SERIES:
                self._columns[series] = len(self._columns)


@dataclass(frozen=True, slots=True)
class TimelineWindow:
    """A range of slots of the timeline. `first` is the number of its first slot."""

    resolution: Resolution
    first: int
    columns: Mapping[str, int]
    rows: Rows

    @property
    def starts(self) -> NDArray[np.int64]:
        """The start of each slot, seconds since 1970."""
        return (self.first + np.arange(len(self.rows))) * self.resolution.step_s

    @property
    def watched(self) -> NDArray[np.bool_]:
        """Whether each slot was watched."""
        return np.nan_to_num(self._column(UP)) > 0

    def level(self, series: str) -> Rows:
        """Return the levels of a series; NaN: not known."""
        return self._column(series)

    def total(self, series: str) -> Rows:
        """Return the sums of a series: 0 in watched slots without it, NaN in slots that were not watched."""
        values = np.nan_to_num(self._column(series))
        return np.where(self.watched, values, math.nan)

    def named(self, prefix: str) -> list[str]:
        """Return the series with `prefix` that have values in this window: their names without it, sorted."""
        values = [name for name in self.columns if name.startswith(prefix) and self._any(name)]
        return sorted(name.removeprefix(prefix) for name in values)

    def counts(self, prefix: str, buckets: int) -> Rows:
        """Return the series `prefix` + 0, 1, ..., one column for each."""
        return np.stack([np.nan_to_num(self._column(f"{prefix}{i}")) for i in range(buckets)], axis=1)

    def _any(self, series: str) -> bool:
        values = self._column(series)
        return bool(np.any(~np.isnan(values) & ((values != 0) | is_level(series))))

    def _column(self, series: str) -> Rows:
        column = self.columns.get(series)
        return np.full(len(self.rows), math.nan) if column is None else self.rows[:, column]


def quantiles(counts: Rows, bounds: tuple[float, ...], q: float) -> Rows:
    """Return a quantile for each row of counts by bucket, as `gateway.observability.metrics.quantile_of`; NaN for a row
    without counts."""
    seen = np.cumsum(counts, axis=1)
    total = seen[:, -1]
    rank = q * total
    bucket = np.argmax((counts > 0) & (seen >= rank[:, None]), axis=1)
    row_indices = np.arange(len(counts))
    lows, highs = np.array([0.0, *bounds]), np.array([*bounds, bounds[-1]])
    inside = counts[row_indices, bucket]
    previous = seen[row_indices, bucket] - inside
    with np.errstate(invalid="ignore", divide="ignore"):
        fraction = (rank - previous) / inside
    return np.where(total > 0, lows[bucket] + (highs[bucket] - lows[bucket]) * fraction, math.nan)


# The series of the dashboard: how they are taken from the metrics, and how they are shown.
MAX_ROUTES = 24  # routes with levels, three for each

BUCKETS = len(LATENCY_BUCKETS) + 1

LEVELS = {"share": "wrong_hit_ratio", "low": "wrong_hit_ratio_low", "high": "wrong_hit_ratio_high"}

SAVED = {"tokens": "tokens_saved", "dollars": "cost_saved", "backend_s": "backend_seconds_saved"}


def totals(telemetry: Telemetry) -> dict[str, float]:
    """Return all counts since the start."""
    values: dict[str, float] = {}
    _add(values, telemetry.requests, "verdict", 2)
    values["unrouted"] = telemetry.unrouted
    _add(values, telemetry.routed, "routed", 1, 2)
    _add(values, telemetry.shed, "shed")
    _add(values, telemetry.drift_alarms, "drift", 0)
    for name, metric in SAVED.items():
        _add(values, getattr(telemetry, metric), f"saved.{name}")
    _add_buckets(values, telemetry.request_seconds, "seconds", 1)
    _add_buckets(values, telemetry.stage_seconds, "stage", 0)
    return values


def levels(telemetry: Telemetry) -> dict[str, float]:
    """Return the present levels of each route, without those that are not known."""
    values: dict[str, float] = {}
    for name, metric in LEVELS.items():
        gauge: Gauge = getattr(telemetry, metric)
        for (route,), value in list(gauge.values.items())[:MAX_ROUTES]:
            if not math.isnan(value):
                values[f"=wrong.{name}.{route}"] = value
    return values


def delta(previous: Values, now: Mapping[str, float]) -> dict[str, float]:
    """Return the differences between two totals, without those that are zero."""
    return {name: value - previous.get(name, 0.0) for name, value in now.items() if value != previous.get(name, 0.0)}


def as_json(window: TimelineWindow) -> dict[str, Any]:
    """Return lists with one value for each slot, for `orjson` with numpy; null: not known."""
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
        "drift_alarms": {name: window.total(f"drift.{name}") for name in window.named("drift.")},
        "wrong_hits": {
            route: {name: np.where(watched, window.level(f"=wrong.{name}.{route}"), np.nan) for name in LEVELS}
            for route in window.named("=wrong.low.")
        },
    }


def _latencies(window: TimelineWindow, prefix: str) -> dict[str, dict[str, Rows]]:
    """Return the quantiles in ms of the series that have values in this window."""
    values = {}
    for name in sorted({series.rpartition(".")[0] for series in window.named(prefix)}):
        counts = window.counts(f"{prefix}{name}.", BUCKETS)
        values[name] = {f"p{q:g}": np.round(1e3 * quantiles(counts, LATENCY_BUCKETS, q / 100), 3) for q in (50.0, 95.0)}
    return values


def _add(values: dict[str, float], counter: Counter, name: str, *picked: int) -> None:
    """Add a counter, summed over all labels except those at the positions `picked`."""
    for labels, value in counter.values.items():
        series = ".".join([name, *(labels[i] for i in picked)])
        values[series] = values.get(series, 0.0) + value


def _add_buckets(values: dict[str, float], histogram: Histogram, name: str, picked: int) -> None:
    for labels, counts in histogram.counts.items():
        for i, count in enumerate(counts):
            if count:
                series = f"{name}.{labels[picked]}.{i}"
                values[series] = values.get(series, 0.0) + count
