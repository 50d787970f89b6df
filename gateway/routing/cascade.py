"""The lightest model first, where the complexity asks for more: its answer is held back until it is checked, then
served, or a better model is asked. All calls are paid for, and told by the answer's provenance."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gateway.body_streams import close_body
from gateway.buffered_response import Held
from gateway.context import RequestContext
from gateway.errors import BackendError
from gateway.messages import Choice
from gateway.observability.telemetry import Telemetry
from gateway.routing.fallback import Answered, Asking
from gateway.routing.light_trial import Trials, Tried
from gateway.routing.tier_selection import Decision


class Cascade:
    """Of one route. `in_time` says whether a backend is predicted to keep what is left of the request's budget. `told`
    hears of every check that came to something: whether it had the light model's answer pass."""

    def __init__(
        self,
        accept_above: float,
        trials: Trials,
        asking: Asking,
        telemetry: Telemetry,
        in_time: Callable[[RequestContext, str], bool],
        told: Callable[[RequestContext, bool], None],
    ) -> None:
        self._accept_above = accept_above
        self._trials = trials
        self._asking = asking
        self._telemetry = telemetry
        self._in_time = in_time
        self._told = told

    async def answer(self, request: RequestContext, decision: Decision) -> Answered:
        """Raises what asking the backends of the decision raises, where there is nothing else to serve."""
        call, light = request.call, decision.trial
        if call is None or light is None:
            if decision.trial_skipped:
                self._count(request, "skipped")
            return await self._asking.first_answer(request, decision.backends)
        tried = await self._trials.of(request, call, light)
        confidence = tried.checked.confidence
        if confidence is not None:
            self._told(request, confidence > self._accept_above)
        if tried.answer is not None and confidence is not None and confidence > self._accept_above:
            self._count(request, "accepted")
            return Answered(tried.answer.released(), light, Choice.ACCEPTED, tried.checked.beside)
        return await self._escalated(request, decision, light, tried)

    async def _escalated(self, request: RequestContext, decision: Decision, light: str, tried: Tried) -> Answered:
        """Nothing has gone to the client yet: an answer in hand is better than an error."""
        others, answer = tuple(name for name in decision.backends if name != light), tried.answer
        if answer is not None and not self._in_time(request, others[0]):
            return self._kept(request, light, answer, tried)
        try:
            better = await self._asking.first_answer(request, others)
        except BackendError:
            if answer is None:
                raise
            return self._kept(request, light, answer, tried)
        if answer is not None and better.response.status >= 400:
            await close_body(better.response.body)
            return self._kept(request, light, answer, tried)
        self._count(request, _outcome(tried))
        spent = (*(() if tried.own is None else (tried.own,)), *tried.checked.beside)
        return replace(better, instead=better.instead or Choice.ESCALATED, beside=spent)

    def _kept(self, request: RequestContext, light: str, answer: Held, tried: Tried) -> Answered:
        self._count(request, "kept")
        return Answered(answer.released(), light, Choice.KEPT, tried.checked.beside)

    def _count(self, request: RequestContext, outcome: str) -> None:
        self._telemetry.cascade.add(request.route, outcome)


def _outcome(tried: Tried) -> str:
    if tried.answer is None:
        return "failed"
    return "unchecked" if tried.checked.confidence is None else "escalated"
