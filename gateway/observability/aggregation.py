"""The figures of several processes as one: what is counted adds up, of what is measured the worst is kept.

Gateways of two versions are at work together while one takes over from the other: what they tell in different forms is
left out, and said once (`VersionMismatch`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import msgpack

from gateway.observability.metrics import LATENCY_BUCKETS, Counter, Gauge, Histogram, Labels, Series
from gateway.observability.telemetry import Telemetry

LOG = logging.getLogger("nearhit")

# Gauges of what each process has a part of. All others are of what they share, or of how bad it is: the largest counts.
SUMMED = frozenset(
    (
        "nearhit_backend_inflight",
        "nearhit_backend_limit",
        "nearhit_backend_queued",
        "nearhit_upstream_inflight",
    )
)
MINIMIZED = frozenset(("nearhit_store_up", "nearhit_policy_last_reload_successful"))  # 1 is good


def pack_metrics(telemetry: Telemetry) -> bytes:
    """To be read by `merge` in another process."""
    figures: dict[str, Any] = {}
    for metric in telemetry.metrics():
        if isinstance(metric, Histogram):
            figures[metric.name] = [(labels, series, series.total) for labels, series in metric.counts.items()]
        else:
            figures[metric.name] = list(_values(metric))
    data: bytes = msgpack.packb(figures)
    return data


def merge(into: Telemetry, own: Telemetry, alive: Iterable[bytes], ended: Iterable[bytes]) -> AbstractSet[str]:
    """Makes `into` what all of them together say. Of those that have ended only what was counted. -> the metrics that
    some of them have, and this version has not, or in another form: what they say of those is left out."""
    read = [(_unpack(data), True) for data in alive] + [(_unpack(data), False) for data in ended]
    others = {metric.name: metric for metric in own.metrics()}
    mismatched = {str(name) for figures, _ in read for name in figures if name not in others}
    for metric in into.metrics():
        own_metric = others[metric.name]
        rows = [(figures[metric.name], is_alive) for figures, is_alive in read if metric.name in figures]
        if not all(_fits(metric, row) for row, _ in rows):
            mismatched.add(metric.name)
            rows = [(row, is_alive) for row, is_alive in rows if _fits(metric, row)]
        if isinstance(metric, Histogram):
            assert isinstance(own_metric, Histogram)
            _add_counts(metric, own_metric, [row for row, _ in rows])
        elif isinstance(metric, Counter):
            metric.values = dict(_values(own_metric))
            for row, _ in rows:
                for labels, value in row:
                    metric.values[tuple(labels)] = metric.values.get(tuple(labels), 0.0) + value
        else:
            metric.values = dict(_values(own_metric))
            _merge_gauge(metric, [row for row, is_alive in rows if is_alive])
    return mismatched


class VersionMismatch:
    """Says of each metric once that another version has it otherwise."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def report(self, metrics: AbstractSet[str]) -> None:
        """`metrics`: what `merge` has left out."""
        if unreported := sorted(metrics - self._reported):
            self._reported.update(unreported)
            LOG.warning(
                "figures of another version of the gateway are left out", extra={"fields": {"metrics": unreported}}
            )


def _fits(metric: Counter | Gauge | Histogram, rows: Any) -> bool:
    """Whether they have the form that `pack_metrics` gives them here."""
    return isinstance(rows, list) and all(isinstance(row, list) and _is_row(metric, *row) for row in rows)


def _is_row(metric: Counter | Gauge | Histogram, labels: Any = None, *values: Any) -> bool:
    if not isinstance(labels, list) or len(labels) != len(metric.labels):
        return False
    if not all(isinstance(label, str) for label in labels):
        return False
    *counts, number = values or (None,)
    if not isinstance(number, int | float):
        return False
    if not isinstance(metric, Histogram):
        return not counts
    return (
        len(counts) == 1
        and isinstance(counts[0], list)
        and len(counts[0]) == len(LATENCY_BUCKETS) + 1
        and all(type(count) is int for count in counts[0])
    )


def _unpack(data: bytes) -> Mapping[str, Any]:
    """Empty where it cannot be read: it is written by another process all the time."""
    try:
        figures = msgpack.unpackb(data)
    except (ValueError, msgpack.UnpackException):
        return {}
    return figures if isinstance(figures, dict) else {}


def _values(metric: Counter | Gauge | Histogram) -> Iterable[tuple[Labels, float]]:
    if isinstance(metric, Gauge) and metric.source is not None:
        return metric.source()
    assert not isinstance(metric, Histogram)
    return metric.values.items()


def _add_counts(metric: Histogram, own: Histogram, rows: Iterable[Any]) -> None:
    metric.counts = {labels: Series(series, series.total) for labels, series in own.counts.items()}
    metric.exemplars = own.exemplars
    for row in rows:
        for names, counts, total in row:
            labels = tuple(names)
            previous = metric.series_of(labels)
            added = [a + b for a, b in zip(previous, counts, strict=True)]
            metric.counts[labels] = Series(added, previous.total + total)


def _merge_gauge(metric: Gauge, rows: Iterable[Any]) -> None:
    for row in rows:
        for names, value in row:
            labels = tuple(names)
            known = metric.values.get(labels)
            if known is None or known != known:  # NaN: nothing was known here
                metric.values[labels] = value
            elif metric.name in SUMMED:
                metric.values[labels] = known + value
            elif metric.name in MINIMIZED:
                metric.values[labels] = min(known, value)
            else:
                metric.values[labels] = max(known, value)
