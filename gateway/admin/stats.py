"""The figures of the dashboard, and the gauges that are updated before a scrape."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from gateway.admin.backends import BackendReport
from gateway.admin.learning import RouteQuality, RouteRouting
from gateway.admin.operations import NotRequired, TypedDict
from gateway.cache.embedding_spaces import Space, Spaces
from gateway.cache.memory_cache import TieredStore
from gateway.config.policy.model import Policy
from gateway.errors import StoreUnavailable
from gateway.observability.metrics import LATENCY_BUCKETS, Counter, Histogram, quantile_of
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Verdict
from gateway.ports import Clock
from gateway.upstream.backend import UpstreamPool


class CacheSizes(TypedDict):
    entries: dict[str, float]
    """By cache: `front`, `index`, `store`, `device`."""
    bytes: dict[str, float]
    store_answers: bool
    """False: the figures of the store are old or missing."""


# These gauges are updated before a scrape and for the history of the dashboard, or when a policy comes into force.
def set_policy_gauges(telemetry: Telemetry, policy: Policy) -> None:
    """Set the gauges of the promises of `policy`, which is now in force. Remove those of routes that it lacks.

    Alerts compare the measured values with them.
    """
    for gauge in (telemetry.policy_info, telemetry.max_wrong_hits, telemetry.promised_confidence):
        gauge.values.clear()
    telemetry.policy_info.set(policy.hash, value=1.0)
    for route in policy.routes:
        telemetry.promised_confidence.set(route.name, value=route.slo.confidence)
        if route.semantic is not None and route.semantic.acceptance.max_wrong_hits is not None:
            telemetry.max_wrong_hits.set(route.name, value=route.semantic.acceptance.max_wrong_hits)
            telemetry.drift_alarms.add(route.name, amount=0.0)  # an alert sees only increases of a known counter


def set_size_gauges(telemetry: Telemetry) -> CacheSizes:
    """Return the sizes of the caches. Unless `store_answers`, the sizes of the store are old or missing."""
    return {
        "entries": {kind: value for (kind,), value in telemetry.cache_entries.values.items()},
        "bytes": {kind: value for (kind,), value in telemetry.cache_bytes.values.items()},
        "store_answers": telemetry.store_up.values.get((), 0.0) > 0,
    }


class Gauges:
    """`Gauges` updates the gauges that follow a state."""

    def __init__(
        self,
        telemetry: Telemetry,
        pools: Mapping[str, UpstreamPool],
        store: TieredStore,
        spaces: Spaces,
        clock: Clock,
        routing: Callable[[], None],
    ) -> None:
        """`routing` sets the gauges of `gateway.admin.learning`."""
        self._telemetry = telemetry
        self._pools = pools
        self._store = store
        self._spaces = spaces
        self._clock = clock
        self._routing = routing

    async def sample(self) -> None:
        """Set all gauges."""
        self.sample_pools()
        await self._sample_store()

    def sample_pools(self) -> None:
        """Set the gauges of this process, without a call to the store."""
        telemetry, now = self._telemetry, self._clock.monotonic()
        for name, pool in self._pools.items():
            occupancy = pool.occupancy
            telemetry.backend_inflight.set(name, value=occupancy.inflight)
            telemetry.backend_limit.set(name, value=occupancy.limit)
            telemetry.backend_queued.set(name, value=occupancy.queued)
            telemetry.breaker_state.set(name, value=pool.state(now))
            self._sample_upstreams(pool, now)
        self._routing()
        if self._spaces.is_open:
            self._sample_space(self._spaces.serving)
        telemetry.cache_entries.set("front", value=len(self._store))
        telemetry.cache_bytes.set("front", value=self._store.bytes)

    async def _sample_store(self) -> None:
        telemetry = self._telemetry
        try:
            stored = await self._store.stats()
        except StoreUnavailable:
            telemetry.store_up.set(value=0.0)
            return  # the last figures stay
        telemetry.store_up.set(value=1.0)
        telemetry.cache_entries.set("store", value=stored.entries)
        telemetry.cache_bytes.set("store", value=stored.bytes)

    def _sample_upstreams(self, pool: UpstreamPool, now: float) -> None:
        telemetry = self._telemetry
        for endpoint in pool.endpoints:
            labels = pool.name, endpoint.upstream.address
            telemetry.upstream_state.set(*labels, value=endpoint.state(now))
            telemetry.upstream_inflight.set(*labels, value=endpoint.backend.occupancy.inflight)
            slowest_s = endpoint.slowest_s()
            if slowest_s is not None:
                telemetry.upstream_latency.set(*labels, value=slowest_s)

    def _sample_space(self, space: Space) -> None:
        telemetry = self._telemetry
        telemetry.cache_entries.set("index", value=space.index.size)
        telemetry.cache_bytes.set("index", value=sum(each.index.bytes for each in self._spaces.all))
        if (placed := space.index.entries_on_device) is not None:
            telemetry.cache_entries.set("device", value=placed)
        space.comparisons.budget.update()
        telemetry.load_level.set(value=space.load.level)
        for route, control in space.controls.all():
            estimate = control.estimate()
            telemetry.wrong_hit_ratio.set(route, value=estimate.of_all)
            telemetry.wrong_hit_ratio_low.set(route, value=estimate.of_all_low)
            telemetry.wrong_hit_ratio_high.set(route, value=estimate.of_all_high)
            telemetry.wrong_of_served_ratio.set(route, value=estimate.of_served)
            telemetry.wrong_of_served_ratio_low.set(route, value=estimate.of_served_low)
            telemetry.wrong_of_served_ratio_high.set(route, value=estimate.of_served_high)
            if control.current_threshold is not None:
                telemetry.acceptance_threshold.set(route, value=control.current_threshold)


Latencies = dict[str, float | None]
"""Milliseconds by quantile: `p50`, `p95` and `p99`. Null: no request."""


class LatencyCounts(TypedDict):
    bounds_s: list[float]
    """The upper bounds of the buckets in seconds. The last bucket has none."""
    verdicts: dict[str, list[int]]


class RoutedReport(TypedDict):
    route: str
    tier: str
    reason: str
    count: float


class BackendOutcome(TypedDict):
    backend: str
    outcome: str
    """The status of a response, or the kind of an error."""
    count: float


class PolicySummary(TypedDict):
    hash: str
    routes: list[str]
    warnings: list[str]
    faults: list[str]
    """The faults of the last reload. Empty: it succeeded."""


class StallReport(TypedDict):
    ms: float
    cause: str
    where: NotRequired[str]


class LoopReport(TypedDict):
    last: StallReport | None
    longest: StallReport | None


class TenantsOfAKey(TypedDict):
    tenants: int
    """The tenants that the key with the most counts as, where backends check the credentials."""
    headers: list[str]
    """The headers beside the key that make them."""


class StatsReport(TypedDict):
    now: float
    """Seconds since 1970."""
    started: float
    """The start of the oldest gateway, seconds since 1970."""
    gateways: int
    """The gateways that the totals include."""
    requests: float
    hit_rate: float | None
    """Hits per cache lookup, in [0, 1]. Null: no lookup yet."""
    verdicts: dict[str, float]
    unrouted: float
    """Requests that failed before they met a route."""
    latency_ms: dict[str, Latencies]
    """By verdict."""
    latency_counts: LatencyCounts
    stage_ms: dict[str, Latencies]
    tiers: dict[str, float]
    routed: list[RoutedReport]
    refusals: dict[str, float]
    """Neighbours that were not served, by reason."""
    admissions: dict[str, float]
    """Decisions on storing a response, by outcome."""
    tokens_saved: float
    dollars_saved: float
    backend_seconds_saved: float
    shed: float
    backend_outcomes: list[BackendOutcome]
    store_errors: float
    step_failures: dict[str, float]
    """Unexpected failures, by step."""
    loop_stalls: dict[str, float]
    """Stalls of the event loop, by cause."""
    listen: str
    """The URL of the data port."""
    policy: PolicySummary
    quality: list[RouteQuality]
    routing: list[RouteRouting]
    backends: dict[str, BackendReport]
    store_breaker: str
    index_ready: bool
    loop: LoopReport
    migration: dict[str, float]
    """Entries of another embedding model, by state."""
    embedder: str
    """The fingerprint of the embedding model in use."""
    other_embedders: list[str]
    """Embedders of other gateways on the store, which should have the same."""
    embedder_to_come: str | None
    """The fingerprint of the model that the gateway migrates to."""
    cache: CacheSizes
    tenants_of_a_key: TenantsOfAKey


QUANTILES = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))


class StatsHandler(Protocol):
    """The metrics of one or several gateways."""

    telemetry: Telemetry
    started: float  # start of the oldest gateway, seconds since 1970
    gateways: int


class Stats:
    """`Stats` makes the report for the dashboard.

    `describe` adds the state of this gateway that is not a metric: policy, backends, cache sizes.
    """

    def __init__(self, figures: StatsHandler, clock: Clock, describe: Callable[[], dict[str, Any]]) -> None:
        self._figures = figures
        self._telemetry = figures.telemetry
        self._clock = clock
        self._describe = describe
        self.policy_faults: tuple[str, ...] = ()  # faults of the last reload, none if it succeeded

    def report(self) -> dict[str, Any]:
        """Return a `StatsReport`."""
        telemetry = self._telemetry
        verdicts = self._verdicts()
        requests = sum(verdicts.values())
        hits = sum(verdicts[v] for v in (Verdict.EXACT, Verdict.SEMANTIC, Verdict.STALE))
        # Requests without a cache lookup do not count in the hit rate.
        looked_up = requests - verdicts[Verdict.BYPASS] - telemetry.unrouted
        latencies = {str(verdict): _latencies(telemetry.request_seconds, verdict) for verdict in Verdict}
        report = {
            "now": self._clock.wall(),
            "started": self._figures.started,
            "gateways": self._figures.gateways,
            "requests": requests,
            "hit_rate": hits / looked_up if looked_up else None,
            "verdicts": verdicts,
            "unrouted": telemetry.unrouted,
            "latency_ms": {verdict: _quantiles(counts) for verdict, counts in latencies.items()},
            # Raw counts: the difference of two reports gives the quantiles of the time between them.
            "latency_counts": {"bounds_s": LATENCY_BUCKETS, "verdicts": latencies},
            "stage_ms": {
                stage: _quantiles(counts) for (stage,), counts in sorted(telemetry.stage_seconds.counts.items())
            },
            "tiers": self._tiers(),
            "routed": [
                {"route": route, "tier": tier, "reason": reason, "count": count}
                for (route, tier, reason), count in telemetry.routed.values.items()
            ],
            "refusals": _totals_by_last_label(telemetry.refusals),
            "admissions": _totals_by_last_label(telemetry.admissions),
            "tokens_saved": telemetry.tokens_saved.total(),
            "dollars_saved": telemetry.cost_saved.total(),
            "backend_seconds_saved": telemetry.backend_seconds_saved.total(),
            "shed": telemetry.shed.total(),
            "backend_outcomes": [
                {"backend": backend, "outcome": outcome, "count": count}
                for (backend, outcome), count in telemetry.backend_requests.values.items()
            ],
            "store_errors": telemetry.store_errors.total(),
            "step_failures": {step: count for (step,), count in telemetry.step_failures.values.items()},
            "loop_stalls": _totals_by_last_label(telemetry.loop_stalls),
            **self._describe(),
        }
        report["policy"] = {**report["policy"], "faults": list(self.policy_faults)}
        return report

    def _verdicts(self) -> dict[str, float]:
        totals = dict.fromkeys(map(str, Verdict), 0.0)
        for (_, _, verdict, _), count in self._telemetry.requests.values.items():
            totals[verdict] += count
        return totals

    def _tiers(self) -> dict[str, float]:
        totals = {"light": 0.0, "large": 0.0}
        for (_, tier, _), count in self._telemetry.routed.values.items():
            if tier in totals:
                totals[tier] += count
        return totals


def _totals_by_last_label(counter: Counter) -> dict[str, float]:
    """Return the totals of a counter by its last label."""
    totals: dict[str, float] = {}
    for labels, count in counter.values.items():
        totals[str(labels[-1])] = totals.get(str(labels[-1]), 0.0) + count
    return totals


def _quantiles(counts: Sequence[int]) -> dict[str, float | None]:
    return {name: _ms(quantile_of(counts, LATENCY_BUCKETS, q)) for name, q in QUANTILES}


def _latencies(histogram: Histogram, verdict: str) -> list[int]:
    """Return the counts by bucket, summed over all routes."""
    merged = [0] * (len(LATENCY_BUCKETS) + 1)
    for (_, of), counts in histogram.counts.items():
        if of == verdict:
            merged = [a + b for a, b in zip(merged, counts, strict=True)]
    return merged


def _ms(seconds: float | None) -> float | None:
    return None if seconds is None else round(1e3 * seconds, 3)
