"""Merges the metrics of several processes: counters add up, and gauges keep the worst value.

During a handover gateways of two versions run together. Metrics that they have in different forms are left out, with
one warning each (`VersionMismatch`)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import msgpack

from gateway.observability.metrics import LATENCY_BUCKETS, Counter, Gauge, Histogram, Labels, Series
from gateway.observability.telemetry import Telemetry

LOG = logging.getLogger("nearhit")

# Gauges of which each process has a part. The others measure shared things, or how bad something is: take the largest.
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
    """Serialize all metrics for `merge` in another process."""
    figures: dict[str, Any] = {}
    for metric in telemetry.metrics():
        if isinstance(metric, Histogram):
            figures[metric.name] = [(labels, series, series.total) for labels, series in metric.counts.items()]
        else:
            figures[metric.name] = list(_values(metric))
    data: bytes = msgpack.packb(figures)
    return data


def merge(into: Telemetry, own: Telemetry, alive: Iterable[bytes], ended: Iterable[bytes]) -> AbstractSet[str]:
    """Set `into` to the metrics of all processes together. Ended processes add only counters and histograms. Return the
    metrics that this version lacks or has in another form; those figures are left out."""
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
    """Warns once about each metric that another version has in another form."""

    def __init__(self) -> None:
        self._reported: set[str] = set()

    def report(self, metrics: AbstractSet[str]) -> None:
        """Warn about `metrics`, which `merge` has left out."""
        if unreported := sorted(metrics - self._reported):
            self._reported.update(unreported)
            LOG.warning(
                "metrics of another version of the gateway are left out", extra={"fields": {"metrics": unreported}}
            )


def _fits(metric: Counter | Gauge | Histogram, rows: Any) -> bool:
    """Return whether rows have the form that `pack_metrics` of this version gives them."""
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
    """Return the metrics; empty if they cannot be read: another process may be writing them."""
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
            current = metric.values.get(labels)
            if current is None or current != current:  # NaN: not known in this process
                metric.values[labels] = value
            elif metric.name in SUMMED:
                metric.values[labels] = current + value
            elif metric.name in MINIMIZED:
                metric.values[labels] = min(current, value)
            else:
                metric.values[labels] = max(current, value)
