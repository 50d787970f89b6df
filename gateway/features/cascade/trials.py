"""Try the lightest model first where the complexity asks for a better one.

Its answer is held back and checked. Then it is served, or a better model is called. The answer's provenance lists all
calls, as all are paid for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from gateway.cache.schema_checks import SchemaChecks, Validity
from gateway.calls import Call, Inspection, TokenLogprobs
from gateway.context import RequestContext
from gateway.errors import BackendError, BadRequest, GatewayError, UpstreamStreamError
from gateway.features.cascade.checks import AnswerChecks, CheckedAnswer, Grader, Sample
from gateway.features.cascade.policy import token_confidence
from gateway.features.cascade.rule import CascadeRule
from gateway.messages import Usage
from gateway.observability.metrics import Counter
from gateway.outcomes import Admission, Choice
from gateway.routing.fallback import BackendAnswer, Fallback
from gateway.routing.selection import Decision
from gateway.routing.trials import TrialParts
from gateway.streams import BufferedResponse, buffer_response, close_body

# The trial: one answer of the lightest model, read to its end and checked.

# Admissions that a client can use if no better model answers.
USABLE = frozenset({Admission.STORED, Admission.TOOLS, Admission.INCOMPLETE, Admission.EMPTY, Admission.REFUSED})

UNCHECKED = CheckedAnswer(None)

REFUSED = frozenset({400, 403, 404, 422})  # statuses for a field that the server or the model does not support


@dataclass(frozen=True, slots=True)
class TriedAnswer:
    """An answer of the lightest model. `answer` is None if it could not be served.

    `usage` is that of the answer, `checked.other_usage` that of its check.
    """

    answer: BufferedResponse | None = None
    usage: Usage | None = None
    checked: CheckedAnswer = UNCHECKED


@dataclass(frozen=True, slots=True)
class _Trial:
    request: RequestContext
    call: Call
    backend: str
    odds: TokenLogprobs | None
    group: asyncio.TaskGroup
    samples: Sequence[asyncio.Task[Sample]]


class LightTrials:
    def __init__(self, rule: CascadeRule, fallback: Fallback, checks: AnswerChecks, schemas: SchemaChecks) -> None:
        self._schemas = schemas
        self._rule = rule
        self._fallback = fallback
        self._checks = checks

    async def run(self, request: RequestContext, call: Call, backend: str) -> TriedAnswer:
        """Run a trial. A failing backend gives no answer, never an exception."""
        odds = call.dialect.logprobs if self._rule.check == "logprobs" else None
        async with asyncio.TaskGroup() as group:  # if the client leaves, all calls end
            early = self._rule.check == "consistency"
            samples = self._checks.samples(group, request, backend) if early else []
            trial = _Trial(request, call, backend, odds, group, samples)
            tried = await self._run_trial(trial)
            if tried.answer is None:
                for sample in samples:
                    sample.cancel()
        return tried

    async def _run_trial(self, trial: _Trial) -> TriedAnswer:
        call, odds = trial.call, trial.odds
        with_logprobs = call if odds is None else odds.with_logprobs(call)
        with trial.request.timer("upstream"):
            answer, refused = await self._answer(trial, with_logprobs)
            if refused and with_logprobs is not call and self._rule.otherwise != "escalate":
                with_logprobs = (
                    call  # the backend may have refused only the log probabilities, which another check does without
                )
                answer, _ = await self._answer(trial, with_logprobs)
        if answer is None:
            return TriedAnswer()
        seen = call.dialect.inspect(call, answer.payload, answer.streamed)
        usage = Usage(trial.backend, *seen.tokens)
        if seen.admission not in USABLE:
            return TriedAnswer(None, usage)
        with trial.request.timer("check"):
            checked = await self._check(trial, answer, seen)
        if odds is not None and with_logprobs is not call:
            answer = answer.map_data(lambda data: odds.strip_logprobs(call, data))
        return TriedAnswer(answer, usage, checked)

    async def _answer(self, trial: _Trial, call: Call) -> tuple[BufferedResponse | None, bool]:
        """Return the answer, and whether there is none because the request was refused."""
        try:
            response = await self._fallback.call_backend(trial.request.child("trial").with_call(call), trial.backend)
            if response is None:
                return None, False
            return await buffer_response(response), response.status in REFUSED
        except BadRequest:  # the backend's dialect cannot express the request
            return None, True
        except (GatewayError, UpstreamStreamError):
            return None, False

    async def _check(self, trial: _Trial, answer: BufferedResponse, seen: Inspection) -> CheckedAnswer:
        """Check an answer. One that is incomplete, or does not fit its schema, has confidence 0, whatever the check
        would say."""
        check, call = self._rule.check, trial.call
        complete = seen.admission is Admission.STORED or (check == "schema" and seen.admission is Admission.TOOLS)
        fit = await self._schemas.fit(trial.request.route, call, answer.payload, answer.streamed) if complete else None
        if not complete or fit is Validity.INVALID:
            # includes the usage of the samples
            checked = await self._checks.consistency(trial.request, call, answer, trial.samples)
            return replace(checked, confidence=0.0, misfit=fit is Validity.INVALID)
        if check == "schema":
            return CheckedAnswer(1.0 if fit is Validity.VALID else None)
        if check == "logprobs":
            odds = trial.odds
            confidence = None if odds is None else token_confidence(odds.read(call, answer.payload, answer.streamed))
            if confidence is not None or self._rule.otherwise == "escalate":
                return CheckedAnswer(confidence)
            check = self._rule.otherwise
        if check == "verifier":
            return await self._checks.verifier(trial.request, call, answer)
        samples = trial.samples or self._checks.samples(trial.group, trial.request, trial.backend)
        return await self._checks.consistency(trial.request, call, answer, samples)


class CascadeMetrics:
    """Counts trials by their outcome."""

    def __init__(self) -> None:
        self.outcomes = Counter(
            "nearhit_cascade_total",
            "Requests whose complexity asked for a better model, by the outcome of the lightest model's answer",
            ("route", "outcome"),
        )


class CascadeDispatch:
    """`CascadeDispatch` answers the requests of one route."""

    def __init__(self, rule: CascadeRule, parts: TrialParts, metrics: CascadeMetrics) -> None:
        checks = AnswerChecks(rule, parts.fallback, Grader(parts.pools), parts.embedder)
        self._accept_above = rule.accept_above or 0.0  # `check: schema` has none
        self._trials = LightTrials(rule, parts.fallback, checks, parts.schemas)
        self._fallback = parts.fallback
        self._metrics = metrics
        self._in_time = parts.in_time
        self._on_check = parts.on_check

    async def answer(self, request: RequestContext, decision: Decision) -> BackendAnswer:
        """Answer a request. Raise as the backends of the decision do, if there is nothing else to serve."""
        call, light = request.call, decision.trial
        if call is None or light is None:
            if decision.trial_skipped:
                self._count(request, "skipped")
            return await self._fallback.first_answer(request, decision.backends)
        tried = await self._trials.run(request, call, light)
        confidence = tried.checked.confidence
        if confidence is not None:
            self._on_check(request, confidence > self._accept_above)
        if tried.answer is not None and confidence is not None and confidence > self._accept_above:
            self._count(request, "accepted")
            return BackendAnswer(tried.answer.to_response(), light, Choice.ACCEPTED, tried.checked.other_usage)
        return await self._escalate(request, decision, light, tried)

    async def _escalate(
        self, request: RequestContext, decision: Decision, light: str, tried: TriedAnswer
    ) -> BackendAnswer:
        """Call a better model. The client has received nothing yet, so the light answer is better than an error."""
        others, answer = tuple(name for name in decision.backends if name != light), tried.answer
        if answer is not None and not self._in_time(request, others[0]):
            return self._use_light_answer(request, light, answer, tried)
        try:
            better = await self._fallback.first_answer(request, others)
        except BackendError:
            if answer is None:
                raise
            return self._use_light_answer(request, light, answer, tried)
        if answer is not None and better.response.status >= 400:
            await close_body(better.response.body)
            return self._use_light_answer(request, light, answer, tried)
        self._count(request, _outcome(tried))
        spent = (*(() if tried.usage is None else (tried.usage,)), *tried.checked.other_usage)
        why = Choice.MISFIT if tried.checked.misfit else Choice.ESCALATED
        return replace(better, instead=better.instead or why, other_usage=spent)

    def _use_light_answer(
        self, request: RequestContext, light: str, answer: BufferedResponse, tried: TriedAnswer
    ) -> BackendAnswer:
        self._count(request, "kept")
        return BackendAnswer(answer.to_response(), light, Choice.KEPT, tried.checked.other_usage)

    def _count(self, request: RequestContext, outcome: str) -> None:
        self._metrics.outcomes.add(request.route, outcome)


def _outcome(tried: TriedAnswer) -> str:
    if tried.answer is None:
        return "failed"
    if tried.checked.misfit:
        return "misfit"
    return "unchecked" if tried.checked.confidence is None else "escalated"
