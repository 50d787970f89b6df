"""Choose the backends for a request, in order, with the reason.

The choice depends on complexity, budget, conversation and the state of the backends. It calls no backend.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from gateway.calls import EMBEDDINGS, Call
from gateway.config.policy.model import Route, Target
from gateway.context import RequestContext, RequestState
from gateway.dialects.known import client_of
from gateway.dialects.self_contained import is_self_contained
from gateway.entries import Embedding, Vector
from gateway.latency_forecast import LatencyForecast, Prediction, RemainingBudget
from gateway.ports import Clock, ComplexityScorer
from gateway.request_fields import Estimates
from gateway.routing.latency_promises import Promises
from gateway.routing.selection import (
    BackendTraits,
    Decision,
    Signals,
    fits,
    only,
    resolve_splits,
    select,
    select_unscored,
)
from gateway.routing.tier_learning import TierLearning
from gateway.routing.trials import Trials
from gateway.scores import ScoredPrompt, Scorer
from gateway.upstream.latency import CallFeatures
from gateway.upstream.load_balancer import sticky_key
from gateway.upstream.upstream import call_features

if TYPE_CHECKING:  # features bring them
    from gateway.routing.classification import RouteClassifier
    from gateway.routing.conversations import Conversation, Conversations

NO_ROW = np.zeros(0, np.float16)  # nothing is learnt from a score without its prompt


class WholeQuestion(RequestState):
    """The embedding of a long question's beginning, for its complexity. The semantic cache looks up the focus alone."""

    __slots__ = ("embedding",)

    def __init__(self) -> None:
        self.embedding: Embedding | None = None


class Prospect(BackendTraits, Protocol):
    """The part of a backend (an `UpstreamPool`) that the choice uses."""

    def wait_s(self, request: RequestContext) -> float: ...

    def predict(self, features: CallFeatures, now: float, confidence: float) -> Prediction | None: ...


class BackendChoice:
    """`BackendChoice` chooses for one route. `complexity` scores requests, and is None where one backend
    takes all; `rng` returns numbers in [0, 1)."""

    def __init__(
        self,
        route: Route,
        pools: Mapping[str, Prospect],
        promises: Promises,
        escalations: TierLearning,
        clock: Clock,
        complexity: ComplexityScorer | None,
        rng: Callable[[], float] = random.random,
        conversations: Conversations | None = None,
        classifier: RouteClassifier | None = None,
        trials: Trials | None = None,
    ) -> None:
        self._route = route
        self._pools = pools
        self._promises = promises
        self._escalations = escalations
        self._clock = clock
        self._complexity = complexity
        self._rng = rng
        self.conversations = conversations  # None to route each request alone
        self._classifier = classifier  # None on a route without one
        self._trials = trials  # None on a route without a cascade
        self._has_splits = any(tier.parts for tier in route.target.tiers)
        self.single_backend = (
            route.target.tiers[0].backend if trials is None and _has_no_choice(route.target) else None
        )  # the only one, if the route has no choice

    async def choose(self, request: RequestContext) -> Decision:
        """Ask the route's classifier, if it has one and the complexity matters, and decide."""
        call = request.call
        if self._classifier is not None and call is not None and not (call.embeds or call.passes):
            text = None if request.constraints.light_only else self._text_to_classify(request, call)
            if text:
                await self._classifier.classify(request, call, text)
        return self.decide(request)

    def decide(self, request: RequestContext) -> Decision:
        """Choose, and set the estimates of the request."""
        target, call = self._route.target, request.call
        if (
            self.single_backend is not None
            and (call is None or not request.has_budget)
            and (call is None or self.conversations is None)
        ):
            return only(self.single_backend)
        if call is None or call.passes:
            return select(target, self._pools, _passthrough_signals(request), self._route.slo.late)
        if call.embeds:
            return select(target, self._pools, Signals(EMBEDDINGS), self._route.slo.late)
        target, conversations = self._resolve(request, call), self.conversations
        conversation = None if conversations is None else conversations.of(request, call)
        signals = self._signals(request, call, target, conversation)
        decision = select(target, self._pools, signals, self._route.slo.late)
        if conversation is None:
            return decision
        return conversation.hold(decision, target, lambda name: self.in_time(request, name))

    def decide_unscored(self, request: RequestContext) -> Decision:
        """Choose after `choose` has failed: without complexity, prediction, conversation or split."""
        call = request.call
        signals = Signals(call.operation) if call is not None and not call.passes else _passthrough_signals(request)
        return select_unscored(
            self._route.target, self._pools, replace(signals, light_only=request.constraints.light_only)
        )

    def _signals(
        self, request: RequestContext, call: Call, target: Target, conversation: Conversation | None
    ) -> Signals:
        """Return the inputs of the choice.

        Latencies are predicted only where there is a budget to compare them with.
        """
        prompt = score = tier_decision = None
        if len(target.tiers) > 1:
            own = partial(self._score_prompt, request, call)
            prompt = (
                own()
                if conversation is None
                else conversation.score(
                    own,
                    lambda text: self._judge(request, call, text, None),
                    classified=self._classifier is not None,
                )
            )
            score = self._escalations.score(self._route.name, prompt)
            tier_decision = self._escalations.decide(self._route.name, target, score)
        remaining = self._remaining(request)
        outlook = self.outlook(request) if remaining.has_budget else None
        request.estimates = Estimates(prompt, score, tier_decision, outlook)
        return Signals(
            call.operation,
            complexity=score or 0.0,
            tier_decision=tier_decision,
            remaining=remaining,
            predictions={} if outlook is None else outlook.predictions,
            waits={name: self._pools[name].wait_s(request) for name in target.backends},
            can_check=self._trials is not None and self._trials.can_check(call),
            light_only=request.constraints.light_only,
        )

    def outlook(self, request: RequestContext) -> LatencyForecast | None:
        """Return the current forecast of every backend; None where latencies are not predicted."""
        call = request.call
        if call is None or call.embeds or call.passes:
            return None
        names = self._resolve(request, call).backends
        predictions = {name: self._predict(request, name) for name in names}
        required = self._promises.confidence(self._route).required
        return LatencyForecast(self._remaining(request), predictions, required)

    def in_time(self, request: RequestContext, name: str) -> bool:
        """Return whether a backend is predicted to meet the rest of the budget. Without a budget it is True."""
        remaining = self._remaining(request)
        return not remaining.has_budget or fits(self._predict(request, name), remaining)

    def _resolve(self, request: RequestContext, call: Call) -> Target:
        target = self._route.target
        if not self._has_splits:  # most routes have none, and a key costs a hash over the prompt's opening
            return target
        return resolve_splits(target, sticky_key(call, request.client.tenant, "conversation"), self._rng)

    def _score_prompt(self, request: RequestContext, call: Call) -> ScoredPrompt:
        """Score the question, which was embedded, or the whole prompt if there is none.

        The vector of a truncated text stands for its head, as in training. That of a text with unknown words is not
        used.
        """
        embedding = request.embedding if call.focus is call.question else request.of(WholeQuestion).embedding
        vector = None if embedding is None or embedding.unreadable else embedding.vector
        return self._judge(request, call, call.question or call.prompt, vector)

    def _judge(self, request: RequestContext, call: Call, text: str, vector: Vector | None) -> ScoredPrompt:
        """Return the classifier's score of a text, if it gave one, and otherwise the gateway's own."""
        score = None if self._classifier is None else self._classifier.score_of(request, text)
        if score is not None:
            return ScoredPrompt(score, NO_ROW, Scorer.CLASSIFIER)
        assert self._complexity is not None  # several tiers
        return self._complexity.judge(text, call.max_tokens, vector)

    def _text_to_classify(self, request: RequestContext, call: Call) -> str | None:
        """Return the text that `decide` will score, or None if it will take the complexity of an earlier request."""
        if self.conversations is not None:
            return self.conversations.of(request, call).text_to_classify()
        return call.question or call.prompt

    def _predict(self, request: RequestContext, name: str) -> Prediction | None:
        features = call_features(request.call, self._route.name)
        required = self._promises.confidence(self._route).required
        return None if features is None else self._pools[name].predict(features, self._clock.monotonic(), required)

    def _remaining(self, request: RequestContext) -> RemainingBudget:
        now, (whole, first_token, tpot_s) = self._clock.monotonic(), request.deadlines
        return RemainingBudget(
            None if whole is None else whole - now, None if first_token is None else first_token - now, tpot_s
        )


def _passthrough_signals(request: RequestContext) -> Signals:
    self_contained = is_self_contained(request.method, request.path)
    return Signals(None, client_of(request.headers), self_contained=self_contained)


def _has_no_choice(target: Target) -> bool:
    """Return whether there is one backend for every request, so that only a budget matters."""
    (first, *more) = target.tiers
    return not (more or first.parts or target.fallback)
