"""Replays recorded traffic under one policy, with the decisions of the gateway's code and the recorded answers.

Requests are replayed one after the other, in the recorded order: each one sees the caches as the former left them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from gateway.cache.freshness import bypass_of, can_share_flight, freshness_of
from gateway.cache.threshold.route_control import Observation
from gateway.cache.threshold.wrong_hits import Label
from gateway.config.policy.model import Policy
from gateway.entries import CacheDirectives
from gateway.features.simulation.backend_model import BackendModel, CallResult
from gateway.features.simulation.cache_model import CacheModel, Key, StoredAnswer, cache_keys
from gateway.features.simulation.dataset import Node, TrafficDay
from gateway.features.simulation.latency_model import LatencyModel
from gateway.features.simulation.plans import RoutePlan, build_escalation, build_plan
from gateway.features.simulation.semantic_model import NO_VECTOR, Ask, LookupResult, SemanticModel
from gateway.outcomes import Bypass
from gateway.ports import PriorBands
from gateway.prices import Tariff
from gateway.scores import RequestFacts
from gateway.statuses import is_failure
from gateway.steps.traffic_log.format import RecordedRequest


@dataclass(frozen=True, slots=True)
class ReplaySetting:
    """The inputs of a replay besides the traffic. `tenants` maps digests to names, as far as they are known."""

    prices: Mapping[str, Tariff]
    tenants: Mapping[bytes, str]
    prior: PriorBands  # calibration of the verifier
    largest: int  # largest answer that may be stored, bytes
    ask: Ask | None = None  # asks the verifier about two questions; None: texts were not recorded
    adapters: Mapping[str, str] = field(default_factory=dict)  # adapter of each backend


class ReplayOutcome(NamedTuple):
    """The outcome of one request. None means unknown, or not applicable."""

    route: str
    verdict: str
    reason: str | None
    backend: str | None
    tier: str | None
    seconds: float | None
    dollars: float | None
    saved: float
    similarity: float | None
    score: float | None  # score of a semantic hit that may be wrong
    unjudged: bool  # a neighbour was found that was never verified
    replayed: bool  # False: the recorded outcome was taken


class TrafficReplay:
    def __init__(self, policy: Policy, day: TrafficDay, latencies: LatencyModel, setting: ReplaySetting) -> None:
        self._policy = policy
        self._day = day
        self._latencies = latencies
        self._setting = setting
        self._cache = CacheModel(day.requests[0].at)
        self.plans = {route.name: build_plan(route, day.heading, setting.prior) for route in policy.routes}
        escalations = {r.name: build_escalation(r, day.heading) for r in policy.routes if len(r.target.tiers) > 1}
        self.calls = BackendModel(
            policy, day, latencies, setting.prices, escalations, setting.largest, setting.adapters
        )
        self._lookup = SemanticModel(day, self._cache, setting.ask)
        self._routes: dict[tuple[object, ...], RoutePlan] = {}

    def run(self) -> list[ReplayOutcome]:
        labels, next_label = self._day.labels, 0
        outcomes: list[ReplayOutcome] = []
        for at, (row, node) in enumerate(zip(self._day.requests, self._day.questions, strict=True)):
            while next_label < len(labels) and labels[next_label].at <= row.at:
                self._learn(next_label)
                next_label += 1
            plan = self._plan_of(row.request)
            plan.requests += 1
            outcomes.append(self._replay_request(at, row, node, plan))
        return outcomes

    def _learn(self, number: int) -> None:
        label = self._day.labels[number]
        plan = self.plans.get(label.route)
        if plan is not None and plan.semantic is not None and plan.semantic.learns:
            plan.control.advance(plan.requests)
            plan.control.learn(Observation(NO_VECTOR, label.score, label.probability, Label(label.label)))

    def _plan_of(self, given: RequestFacts) -> RoutePlan:
        key = given.path, given.model, given.tenant, given.headers
        plan = self._routes.get(key)
        if plan is None:
            tenant = self._setting.tenants.get(given.tenant, given.tenant.hex())
            route = self._policy.match(given.path, given.model, tenant, dict(given.headers))
            plan = self._routes[key] = self.plans[route.name]
        return plan

    def _replay_request(self, at: int, row: RecordedRequest, node: Node | None, plan: RoutePlan) -> ReplayOutcome:
        given = row.request
        if given.inputs:
            return _recorded_outcome(row, plan)
        directives = _directives(
            given.no_store, given.no_cache, given.only_if_cached, given.max_age_s, given.min_fresh_s
        )
        key, scope = cache_keys(plan.route, given)
        bypass = Bypass.POLICY if not plan.is_caching else bypass_of(_bypass(given.uncached), directives)
        if bypass is not None:
            stores = bypass is Bypass.NO_CACHE
            return self._miss_outcome(at, row, node, plan, key, scope, bypass=bypass, stores=stores)
        self._cache.add_prior_hit(key, scope, node, row, plan.longest_s)
        hit = self._exact_hit(at, row, plan, key, directives)
        if isinstance(hit, ReplayOutcome):
            return hit
        if hit is not None and hit[1]:  # stale, and served during its revalidation
            self._miss_outcome(at, row, node, plan, key, scope)
            return self._hit(at, row, plan, "stale", hit[0])
        if can_share_flight(directives) and (ready := self._cache.flights.get(key, 0.0)) > row.at:
            waited = ready - row.at + self._latencies.overhead_s
            return ReplayOutcome(
                plan.route.name, "coalesced", None, None, None, waited, 0.0, 0.0, None, None, False, True
            )
        looked = self._semantic_lookup(row, node, plan, scope, directives)
        if looked is not None and looked.stored is not None:
            return self._hit(at, row, plan, "semantic", looked.stored, looked)
        if hit is not None and is_failure(row.status):  # stale-if-error
            return self._hit(at, row, plan, "stale", hit[0])
        if directives.only_if_cached:
            seconds = self._latencies.overhead_s
            name = plan.route.name
            return ReplayOutcome(name, "miss", "only-if-cached", None, None, seconds, 0.0, 0.0, None, None, False, True)
        return self._miss_outcome(at, row, node, plan, key, scope, looked=looked)

    def _exact_hit(
        self, at: int, row: RecordedRequest, plan: RoutePlan, key: Key, directives: CacheDirectives
    ) -> ReplayOutcome | tuple[StoredAnswer, bool] | None:
        """Return a hit, or a stale answer with whether stale-while-revalidate serves it. None is a miss."""
        stored = self._cache.exact.get(key)
        if plan.exact is None or stored is None or stored.ready > row.at:
            return None
        freshness = freshness_of(stored, plan.exact, directives, row.at)
        if freshness.fresh:
            return self._hit(at, row, plan, "exact", stored)
        return (
            (stored, freshness.stale_while_revalidate)
            if freshness.stale_while_revalidate or freshness.stale_if_error
            else None
        )

    def _semantic_lookup(
        self, row: RecordedRequest, node: Node | None, plan: RoutePlan, scope: Key, directives: CacheDirectives
    ) -> LookupResult | None:
        if plan.semantic is None or node is None:
            return None
        self._cache.add_prior_neighbours(scope, row, self._day.nodes, plan.longest_s)
        plan.count_lookup()
        return self._lookup.of(row, node, scope, plan.semantic, plan.within, plan.control, directives)

    def _hit(
        self,
        at: int,
        row: RecordedRequest,
        plan: RoutePlan,
        verdict: str,
        stored: StoredAnswer,
        looked: LookupResult | None = None,
    ) -> ReplayOutcome:
        return ReplayOutcome(
            plan.route.name,
            verdict,
            None,
            None,
            None,
            self._latencies.hit_seconds(at, row, verdict),
            0.0,
            stored.dollars,
            None if looked is None else looked.similarity,
            None if looked is None else looked.score,
            False,
            True,
        )

    def _miss_outcome(
        self,
        at: int,
        row: RecordedRequest,
        node: Node | None,
        plan: RoutePlan,
        key: Key,
        scope: Key,
        *,
        bypass: Bypass | None = None,
        stores: bool = True,
        looked: LookupResult | None = None,
    ) -> ReplayOutcome:
        called = self.calls.answer(at, row, plan.route)
        if called.backend_called:
            self._store_answer(row, node, plan, key, scope, called, stores=stores, shared=bypass is None)
        reason = str(bypass) if bypass is not None else (looked and looked.refusal) or called.reason
        return ReplayOutcome(
            plan.route.name,
            "miss" if bypass is None else "bypass",
            reason,
            called.backend,
            called.tier,
            called.seconds,
            called.dollars,
            0.0,
            None if looked is None else looked.similarity,
            None,
            looked is not None and looked.unjudged,
            True,
        )

    def _store_answer(
        self, row: RecordedRequest, node: Node | None, plan: RoutePlan, key: Key, scope: Key, called: CallResult, *,
        stores: bool, shared: bool,
    ) -> None:  # fmt: skip
        """Record the call in flight for identical requests, and store its answer if it is admitted."""
        ready = row.at + (called.seconds or 0.0)
        if shared and plan.is_caching:
            self._cache.flights[key] = ready
        if not stores or not plan.is_caching or not self.calls.is_admitted(row, plan.route, key):
            return
        findable = node if plan.semantic is not None and row.readable else None
        self._cache.put(
            key,
            scope,
            findable,
            StoredAnswer(
                row.request.canonical.hex(),
                ready,
                ready,
                ready + plan.longest_s,
                row.entry,
                called.dollars or 0.0,
                called.seconds or 0.0,
                called.backend or "",
            ),
        )


def _recorded_outcome(row: RecordedRequest, plan: RoutePlan) -> ReplayOutcome:
    """Return the recorded outcome of a request that cannot be replayed."""
    answer, hit = row.answer, row.hit
    return ReplayOutcome(
        plan.route.name,
        row.verdict,
        row.reason,
        row.backend,
        row.tier,
        row.seconds,
        0.0 if answer is None else answer.dollars,
        0.0 if hit is None else hit.dollars,
        row.similarity,
        None,
        False,
        False,
    )


@lru_cache(maxsize=256)
def _directives(
    no_store: bool, no_cache: bool, only_if_cached: bool, max_age_s: float | None, min_fresh_s: float
) -> CacheDirectives:
    return CacheDirectives(no_store, no_cache, only_if_cached, max_age_s, min_fresh_s)


def _bypass(uncached: str | None) -> Bypass | None:
    return None if uncached is None else Bypass(uncached)
