"""The metrics of rollouts."""

from __future__ import annotations

from gateway.observability.metrics import Counter, Gauge


class RolloutMetrics:
    """Counts the changes and the comparisons, and shows the shares."""

    def __init__(self) -> None:
        self.changes = Counter(
            "nearhit_rollout_changes_total", "Changes of rollouts that this gateway made", ("route", "change")
        )
        self.audits = Counter(
            "nearhit_rollout_audits_total", "Answers compared with the large model's, by outcome", ("route", "outcome")
        )
        self.cost = Counter("nearhit_rollout_cost_dollars_total", "Dollars spent on these comparisons", ("route",))
        self.webhooks = Counter("nearhit_rollout_webhooks_total", "Attempts to tell of a change", ("route", "outcome"))
        self.share = Gauge("nearhit_rollout_share", "Share of the light model's calls by version", ("route", "version"))

    def show(self, route: str, shares: dict[str, float]) -> None:
        """Show the shares of a route's versions, and of no others."""
        for labels in [each for each in self.share.values if each[0] == route and each[1] not in shares]:
            del self.share.values[labels]
        for version, share in shares.items():
            self.share.values[route, version] = share
