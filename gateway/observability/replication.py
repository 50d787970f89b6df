"""What a gateway tells of how it follows the others on its store."""

from __future__ import annotations

from gateway.observability.metrics import Counter, Gauge, Histogram


class ReplicationMetrics:
    def __init__(self) -> None:
        self.lag_entries = Gauge(
            "nearhit_replication_lag_entries", "Changes in the store that this gateway has not read yet", ()
        )
        self.lag_seconds = Gauge(
            "nearhit_replication_lag_seconds", "Age of the oldest change that this gateway may not know", ()
        )
        self.delay_seconds = Histogram(
            "nearhit_replication_delay_seconds", "From a change in the store to its being in force here", ()
        )
        self.changes = Counter(
            "nearhit_replication_changes_total", "Changes of other gateways that were read", ("kind",)
        )
        self.rebuilds = Counter(
            "nearhit_replication_rebuilds_total",
            "Comparisons with the whole store, as changes were no longer there",
            ("outcome",),
        )
