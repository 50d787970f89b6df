"""The ledger of a gateway: it books in memory, and writes to the store in the background."""

from __future__ import annotations

import asyncio
import logging
import secrets
from bisect import bisect_left
from collections.abc import Callable, Mapping
from typing import NamedTuple

from gateway.cache.bans import is_same_tenant
from gateway.cache.erasure import ErasureTarget, ErasureTraces
from gateway.cache.stored_parts import REACHED, Part, Reach
from gateway.config.policy.model import Policy, Route
from gateway.context import RequestContext
from gateway.errors import StoreUnavailable
from gateway.feature import Core, Runtime
from gateway.features.spend.alerts import Alerts
from gateway.features.spend.figures import Figures, MetricFigures
from gateway.features.spend.metrics import SpendMetrics
from gateway.features.spend.rows import HOUR_S, NANOS, OTHERS, Counts, Payer
from gateway.features.spend.rule import SpendRule
from gateway.features.spend.store import KEPT_S, SpendStore
from gateway.features.spend.tier_prices import TierPrices
from gateway.messages import Provenance
from gateway.observability.metrics import LATENCY_BUCKETS
from gateway.outcomes import Verdict
from gateway.prices import Tokens
from gateway.steps.route_ports import OnEnd, RoutePorts
from gateway.subjects import SubjectDigests, names_in

LOG = logging.getLogger("nearhit.spend")

FLUSH_S = 1.0  # between two writes: a gateway that is killed loses the bookings since the last one
MAX_PAYERS = 4_096  # with bookings that are not written; further ones are one row
ERASED = "erased"
HITS = frozenset({Verdict.EXACT, Verdict.SEMANTIC, Verdict.STALE, Verdict.COALESCED})

SPEND = Part(
    "spend",
    "rows of the spend",
    ("spend:*",),
    (),
    Reach(
        erase=REACHED,
        purge="they stay for 13 months",
        export="nearhit spend --csv prints them",
        explain="no decision reads them",
        simulate="no decision reads them",
    ),
    counted=True,
    own=False,
)


class Batch(NamedTuple):
    """Bookings of an hour that go to the store under one number."""

    number: int
    hour: int
    rows: dict[Payer, Counts]
    figures: Mapping[str, Figures]


class Ledger(Runtime):
    """The books of one gateway. For use from one event loop."""

    def __init__(self, store: SpendStore, core: Core, metrics: SpendMetrics, alerts: Alerts) -> None:
        self.part = SPEND
        self._store = store
        self._clock = core.clock
        self._digests = core.subjects
        self._prices = core.prices
        self._metric_figures = MetricFigures(core.telemetry)
        self._metrics = metrics
        self._alerts = alerts
        self._figures: dict[str, Figures] = {}  # by route, those that no metric counts
        self._name = secrets.token_hex(8)
        self._number = 0
        self._hours: dict[int, dict[Payer, Counts]] = {}
        self._batches: list[Batch] = []  # a batch stays until the store has it
        self._write_lock = asyncio.Lock()
        self._failing = False

    # Booking

    def in_force(self, policy: Policy) -> None:
        rules = {route.name: rule for route in policy.routes if (rule := route.of(SpendRule)) is not None}
        self._metric_figures.follow(rules)
        self._alerts.follow(rules)

    def ports(self, route: Route) -> RoutePorts:
        rule = route.of(SpendRule)
        assert rule is not None  # the route uses the feature
        return RoutePorts(on_spent=self._spends(route, rule))

    def end_listener(self, route: Route) -> OnEnd:
        rule = route.of(SpendRule)
        assert rule is not None  # the route uses the feature
        users, tiers = rule.users, TierPrices(route.target, self._prices)
        metrics = self._metrics if rule.metrics else None

        def ended(request: RequestContext, provenance: Provenance | None) -> None:
            backend = "" if provenance is None else provenance.backend or ""
            counts = self._row(_payer_of(request, backend, users=users))
            counts.requests += 1
            is_hit = provenance is not None and provenance.verdict in HITS
            if metrics is not None:
                metrics.ended(request, provenance.saved_dollars if provenance is not None and is_hit else None)
            if provenance is not None and is_hit:
                counts.hits += 1
                counts.saved += round(provenance.saved_dollars * NANOS)
                counts.saved_tokens += provenance.saved_tokens
                if provenance.upstream_s:
                    times = self._figures_of(request.route).backend_times
                    times[bisect_left(LATENCY_BUCKETS, provenance.upstream_s)] += 1
            elif provenance is not None and provenance.tier is not None:
                tiers.count(self._figures_of(request.route), request.model, provenance)
            if users:
                request.served = None  # the exact fast path would answer the next one without its user

        return ended

    def _spends(self, route: Route, rule: SpendRule) -> Callable[[RequestContext, str, Tokens, float, bool], None]:
        users, tiers = rule.users, TierPrices(route.target, self._prices)
        metrics = self._metrics if rule.metrics else None

        def spent(request: RequestContext, backend: str, tokens: Tokens, dollars: float, is_priced: bool) -> None:
            if request.work.internal:
                return  # an audit: its cost is a figure of the route
            counts = self._row(_payer_of(request, backend, users=users))
            counts.calls += 1
            counts.unpriced += not is_priced
            counts.input += tokens.input
            counts.cached += tokens.cached
            counts.output += tokens.output
            counts.reasoning += tokens.reasoning
            counts.cost += round(dollars * NANOS)
            if metrics is not None:
                metrics.cost.add(request.route, metrics.label(request.client.tenant), amount=dollars)
            if tiers.is_light(backend):
                tiers.compare(self._figures_of(request.route), request.model, backend, tokens)

        return spent

    def _figures_of(self, route: str) -> Figures:
        figures = self._figures.get(route)
        if figures is None:
            figures = self._figures[route] = Figures()
        return figures

    def _row(self, payer: Payer) -> Counts:
        hour = int(self._clock.wall()) // HOUR_S
        rows = self._hours.get(hour)
        if rows is None:
            rows = self._hours[hour] = {}
        counts = rows.get(payer)
        if counts is None:
            payer = payer if len(rows) < MAX_PAYERS else OTHERS
            counts = rows.setdefault(payer, Counts())
        return counts

    # Writing

    async def run(self) -> None:
        """Write until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Write all bookings so far. Those that the store does not take stay for the next time."""
        async with self._write_lock:
            if not self._batches:  # while the store fails, rows grow in memory and not the number of batches
                self._close_batches()
            try:
                while self._batches:
                    batch = self._batches[0]
                    await self._write(batch)
                    del self._batches[0]
            except StoreUnavailable as error:
                if not self._failing:
                    LOG.warning("spend waits for the store", extra={"fields": {"error": str(error)}})
                self._failing = True
                return
            self._failing = False

    def _close_batches(self) -> None:
        hours, self._hours = self._hours, {}
        figures, self._figures = self._figures, {}
        for route, more in self._metric_figures.differences().items():
            figures.setdefault(route, Figures()).add(more)
        now = int(self._clock.wall()) // HOUR_S
        for hour in sorted({*hours, *([now] if figures else [])}):
            self._number += 1
            self._batches.append(Batch(self._number, hour, hours.get(hour, {}), figures if hour == now else {}))

    async def _write(self, batch: Batch) -> None:
        if batch.rows:
            await self._store.add(self._name, batch.number, batch.hour, batch.rows)
        if batch.figures:
            await self._store.add_figures(self._name, batch.number, batch.hour, batch.figures)

    async def close(self) -> None:
        """Write the last bookings."""
        await self.flush()
        await self.flush()  # those that came while the store failed
        left = sum(counts.cost for rows in self._hours.values() for counts in rows.values())
        left += sum(counts.cost for batch in self._batches for counts in batch.rows.values())
        if left:
            LOG.error("spend is lost: the store took none of it", extra={"fields": {"dollars": left / NANOS}})

    # Erasing

    def stored_parts(self) -> tuple[Ledger]:
        return (self,)

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        """Take the names of the target out of its rows, and return how many there were. The sums stay."""
        if self._digests is None:
            return 0
        await self.flush()
        found, end = 0, int(self._clock.wall()) // HOUR_S + 1
        async for hour, rows in self._store.read(end - KEPT_S // HOUR_S, end):
            for payer, _ in rows:
                without = self._without(payer, target, self._digests)
                if without != payer:
                    found += 1
                    if not dry_run:
                        await self._store.move(hour, payer, without)
        return found

    def _without(self, payer: Payer, target: ErasureTarget, digests: SubjectDigests) -> Payer:
        """Return the row without the names that belong to the target."""
        if target.tenant is not None and not is_same_tenant(target.tenant, payer.tenant):
            return payer
        if not target.subjects:
            return payer._replace(tenant=ERASED, key=payer.key and ERASED, user=payer.user and ERASED)
        if any(digests.of("user", name) in target.subjects for name in names_in(payer.user)):
            payer = payer._replace(user=ERASED)
        if payer.key and digests.of("key", payer.key) in target.subjects:
            payer = payer._replace(key=ERASED)
        return payer


def _payer_of(request: RequestContext, backend: str, *, users: bool) -> Payer:
    client, call = request.client, request.call
    key = "" if client.permit is None else client.permit.name
    user = (call.user or "") if users and call is not None else ""
    return Payer(client.tenant, key, user, request.route, backend, request.model)
