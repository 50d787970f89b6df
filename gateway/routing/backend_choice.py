"""Which backends a request is put to, in order, and why: by its complexity, its budget, its conversation, and how the
backends fare. Asks nobody."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from typing import Protocol

from gateway.config.policy.model import Route, Target
from gateway.context import RequestContext
from gateway.dialects.anthropic import speaks_anthropic
from gateway.latency_forecast import LatencyForecast, Prediction, Remaining
from gateway.messages import Call
from gateway.ports import Clock, ComplexityScorer
from gateway.routing.cascade_policy import is_applicable
from gateway.routing.latency_promises import Promises
from gateway.routing.selection import EMBEDDINGS, BackendTraits, Decision, Signals, fits, only, resolve_splits, select
from gateway.routing.tier_learning import TierLearning
from gateway.upstream.latency import CallFeatures
from gateway.upstream.load_balancer import sticky_key
from gateway.upstream.upstream import call_features


class Prospect(BackendTraits, Protocol):
    """A backend, as far as it matters to whom a request is put: a `Pool`."""

    def wait_s(self, request: RequestContext) -> float: ...

    def predict(self, features: CallFeatures, now: float, confidence: float) -> Prediction | None: ...


class BackendChoice:
    """Of one route. `complexity` judges how hard a request is; `rng`: numbers in [0, 1)."""

    def __init__(
        self,
        route: Route,
        pools: Mapping[str, Prospect],
        promises: Promises,
        escalations: TierLearning,
        clock: Clock,
        complexity: ComplexityScorer,
        rng: Callable[[], float] = random.random,
    ) -> None:
        self._route = route
        self._pools = pools
        self._promises = promises
        self._escalations = escalations
        self._clock = clock
        self._complexity = complexity
        self._rng = rng
        self._has_splits = any(tier.parts for tier in route.target.tiers)
        self.single_backend = (
            route.target.tiers[0].backend if _has_no_choice(route.target) else None
        )  # whatever is asked

    def decide(self, request: RequestContext) -> Decision:
        """Fills in the request's complexity, wish and outlook."""
        target, call = self._route.target, request.call
        if self.single_backend is not None and (call is None or not request.has_budget):
            return only(self.single_backend)
        if call is None:
            anthropic = speaks_anthropic(request.headers)
            return select(target, self._pools, Signals(None, anthropic), self._route.slo.late)
        if call.operation == EMBEDDINGS:
            return select(target, self._pools, Signals(EMBEDDINGS), self._route.slo.late)
        target = self._resolve(request, call)
        return select(target, self._pools, self._signals(request, call, target), self._route.slo.late)

    def _signals(self, request: RequestContext, call: Call, target: Target) -> Signals:
        """Nothing is predicted where there is no budget to hold it against."""
        if len(target.tiers) > 1:
            request.complexity = score = self._score_complexity(request, call)
            request.wish = self._escalations.wish(self._route.name, target, score)
        remaining, cascade = self._remaining(request), target.cascade
        predictions: Mapping[str, Prediction | None] = {}
        if remaining.has_budget:
            request.outlook = outlook = self.outlook(request)
            if outlook is not None:
                predictions = outlook.predictions
        return Signals(
            call.operation,
            complexity=request.complexity or 0.0,
            wish=request.wish,
            remaining=remaining,
            predictions=predictions,
            waits={name: self._pools[name].wait_s(request) for name in target.backends},
            can_check=cascade is not None and is_applicable(cascade.check, call, judged=cascade.judge is not None),
            light_only=request.light_only,
        )

    def outlook(self, request: RequestContext) -> LatencyForecast | None:
        """What each tier would take now; None where latencies are not predicted."""
        call = request.call
        if call is None or call.operation == "embeddings":
            return None
        names = self._resolve(request, call).backends
        predictions = {name: self._predict(request, name) for name in names}
        required = self._promises.confidence(self._route).required
        return LatencyForecast(self._remaining(request), predictions, required)

    def in_time(self, request: RequestContext, name: str) -> bool:
        """Whether a backend is predicted to keep what is left of the budget; whatever has none is in time."""
        remaining = self._remaining(request)
        return not remaining.has_budget or fits(self._predict(request, name), remaining)

    def _resolve(self, request: RequestContext, call: Call) -> Target:
        target = self._route.target
        if not self._has_splits:  # most are not: a key costs a hash over the opening
            return target
        return resolve_splits(target, sticky_key(call, request.tenant, "conversation"), self._rng)

    def _score_complexity(self, request: RequestContext, call: Call) -> float:
        """By the question, which is what was embedded; without one by the whole prompt. The vector of a cut text stands
        for its head, as it did in training; that of a text with unknown words for no text at all."""
        embedding = request.embedding
        vector = None if embedding is None or embedding.unreadable else embedding.vector
        return self._complexity.score(call.question or call.prompt, call.max_tokens, vector)

    def _predict(self, request: RequestContext, name: str) -> Prediction | None:
        features = call_features(request.call, self._route.name)
        required = self._promises.confidence(self._route).required
        return None if features is None else self._pools[name].predict(features, self._clock.monotonic(), required)

    def _remaining(self, request: RequestContext) -> Remaining:
        now = self._clock.monotonic()
        return Remaining(
            None if request.deadline is None else request.deadline - now,
            None if request.ttft_deadline is None else request.ttft_deadline - now,
            request.tpot_s,
        )


def _has_no_choice(target: Target) -> bool:
    """Whether it is one backend, whatever is asked: then only a budget has to be held against anything."""
    (first, *more) = target.tiers
    return not (more or first.parts or target.fallback or target.cascade)
