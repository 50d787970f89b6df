"""Which backends a request is put to, in order, and why: by its complexity, its budget, its conversation, and how the
backends fare. Asks nobody."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from gateway.backends.lane import asked_of
from gateway.calling.promises import Promises
from gateway.dialects.anthropic import speaks_anthropic
from gateway.messages import Call, Choice, Request, Vector
from gateway.policy.model import Route, Target
from gateway.ports import Clock
from gateway.quality.escalations import Escalations
from gateway.routing.cascade import applies
from gateway.routing.choice import Decision, fits, only
from gateway.routing.conversation import sticky_key
from gateway.routing.decided import decided
from gateway.routing.latency import Asked, Prediction
from gateway.routing.outlook import Outlook, Remaining
from gateway.routing.splits import resolved, with_fallbacks


class Prospect(Protocol):
    """A backend, as far as it matters to whom a request is put: a `Pool`."""

    @property
    def speaks(self) -> str: ...

    @property
    def http(self) -> bool: ...

    def wait_s(self, request: Request) -> float: ...

    def predict(self, asked: Asked, now: float, confidence: float) -> Prediction | None: ...


class Scorer(Protocol):
    """What judges how hard a request is: a `ComplexityModel`."""

    def score(self, text: str, max_tokens: int | None, vector: Vector | None) -> float: ...


class Deciding:
    """Of one route. `complexity` judges how hard a request is; `draw`: numbers in [0, 1)."""

    def __init__(
        self,
        route: Route,
        pools: Mapping[str, Prospect],
        promises: Promises,
        escalations: Escalations,
        clock: Clock,
        complexity: Scorer,
        draw: Callable[[], float] = random.random,
    ) -> None:
        self._route = route
        self._pools = pools
        self._promises = promises
        self._escalations = escalations
        self._clock = clock
        self._complexity = complexity
        self._draw = draw
        self._divided = any(tier.parts for tier in route.target.tiers)
        self.sole = route.target.tiers[0].backend if _has_no_choice(route.target) else None  # whatever is asked

    def decide(self, request: Request) -> Decision:
        """Writes complexity, wish and outlook into the trace. What passes through, and embeddings, of which those of
        two models cannot be mixed, go to the best tier's largest part that speaks of such, and to nobody else."""
        target, call = self._route.target, request.call
        if self.sole is not None and (call is None or not request.bounded):
            return only(self.sole)
        best = target.tiers[-1].backend
        if call is None:
            return only(self._passing(request, target) or best)
        if call.operation == "embeddings":
            embedding = (n for n in (best, *reversed(target.backends)) if self._pools[n].speaks != "anthropic")
            return only(next(embedding, best))
        target = self._resolved(request, call)
        if len(target.tiers) == 1:
            return with_fallbacks(self._choose(request, target, 0.0), target)
        score = self._judged(request, call)
        request.trace.complexity = score
        request.trace.wish = self._escalations.wish(self._route.name, target, score)
        if request.light_only:
            return with_fallbacks(self._lightest(request, target), target, beyond=False)
        return with_fallbacks(self._choose(request, target, score), target)

    def _lightest(self, request: Request, target: Target) -> Decision:
        """It alone: whether it is in time is asked of it as of any other."""
        first = target.tiers[0]
        alone = replace(target, tiers=(first,), escalate_above=(), large_share=None, quality=None, cascade=None)
        return replace(self._choose(request, alone, 0.0), tier=first.name, reason=Choice.LIMIT)

    def _passing(self, request: Request, target: Target) -> str | None:
        """Who is asked for what no dialect reads: of the HTTP backends one of the client's own protocol."""
        http = [name for name in reversed(target.backends) if self._pools[name].http]
        anthropic = speaks_anthropic(request.headers)
        own = [name for name in http if (self._pools[name].speaks == "anthropic") == anthropic]
        return next(iter(own or http), None)

    def outlook(self, request: Request) -> Outlook | None:
        """What each tier would take now; None where latencies are not predicted."""
        call = request.call
        if call is None or call.operation == "embeddings":
            return None
        names = self._resolved(request, call).backends
        predictions = {name: self._predicted(request, name) for name in names}
        required = self._promises.sureness(self._route).required
        return Outlook(self._remaining(request), predictions, required)

    def in_time(self, request: Request, name: str) -> bool:
        """Whether a backend is predicted to keep what is left of the budget; whatever has none is in time."""
        remaining = self._remaining(request)
        return not remaining.bounded or fits(self._predicted(request, name), remaining)

    def _resolved(self, request: Request, call: Call) -> Target:
        target = self._route.target
        if not self._divided:  # most are not: a key costs a hash over the opening
            return target
        return resolved(target, sticky_key(call, request.tenant, "conversation"), self._draw)

    def _judged(self, request: Request, call: Call) -> float:
        """By the question, which is what was embedded; without one by the whole prompt. The vector of a cut text stands
        for its head, as it did in training; that of a text with unknown words for no text at all."""
        embedding = request.embedding
        vector = None if embedding is None or embedding.unreadable else embedding.vector
        return self._complexity.score(call.question or call.prompt, call.max_tokens, vector)

    def _choose(self, request: Request, target: Target, score: float) -> Decision:
        """Nothing is predicted where there is no budget to hold it against."""
        remaining = self._remaining(request)
        predictions: Sequence[Prediction | None] = [None] * len(target.tiers)
        if remaining.bounded:
            request.trace.outlook = outlook = self.outlook(request)
            if outlook is not None:
                predictions = [outlook.predictions[name] for name in target.backends]
        waits = [self._pools[name].wait_s(request) for name in target.backends]
        cascade, late = target.cascade, self._route.promise.late
        tries = (
            cascade is not None
            and request.call is not None
            and applies(cascade.check, request.call, judged=cascade.judge is not None)
        )
        return decided(target, request.trace.wish, score, remaining, predictions, waits, late, tries=tries)

    def _predicted(self, request: Request, name: str) -> Prediction | None:
        asked = asked_of(request.call, self._route.name)
        required = self._promises.sureness(self._route).required
        return None if asked is None else self._pools[name].predict(asked, self._clock.monotonic(), required)

    def _remaining(self, request: Request) -> Remaining:
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
