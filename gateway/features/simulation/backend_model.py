"""Models the call of a replayed miss: the backend, the time, the cost, and the admission of the answer.

The decisions are those of the gateway's code. Pure.
"""

from __future__ import annotations

import hashlib
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, replace

from gateway.cache.admission import UseCounts, admit_response, refuse_request
from gateway.cache.tool_calls import ToolCallRule
from gateway.calls import EMBEDDINGS, Inspection
from gateway.config.policy.model import Policy, Route, Target
from gateway.config.policy.parameters import untuned
from gateway.features.simulation.cache_model import Key
from gateway.features.simulation.dataset import TrafficDay
from gateway.features.simulation.latency_model import CALL_VERDICTS, LatencyModel
from gateway.latency_forecast import Prediction, RemainingBudget
from gateway.outcomes import Admission, Choice
from gateway.prices import Tariff
from gateway.routing.budget import budget_of
from gateway.routing.latency_promises import Confidence
from gateway.routing.selection import (
    AdapterTraits,
    Decision,
    Signals,
    resolve_splits,
    select,
    thresholds_of,
)
from gateway.routing.tier_controller import TierController
from gateway.scores import TierDecision
from gateway.steps.traffic_log.format import RecordedAnswer, RecordedRequest
from gateway.upstream.latency import CallFeatures, LatencyBook

UNBOUNDED = RemainingBudget()
OUT_OF_TIME = "out-of-time"


@dataclass(frozen=True, slots=True)
class CallResult:
    """The outcome of a miss. None means unknown."""

    backend: str | None
    tier: str | None
    reason: str
    seconds: float | None
    dollars: float | None
    backend_called: bool = True  # a backend was called


class BackendModel:
    """The backends under one policy. `escalations` has the controller of each route with several tiers.

    `unknown` counts the values that the recorded traffic does not show.
    """

    def __init__(
        self,
        policy: Policy,
        day: TrafficDay,
        latencies: LatencyModel,
        prices: Mapping[str, Tariff],
        escalations: Mapping[str, TierController],
        largest: int,
        adapters: Mapping[str, str],
    ) -> None:
        """Prepare the model. `adapters` maps a backend to its adapter; a missing backend counts as `openai`."""
        members = {name for route in policy.routes for name in route.target.members}
        self._traits = {name: AdapterTraits(adapters.get(untuned(name), "openai")) for name in members}
        self._day = day
        self._latencies = latencies
        self._prices = prices
        self._escalations = escalations
        self._largest = largest
        self._frequency = UseCounts()
        self._books: dict[str, LatencyBook] = {}
        self._confidences = {r.name: Confidence(r.slo.confidence, adapts=not r.slo.per_request) for r in policy.routes}
        budgets = any(row.request.budget_s is not None for row in day.requests)
        self.predicts = budgets or any(route.latency_budget_s is not None for route in policy.routes)
        self._split_routes = {r.name for r in policy.routes if any(tier.parts for tier in r.target.tiers)}
        self._unbounded: dict[
            tuple[tuple[str, ...], int], Decision
        ] = {}  # decisions without a budget: they depend on the tier alone
        self.unknown: dict[str, int] = {}

    def answer(self, at: int, row: RecordedRequest, route: Route) -> CallResult:
        """Return the outcome of the request with the number `at`."""
        target = route.target
        if route.name in self._split_routes:
            target = resolve_splits(target, row.request.canonical, _midpoint_rng)
        remaining = self._remaining(row, route)
        decision = self._decision(row, route, target, remaining)
        if decision.late and route.slo.late == "refuse":
            return CallResult(None, None, OUT_OF_TIME, self._latencies.overhead_s, 0.0, backend_called=False)
        backend = decision.backends[0]
        answered = self._day.answered.get(row.request.canonical)
        seconds = self._latencies.call_seconds(at, row, backend, answered)
        if seconds is None:
            self._count_unknown("latency", backend)
        elif decision.promised and remaining.total_s is not None:
            self._confidences[route.name].record(kept=seconds <= remaining.total_s)
        self._observe(row)
        tier = None if decision.tier is None else _tier_of(target, backend)
        return CallResult(backend, tier, str(decision.reason), seconds, self._dollars(row, backend, answered))

    def is_admitted(self, row: RecordedRequest, route: Route, key: Key) -> bool:
        """Return whether the answer to the request is stored."""
        given, rules = row.request, route.admission
        if row.status != 200 or refuse_request(rules, given.temperature, given.roles) is not None:
            return False
        if rules.after > 1 and not given.no_cache and self._ask_count(key) < rules.after:
            return False
        answer = self._answer(row)
        if answer is None:
            if row.hit is not None or row.verdict != "miss":  # it was stored before, or admission was never decided
                return True
            self._count_unknown("admission", "")
            return False
        inspection = Inspection(Admission(answer.admission), answer.input_tokens, answer.output_tokens)
        largest = min(self._largest, rules.max_size or self._largest)
        tools = route.of(ToolCallRule) is not None
        return admit_response(rules, inspection, answer.dollars, answer.size, largest, tools=tools) is Admission.STORED

    def _ask_count(self, key: Key) -> int:
        """Count a use of the key and return the count. The sketch needs 64 hex digits."""
        owner, route, canonical = key
        return self._frequency.add(hashlib.sha256(f"{owner}\0{route}\0".encode() + canonical).hexdigest())

    def _decision(self, row: RecordedRequest, route: Route, target: Target, remaining: RemainingBudget) -> Decision:
        if row.request.operation == EMBEDDINGS:
            return select(target, self._traits, Signals(EMBEDDINGS), route.slo.late)
        if len(target.tiers) == 1:
            return self._decide(row, route, target, remaining, None, 0.0)
        score = row.complexity if row.complexity is not None else self._day.complexities.get(row.request.canonical)
        if score is None:
            return self._recorded_decision(row, target)
        escalation = self._escalations[route.name]
        tier_decision = escalation.decide(target, score, row.at)
        decision = self._decide(row, route, target, remaining, tier_decision, score)
        if target.large_share is not None or target.quality is not None:  # no other rule needs the outcome
            escalation.count(tier_decision, score, row.at, large=decision.tier != target.tiers[0].name)
        return decision

    def _decide(
        self,
        row: RecordedRequest,
        route: Route,
        target: Target,
        remaining: RemainingBudget,
        tier_decision: TierDecision | None,
        score: float,
    ) -> Decision:
        """Return the decision of the gateway. Without a budget it depends on the tier alone, and is cached."""
        late, signals = route.slo.late, Signals(row.request.operation, None, score, tier_decision, remaining)
        if remaining.has_budget:
            signals = replace(signals, predictions=self._predictions(row, route, target))
            return select(target, self._traits, signals, late)
        key = target.backends, bisect_left(thresholds_of(target, tier_decision), score)
        known = self._unbounded.get(key)
        if known is None:
            known = self._unbounded[key] = select(target, self._traits, signals, late)
        return known

    def _recorded_decision(self, row: RecordedRequest, target: Target) -> Decision:
        """Return the recorded backend, because the complexity of the request is not known."""
        self._count_unknown("complexity", "")
        backend = row.backend if row.backend in target.backends else target.tiers[-1].backend
        return Decision((backend,), target.tier_with_backend(backend), Choice.COMPLEX)

    def _remaining(self, row: RecordedRequest, route: Route) -> RemainingBudget:
        if row.request.patient or (row.request.budget_s is None and route.latency_budget_s is None):
            return UNBOUNDED
        headers = {} if row.request.budget_s is None else {"x-latency-budget-ms": repr(1e3 * row.request.budget_s)}
        total = budget_of(headers, route.latency_budget_s).total_s
        return UNBOUNDED if total is None else RemainingBudget(total - self._latencies.overhead_s)

    def _predictions(self, row: RecordedRequest, route: Route, target: Target) -> dict[str, Prediction | None]:
        features, required = _call_features(row), self._confidences[route.name].required
        books = {name: self._books.get(name) for name in target.backends}
        return {
            name: None if book is None else book.predict(features, load=0, now=row.at, confidence=required)
            for name, book in books.items()
        }

    def _observe(self, row: RecordedRequest) -> None:
        """Record a real call for later predictions, which use real calls only."""
        if not self.predicts or row.verdict not in CALL_VERDICTS or row.backend is None or row.status != 200:
            return
        book = self._books.setdefault(row.backend, LatencyBook())
        answer = row.answer
        seconds = row.seconds if answer is None else answer.seconds
        tokens = 0 if answer is None else answer.output_tokens
        features = _call_features(row)
        book.observe(features, load=0, ttft_s=seconds, total_s=seconds, output_tokens=tokens, now=row.at)

    def _dollars(self, row: RecordedRequest, backend: str, answered: RecordedRequest | None) -> float | None:
        if row.answer is not None and row.backend == backend:
            return row.answer.dollars
        tariff = self._prices.get(untuned(backend))
        if tariff is None:
            return 0.0
        price = tariff.price(row.request.model)
        answer = self._answer(row)
        if answer is not None:
            return price.of(answer.input_tokens, answer.output_tokens)
        if row.hit is not None and row.verdict == "exact":
            return price.of(row.hit.tokens - row.hit.output_tokens, row.hit.output_tokens)
        self._count_unknown("tokens", backend)
        return None

    def _answer(self, row: RecordedRequest) -> RecordedAnswer | None:
        """Return the recorded answer of the request, or an earlier answer to the same request."""
        if row.answer is not None:
            return row.answer
        earlier = self._day.answered.get(row.request.canonical)
        return None if earlier is None else earlier.answer

    def _count_unknown(self, what: str, of: str) -> None:
        key = f"{what} {of}".strip()
        self.unknown[key] = self.unknown.get(key, 0) + 1


def _call_features(row: RecordedRequest) -> CallFeatures:
    return CallFeatures(False, float(row.request.input_tokens), row.request.max_tokens, row.route)


def _midpoint_rng() -> float:
    return 0.5  # never used: every request has a key


def _tier_of(target: Target, backend: str) -> str | None:
    """Return the tier of a backend. The most frequent case is checked first, because the full lookup is slower."""
    first = target.tiers[0]
    return first.name if backend == first.backend else target.tier_with_backend(backend)
