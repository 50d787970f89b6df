"""Ask a route's own classifier for the complexity of a text, within bounds.

The gateway's own score counts whenever the classifier gives none, so no outcome here fails a request.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from importlib import import_module
from weakref import WeakValueDictionary

from gateway.cache.redaction import Redaction
from gateway.calls import Call
from gateway.circuit_breaker import CircuitBreaker
from gateway.config.policy.model import Route, Target
from gateway.context import RequestContext, RequestState
from gateway.feature import Runtime
from gateway.features.classifier.http import HttpClassifier
from gateway.features.classifier.question import (
    ClassifierAnswer,
    ClassifierAnswerInvalid,
    ClassifierFailed,
    ClassifierQuestion,
    TextClassifier,
)
from gateway.features.classifier.rule import ComplexityRule
from gateway.observability.metrics import Counter
from gateway.ports import Clock
from gateway.steps.route_ports import RoutePorts
from gateway.upstream.aiohttp_session import AiohttpSession

LOG = logging.getLogger("nearhit.routing")

MAX_TEXT = 32_768  # characters of a text that a classifier gets, from its beginning
MAX_INFLIGHT = 64  # questions to one classifier at once
MAX_CONNECTIONS = 128  # to all HTTP classifiers together
CONNECT_TIMEOUT_S = 5.0  # a bound for connections that no request waits for any more
# After so many failures in a row nobody waits for a classifier. One request tries it after a second, and after at most
# 30 seconds if it keeps failing.
FAILURES, COOLDOWN_S, LONGEST_S = 5, 1.0, 30.0


class Classifier:
    """`Classifier` asks one classifier. All routes with equal rules share it, with its circuit breaker."""

    def __init__(self, rule: ComplexityRule, texts: TextClassifier, clock: Clock) -> None:
        self._rule = rule
        self.name = f"the classifier at {rule.url}"
        self._texts = texts
        self._clock = clock
        self._breaker = CircuitBreaker(FAILURES, COOLDOWN_S, LONGEST_S)
        self._inflight = 0
        self._is_away = False  # as the log says

    async def score(
        self, question: ClassifierQuestion, target: Target, due: float
    ) -> tuple[ClassifierOutcome, float | None, str]:
        """Return the outcome, the complexity if there is one, and the reason in words.

        The request's answer is `due` at that second of the monotonic clock.
        """
        now, timeout_s = self._clock.monotonic(), self._rule.timeout
        left_s = due - now
        if left_s <= 0:
            return ClassifierOutcome.NO_TIME, None, "the latency budget is spent"
        if self._inflight >= MAX_INFLIGHT:
            return ClassifierOutcome.BUSY, None, f"it has {MAX_INFLIGHT} questions already"
        if not self._breaker.allow(now):
            return ClassifierOutcome.PAUSED, None, f"it is paused after {FAILURES} failures in a row"
        self._inflight += 1
        try:
            async with asyncio.timeout(min(timeout_s, left_s)):
                answer = await self._texts.ask(question)
        except TimeoutError:
            if left_s < timeout_s:  # this says nothing about the classifier
                return ClassifierOutcome.NO_TIME, None, "the latency budget ended first"
            return self._failed(ClassifierOutcome.LATE, f"it gave no answer within {1e3 * timeout_s:g} ms", now)
        except ClassifierAnswerInvalid as error:
            return self._failed(ClassifierOutcome.INVALID, str(error), now)
        except ClassifierFailed as error:
            return self._failed(ClassifierOutcome.FAILED, str(error), now)
        finally:
            self._inflight -= 1
        self._succeeded(now)
        try:
            return ClassifierOutcome.ANSWERED, score_of(answer, target), ""
        except ClassifierAnswerInvalid as error:  # such as the label of a model that is not sure: no reason for a pause
            return ClassifierOutcome.INVALID, None, str(error)

    async def close(self) -> None:
        await self._texts.close()

    def _failed(
        self, outcome: ClassifierOutcome, why: str, sent_at: float
    ) -> tuple[ClassifierOutcome, float | None, str]:
        self._breaker.failed(self._clock.monotonic(), sent_at)
        if self._breaker.failures >= FAILURES and not self._is_away:
            self._is_away = True
            LOG.warning("a classifier is paused: the gateway's own score counts", extra={"fields": self._fields(why)})
        return outcome, None, why

    def _succeeded(self, sent_at: float) -> None:
        self._breaker.succeeded(sent_at)
        if self._is_away and self._breaker.failures == 0:
            self._is_away = False
            LOG.info("a classifier answers again", extra={"fields": self._fields("")})

    def _fields(self, why: str) -> dict[str, object]:
        return {"url": self._rule.url, **({"reason": why} if why else {})}


class ClassifierOutcome(StrEnum):
    """The outcome of a request's question to its route's classifier."""

    ANSWERED = "answered"
    LATE = "late"  # no answer within `complexity.timeout`
    FAILED = "failed"  # no connection, a status other than 200, or an error of the model
    INVALID = "invalid"  # neither a score in [0, 1] nor a tier of the route
    PAUSED = "paused"  # not asked, because it failed several times in a row
    BUSY = "busy"  # not asked, because it has as many questions as it may have at once
    NO_TIME = "no-time"  # the latency budget of the request ended first


@dataclass(frozen=True, slots=True)
class Classification:
    """The answer of a classifier about a text, or the reason for none."""

    text: str
    score: float | None  # complexity in [0, 1]; None: it gave none
    explanation: str  # who scored, or why the classifier did not, in words without any text of the request


class Classified(RequestState):
    """The classification of a request, or None if no classifier was called."""

    __slots__ = ("answer",)

    def __init__(self) -> None:
        self.answer: Classification | None = None


class ClassifierMetrics:
    """Counts the questions to classifiers."""

    def __init__(self) -> None:
        self.questions = Counter(
            "nearhit_classifier_requests_total",
            "Questions to the classifier of a route, by outcome; unless answered, the gateway's own score counts",
            ("route", "outcome"),
        )


@dataclass(frozen=True, slots=True)
class ClassifierOfRoute:
    """Asks the classifier for one route, and counts the outcomes."""

    route: Route
    classifier: Classifier
    metrics: ClassifierMetrics

    async def classify(self, request: RequestContext, call: Call, text: str) -> None:
        """Ask for the complexity of a text. It waits for `complexity.timeout` at most, and never raises.

        The classifier reads nothing that the route keeps out of its caches.
        """
        read, redaction = text[:MAX_TEXT], self.route.of(Redaction)
        if redaction is not None:
            read = redaction.redact(read)
        question = ClassifierQuestion(read, self.route.name, call.model, call.operation, call.max_tokens)
        with request.timer("classify"):
            outcome, score, why = await self.classifier.score(question, self.route.target, request.due)
        self.metrics.questions.add(self.route.name, str(outcome))
        name = self.classifier.name
        explanation = name if score is not None else f"{name} does not count: {why}"
        request.of(Classified).answer = Classification(text, score, explanation)

    def score_of(self, request: RequestContext, text: str) -> float | None:
        answer = request.of(Classified).answer
        return None if answer is None or answer.text != text else answer.score


def score_of(answer: ClassifierAnswer, target: Target) -> float:
    """Return the complexity of an answer. A tier stands for the middle of the scores that choose it.

    So a rule that follows the traffic, such as `large_share`, still decides. Raise `ClassifierAnswerInvalid` if the
    route does not have the tier.
    """
    if answer.score is not None:
        return answer.score
    names = [tier.name for tier in target.tiers]
    name = answer.tier if answer.tier in names else target.tier_with_backend(answer.tier or "")
    if name is None:
        raise ClassifierAnswerInvalid(f"the route has no such tier, expected one of {', '.join(names)}")
    edges, rank = (0.0, *target.escalate_above, 1.0), names.index(name)
    return (edges[rank] + edges[rank + 1]) / 2


class Classifiers(Runtime):
    """`Classifiers` has the classifiers of the routes in force.

    A classifier lives as long as a route uses it. A new policy keeps those that the former one has too, with their
    connections and their state.
    """

    def __init__(self, clock: Clock, metrics: ClassifierMetrics) -> None:
        self._clock = clock
        self._metrics = metrics
        self._session = AiohttpSession(CONNECT_TIMEOUT_S, MAX_CONNECTIONS)
        self._used: WeakValueDictionary[ComplexityRule, Classifier] = WeakValueDictionary()

    def ports(self, route: Route) -> RoutePorts:
        return RoutePorts(classifier=partial(self._of, route))

    def _of(self, route: Route) -> ClassifierOfRoute:
        """Return the classifier of a route. A running event loop is needed."""
        rule = route.of(ComplexityRule)
        assert rule is not None  # else the feature is not asked
        classifier = self._used.get(rule)
        if classifier is None:
            classifier = self._used[rule] = Classifier(rule, self._open(rule), self._clock)
        return ClassifierOfRoute(route, classifier, self._metrics)

    async def close(self) -> None:
        for classifier in list(self._used.values()):
            with suppress(OSError):
                await classifier.close()
        await self._session.close()

    def _open(self, rule: ComplexityRule) -> TextClassifier:
        if rule.adapter == "triton":
            triton = import_module("gateway.features.classifier.triton")  # imports gRPC, which is large
            texts: TextClassifier = triton.TritonClassifier(rule.url, rule.model)
            return texts
        return HttpClassifier(rule.url, self._session.get)
