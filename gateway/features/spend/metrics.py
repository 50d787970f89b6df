"""The metrics of the spend."""

from __future__ import annotations

from gateway.context import RequestContext
from gateway.observability.metrics import Counter

MAX_TENANTS = 100  # with a series of their own; a series takes 3 kB of Prometheus
OTHERS = "others"


class SpendMetrics:
    """Counts alerts, and the spend of tenants on routes whose policy has it counted."""

    def __init__(self) -> None:
        self.cost = Counter("nearhit_tenant_cost_dollars_total", "Dollars of calls, by tenant", ("route", "tenant"))
        self.saved = Counter(
            "nearhit_tenant_saved_dollars_total", "Dollars saved by hits, by tenant", ("route", "tenant")
        )
        self.requests = Counter(
            "nearhit_tenant_requests_total",
            "Requests of tenants, by whether a cache answered",
            ("route", "tenant", "hit"),
        )
        self.alerts = Counter(
            "nearhit_spend_alerts_total", "Attempts to send an alert on a budget, by outcome", ("route", "outcome")
        )
        self._tenants: set[str] = set()

    def ended(self, request: RequestContext, saved: float | None) -> None:
        """Count a request that is over. `saved` are the dollars that its hit saved; None: it was none."""
        tenant = self.label(request.client.tenant)
        self.requests.add(request.route, tenant, "no" if saved is None else "yes")
        if saved:
            self.saved.add(request.route, tenant, amount=saved)

    def label(self, tenant: str) -> str:
        """Return the label of a tenant: its name for the first ones that come."""
        if tenant not in self._tenants:
            if len(self._tenants) >= MAX_TENANTS:
                return OTHERS
            self._tenants.add(tenant)
        return tenant
