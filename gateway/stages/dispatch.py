"""Innermost: chooses a backend, calls it, and asks another one when it fails before its first byte."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from gateway.bodies import close_body
from gateway.errors import BackendError, BackendFull, OnlyIfCached, OutOfTime, StaleWanted
from gateway.escalations import Escalations
from gateway.lane import asked_of
from gateway.messages import Bypass, Call, Choice, Provenance, Request, Response, Verdict
from gateway.policy.model import Route
from gateway.pool import Pool
from gateway.ports import Clock
from gateway.promises import Promises
from gateway.routing.choice import Decision, choose, only, relieved
from gateway.routing.complexity import ComplexityModel
from gateway.routing.latency import Prediction
from gateway.routing.outlook import Outlook, Remaining
from gateway.telemetry import Telemetry

LOG = logging.getLogger("nearhit.dispatch")
RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})


class Dispatch:
    """`complexity` judges how hard a request is; `bypass` says why the caches of this chain are not asked, None where
    they were."""

    def __init__(
        self,
        route: Route,
        pools: Mapping[str, Pool],
        promises: Promises,
        escalations: Escalations,
        clock: Clock,
        telemetry: Telemetry,
        complexity: ComplexityModel,
        bypass: Bypass | None = None,
    ) -> None:
        self._route = route
        self._pools = pools
        self._promises = promises
        self._escalations = escalations
        self._clock = clock
        self._telemetry = telemetry
        self._complexity = complexity
        self._bypass = bypass

    async def __call__(self, request: Request) -> Response:
        if request.directives.only_if_cached:
            raise OnlyIfCached("there is no stored answer, and the request allows no other (only-if-cached)")
        decision = self.decide(request)
        if decision.late:
            self._say_if_late(request)
        self._count(request, decision)
        promise = self._promises.of(request, self._route, promised=decision.promised)
        try:
            response, name, instead = await self._first_answer(request, decision.backends)
        except BaseException as error:
            if promise is not None:
                promise.failed(error)
            raise
        reason: str = instead or decision.reason
        tier = self._route.target.tier_of(name) if decision.tier is not None else None
        self._telemetry.routed.add(self._route.name, tier or "none", reason)
        if tier is not None:
            large, meant = self._large(tier), self._large(decision.tier)
            self._escalations.answered(request, large=large, instead=large != meant)
        if promise is not None:
            response = promise.watched(response, as_chosen=instead is None)
        return Response(
            response.status,
            response.headers,
            response.body,
            Provenance(
                Verdict.MISS if self._bypass is None else Verdict.BYPASS,
                reason=reason if self._bypass is None else self._bypass,
                backend=name,
                tier=tier,
                complexity=request.trace.complexity,
            ),
        )

    def _count(self, request: Request, decision: Decision) -> None:
        """At once, so that who is decided next is decided by it."""
        if request.trace.wish is not None and decision.tier is not None:
            self._escalations.sent(request, request.trace.wish, large=self._large(decision.tier))

    def _large(self, tier: str | None) -> bool:
        return tier != self._route.target.tiers[0].name

    def decide(self, request: Request) -> Decision:
        """Which backends are asked, in order, and why. Writes complexity, wish and outlook into the trace."""
        target, call = self._route.target, request.call
        best = target.tiers[-1].backend
        if call is None:
            return only(next((n for n in reversed(target.backends) if self._pools[n].http), best))
        if call.operation == "embeddings":
            return only(best)  # vectors of two models cannot be mixed
        if len(target.tiers) == 1:
            return self._choose(request, 0.0)
        score = self._judged(request, call)
        request.trace.complexity = score
        request.trace.wish = self._escalations.wish(self._route.name, target, score)
        if request.light_only:
            return Decision((target.tiers[0].backend,), target.tiers[0].name, Choice.LIMIT)
        return self._choose(request, score)

    def _judged(self, request: Request, call: Call) -> float:
        """By the question, which is what was embedded; without one by the whole prompt. The vector of a cut text stands
        for its head, as it did in training; that of a text with unknown words for no text at all."""
        embedding = request.embedding
        vector = None if embedding is None or embedding.unreadable else embedding.vector
        return self._complexity.score(call.question or call.prompt, call.max_tokens, vector)

    def _choose(self, request: Request, score: float) -> Decision:
        """Nothing is predicted where there is no budget to hold it against."""
        target, remaining = self._route.target, _remaining(request, self._clock.monotonic())
        predictions: Sequence[Prediction | None] = [None] * len(target.tiers)
        if remaining.bounded:
            request.trace.outlook = outlook = self.outlook(request)
            if outlook is not None:
                predictions = [outlook.predictions[name] for name in target.backends]
        decision = choose(target, self._thresholds(request), score, remaining, predictions, self._route.promise.late)
        waits = [self._pools[name].wait_s(request) for name in target.backends]
        return relieved(decision, target, waits, remaining)

    def _thresholds(self, request: Request) -> Sequence[float]:
        """Where the policy names none, what is wished for: of equal scores not all, so no threshold can say it."""
        target, wish = self._route.target, request.trace.wish
        if wish is None or (target.large_share is None and target.quality is None):
            return target.escalate_above
        return (-1.0 if wish.large else 1.0,) * (len(target.tiers) - 1)  # the best one, or the lightest

    def outlook(self, request: Request) -> Outlook | None:
        """What each backend would take now; None where latencies are not predicted."""
        asked = asked_of(request.call, self._route.name)
        if asked is None:
            return None
        now, required = self._clock.monotonic(), self._promises.sureness(self._route).required
        predictions = {n: self._pools[n].predict(asked, now, required) for n in self._route.target.backends}
        return Outlook(_remaining(request, now), predictions, required)

    def _say_if_late(self, request: Request) -> None:
        """No backend is predicted to be in time. Raises where the policy would rather not ask any."""
        late, outlook = self._route.promise.late, request.trace.outlook
        told = "" if outlook is None else f" ({outlook.sentence()})"
        message = f"no backend is predicted to answer within the latency budget{told}"
        if late == "refuse":
            self._promises.not_asked(self._route, "refused")
            raise OutOfTime(message)
        if late == "stale" and request.stale_at_hand:
            self._promises.not_asked(self._route, "stale")
            raise StaleWanted(message)

    async def _first_answer(self, request: Request, names: Sequence[str]) -> tuple[Response, str, Choice | None]:
        """Asks one after the other until one answers usably; the last one's failure is the request's. -> (its answer,
        its name, why it is not the first one)."""
        instead: Choice | None = None
        for name in names[:-1]:
            pool = self._pools[name]
            if not pool.allow(self._clock.monotonic()):
                self._telemetry.backend_requests.add(name, "breaker_open")
                instead = instead or Choice.FALLBACK
                continue
            try:
                response = await pool.call(request)
            except BackendFull:  # told by the metrics alone: under load a line for each would be a load of its own
                instead = instead or Choice.OVERLOADED
                continue
            except BackendError as error:
                instead = instead or Choice.FALLBACK
                if not error.retryable:
                    raise
                LOG.warning("falling back", extra={"fields": {"id": request.id, "backend": name, "error": str(error)}})
                continue
            if response.status not in RETRYABLE:
                return response, name, instead
            instead = instead or Choice.FALLBACK
            await close_body(response.body)
        return await self._pools[names[-1]].call(request), names[-1], instead


def _remaining(request: Request, now: float) -> Remaining:
    return Remaining(
        None if request.deadline is None else request.deadline - now,
        None if request.ttft_deadline is None else request.ttft_deadline - now,
        request.tpot_s,
    )
