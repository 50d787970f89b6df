"""What happened when, for thirty days and in bounded memory: counted by series and by slots of three lengths. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.messages import Verdict
from gateway.observability.metrics import LATENCY_BUCKETS, Counter, Gauge, Histogram
from gateway.observability.telemetry import Telemetry

MAX_SERIES = 512  # of 8 bytes a slot: 5.6 MB at most. What comes beyond is left out

UP = "up"  # the series of the seconds that were watched: in a slot without it nothing is known

Values = Mapping[str, float]

Rows = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Resolution:
    """`slots` of `step_s` seconds each."""

    step_s: int
    slots: int

    def slot_of(self, at: float) -> int:
        """The number of the slot that `at` (seconds since 1970) lies in."""
        return int(at // self.step_s)


# An hour, a day and thirty days, each with few enough points to be drawn at once.
FINE, MIDDLE, COARSE = Resolution(10, 360), Resolution(300, 288), Resolution(3600, 720)

RESOLUTIONS = (FINE, MIDDLE, COARSE)


def is_level(series: str) -> bool:
    """Whether its values are levels, of which the last one of a slot counts, instead of being added up."""
    return series.startswith("=")


class Ring:
    """The youngest slots of one resolution; older ones are overwritten."""

    def __init__(self, resolution: Resolution, columns: dict[str, int]) -> None:
        self.resolution = resolution
        self._columns = columns
        self._rows: Rows = np.full((resolution.slots, 64), math.nan)
        self._numbers = np.full(resolution.slots, -1, dtype=np.int64)  # which slot lies in each row

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
        """All that is known of the slot."""
        row = self._row(slot)
        if row is not None:
            self._rows[row] = math.nan
            self.add(slot, values)

    def rows(self, first: int, last: int) -> Rows:
        """Of the slots from `first` to `last`, a column a series; NaN where nothing is known."""
        self._widen()
        slots = np.arange(first, last + 1)
        rows = self._rows[slots % self.resolution.slots].copy()
        rows[self._numbers[slots % self.resolution.slots] != slots] = math.nan
        return rows

    def _row(self, slot: int) -> int | None:
        """None for a slot that is too old."""
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
    """A ring for each resolution. To be used from one thread."""

    def __init__(self) -> None:
        self._columns: dict[str, int] = {}
        self._rings = {resolution: Ring(resolution, self._columns) for resolution in RESOLUTIONS}

    def add(self, at: float, values: Values) -> None:
        """What has happened up to `at` (seconds since 1970), since the last time."""
        self._add_columns(values)
        for resolution, ring in self._rings.items():
            ring.add(resolution.slot_of(at), values)

    def replace(self, resolution: Resolution, slot: int, values: Values) -> None:
        self._add_columns(values)
        self._rings[resolution].replace(slot, values)

    def window(self, resolution: Resolution, slots: int, now: float) -> TimelineWindow:
        """The last `slots` slots, the one of `now` included."""
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
    """A stretch of the timeline. `first`: the number of its first slot."""

    resolution: Resolution
    first: int
    columns: Mapping[str, int]
    rows: Rows

    @property
    def starts(self) -> NDArray[np.int64]:
        """Seconds since 1970 at which each slot begins."""
        return (self.first + np.arange(len(self.rows))) * self.resolution.step_s

    @property
    def watched(self) -> NDArray[np.bool_]:
        """Of which slots anything is known."""
        return np.nan_to_num(self._column(UP)) > 0

    def level(self, series: str) -> Rows:
        """NaN where it is not known."""
        return self._column(series)

    def total(self, series: str) -> Rows:
        """0 in slots that were watched and have none of it, NaN in those that were not."""
        values = np.nan_to_num(self._column(series))
        return np.where(self.watched, values, math.nan)

    def named(self, prefix: str) -> list[str]:
        """What follows `prefix` in the names of the series that have anything in this window, in alphabetical order."""
        values = [name for name in self.columns if name.startswith(prefix) and self._any(name)]
        return sorted(name.removeprefix(prefix) for name in values)

    def counts(self, prefix: str, buckets: int) -> Rows:
        """The series `prefix` + 0, 1, ..., a column each."""
        return np.stack([np.nan_to_num(self._column(f"{prefix}{i}")) for i in range(buckets)], axis=1)

    def _any(self, series: str) -> bool:
        values = self._column(series)
        return bool(np.any(~np.isnan(values) & ((values != 0) | is_level(series))))

    def _column(self, series: str) -> Rows:
        column = self.columns.get(series)
        return np.full(len(self.rows), math.nan) if column is None else self.rows[:, column]


def quantiles(counts: Rows, bounds: tuple[float, ...], q: float) -> Rows:
    """Of each row of counts by bucket, as `gateway.observability.metrics.quantile_of`; NaN of a row without any."""
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


# What the dashboard shows over time: the series that are kept of the metrics, and how they are told. Pure.
MAX_ROUTES = 24  # that have levels of their own; three each

BUCKETS = len(LATENCY_BUCKETS) + 1

LEVELS = {"share": "wrong_hit_ratio", "low": "wrong_hit_ratio_low", "high": "wrong_hit_ratio_high"}

SAVED = {"tokens": "tokens_saved", "dollars": "cost_saved", "backend_s": "backend_seconds_saved"}


def totals(telemetry: Telemetry) -> dict[str, float]:
    """Everything that is counted, since the start."""
    values: dict[str, float] = {}
    _add(values, telemetry.requests, "verdict", 2)
    values["unrouted"] = telemetry.unrouted
    _add(values, telemetry.routed, "routed", 1, 2)
    _add(values, telemetry.shed, "shed")
    for name, metric in SAVED.items():
        _add(values, getattr(telemetry, metric), f"saved.{name}")
    _add_buckets(values, telemetry.request_seconds, "seconds", 1)
    _add_buckets(values, telemetry.stage_seconds, "stage", 0)
    return values


def levels(telemetry: Telemetry) -> dict[str, float]:
    """What is measured of each route, as it stands; what is not known is left out."""
    values: dict[str, float] = {}
    for name, metric in LEVELS.items():
        gauge: Gauge = getattr(telemetry, metric)
        for (route,), value in list(gauge.values.items())[:MAX_ROUTES]:
            if not math.isnan(value):
                values[f"=wrong.{name}.{route}"] = value
    return values


def delta(previous: Values, now: Mapping[str, float]) -> dict[str, float]:
    """What has been added, without what has not."""
    return {name: value - previous.get(name, 0.0) for name, value in now.items() if value != previous.get(name, 0.0)}


def as_json(window: TimelineWindow) -> dict[str, Any]:
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


def _latencies(window: TimelineWindow, prefix: str) -> dict[str, dict[str, Rows]]:
    """Milliseconds, of what has any in this window."""
    values = {}
    for name in sorted({series.rpartition(".")[0] for series in window.named(prefix)}):
        counts = window.counts(f"{prefix}{name}.", BUCKETS)
        values[name] = {f"p{q:g}": np.round(1e3 * quantiles(counts, LATENCY_BUCKETS, q / 100), 3) for q in (50.0, 95.0)}
    return values


def _add(values: dict[str, float], counter: Counter, name: str, *picked: int) -> None:
    """By the labels at the places `picked`, over all others."""
    for labels, value in counter.values.items():
        series = ".".join([name, *(labels[i] for i in picked)])
        values[series] = values.get(series, 0.0) + value


def _add_buckets(values: dict[str, float], histogram: Histogram, name: str, picked: int) -> None:
    for labels, counts in histogram.counts.items():
        for i, count in enumerate(counts):
            if count:
                series = f"{name}.{labels[picked]}.{i}"
                values[series] = values.get(series, 0.0) + count
