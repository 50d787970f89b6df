"""The metrics of a process, and sums over them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import TypeVar

from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from gateway.containment import StepFailures
from gateway.observability.json_logging import RateLimitedLog
from gateway.observability.metric_definitions import (
    AccessMetrics,
    BackendMetrics,
    CacheMetrics,
    JobMetrics,
    ProcessMetrics,
    PromiseMetrics,
    QualityMetrics,
    ReplicationMetrics,
    RequestMetrics,
    RoutingMetrics,
    StoreMetrics,
)
from gateway.observability.metrics import Counter, Gauge, Histogram, Labels

G = TypeVar("G")


class Telemetry(
    Collector,
    RequestMetrics,
    RoutingMetrics,
    PromiseMetrics,
    CacheMetrics,
    QualityMetrics,
    BackendMetrics,
    AccessMetrics,
    JobMetrics,
    StoreMetrics,
    ProcessMetrics,
):
    """Has every metric as an attribute, so that the hot path finds each in one step."""

    def __init__(self) -> None:
        RequestMetrics.__init__(self)
        RoutingMetrics.__init__(self)
        PromiseMetrics.__init__(self)
        CacheMetrics.__init__(self)
        QualityMetrics.__init__(self)
        BackendMetrics.__init__(self)
        AccessMetrics.__init__(self)
        JobMetrics.__init__(self)
        StoreMetrics.__init__(self)
        ProcessMetrics.__init__(self)
        self.store_warnings = RateLimitedLog()
        self.failures = StepFailures(self.step_failures)
        self.replication = ReplicationMetrics()
        self._groups: list[object] = [self.replication]
        self._labels_of: dict[str, list[Labels]] = {}  # by route: the labels of `requests`
        self._labels_seen = 0

    def include(self, group: G) -> G:
        """Show the metrics that an object has as attributes, such as those of a feature, and return the object."""
        self._groups.append(group)
        return group

    def record_savings(self, route: Labels, tokens: int, dollars: float, upstream_s: float) -> None:
        """Add the savings of a hit. `route` has the labels of metrics by route alone."""
        if tokens:
            sums = self.tokens_saved.values
            sums[route] = sums.get(route, 0.0) + tokens
        if tokens or dollars:  # some answers cost by the call, or by a unit
            sums = self.cost_saved.values
            sums[route] = sums.get(route, 0.0) + dollars
        if upstream_s:
            sums = self.backend_seconds_saved.values
            sums[route] = sums.get(route, 0.0) + upstream_s

    def requests_of(self, route: str) -> int:
        """Return the number of requests that a route has answered since the start. Every semantic lookup calls this, so
        the labels of all routes are scanned only if there are new ones."""
        counts = self.requests.values
        if len(counts) != self._labels_seen:
            self._labels_seen = len(counts)
            self._labels_of = {}
            for labels in counts:
                self._labels_of.setdefault(labels[0], []).append(labels)
        return int(sum(map(counts.__getitem__, self._labels_of.get(route, ()))))

    @property
    def unrouted(self) -> float:
        """The number of requests that count as misses but met no route: refused before (a wrong key, no JSON), for a
        job, or feedback."""
        return sum(n for (route, _, verdict, _), n in self.requests.values.items() if not route and verdict == "miss")

    def metrics(self) -> Iterator[Counter | Gauge | Histogram]:
        candidates = chain(vars(self).values(), *(vars(group).values() for group in self._groups))
        return (value for value in candidates if isinstance(value, Counter | Gauge | Histogram))

    def collect(self) -> Iterator[Metric]:
        for metric in self.metrics():
            yield metric.family()
