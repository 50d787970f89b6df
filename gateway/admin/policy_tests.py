"""`PolicyTestRunner` runs the expectations of a policy. It decides on each request as usual, but sends nothing.

The outcome depends on the policy and the names of backends only. The complexity is that of the expectation, or is
judged by the text without a vector, and no classifier is asked. No latency is known, no backend is busy, and routes
have learned nothing.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import orjson

from gateway.calls import Call
from gateway.config.errors import ConfigError
from gateway.config.policy.model import Policy, Route
from gateway.config.policy.parameters import untuned
from gateway.config.policy.tests import Expectation
from gateway.context import RequestContext
from gateway.credentials import NO_CHANGES
from gateway.dialects.known import client_of
from gateway.errors import BadRequest
from gateway.feature import idle_features
from gateway.latency_forecast import Prediction
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Bypass
from gateway.ports import ComplexityScorer
from gateway.routing.backend_choice import BackendChoice
from gateway.routing.complexity import ComplexityModel, build_complexity
from gateway.routing.latency_promises import Promises
from gateway.routing.selection import AdapterTraits, Signals, select
from gateway.routing.tier_learning import TierLearning
from gateway.scores import ScoredPrompt, Scorer
from gateway.steps.request_reading import described_request, find_route
from gateway.upstream.latency import CallFeatures

MAX_S = 5.0  # seconds for all expectations of a policy; the change of the policy waits for them


class FrozenClock:
    """A clock that stands still: no budget runs out on a slow machine."""

    def wall(self) -> float:
        return 0.0

    def monotonic(self) -> float:
        return 0.0


@dataclass(frozen=True, slots=True)
class IdleBackend(AdapterTraits):
    """A backend with an adapter, without load and without known latencies."""

    def wait_s(self, request: RequestContext) -> float:
        return 0.0

    def predict(self, features: CallFeatures, now: float, confidence: float) -> Prediction | None:
        return None


@dataclass(frozen=True, slots=True)
class FixedScore:
    """The complexity that the expectation states."""

    complexity: float
    basis = "as stated"

    def judge(self, text: str, max_tokens: int | None, vector: Any) -> ScoredPrompt:
        return ScoredPrompt(self.complexity, np.zeros(0, np.float16), Scorer.STATED)


class PolicyTestRunner:
    """`PolicyTestRunner` runs the expectations of one policy.

    `adapters` has the adapter of each backend. A backend that it lacks counts as `openai`.
    """

    def __init__(self, policy: Policy, adapters: Mapping[str, str]) -> None:
        self._policy = policy
        members = {name for route in policy.routes for name in route.target.members}
        self._pools = {name: IdleBackend(adapters.get(untuned(name), "openai")) for name in members}

    @cached_property
    def _text_model(self) -> ComplexityModel:
        return build_complexity("none")

    def faults(self, expectation: Expectation) -> Iterator[ConfigError]:
        """Yield a fault for each difference from the expectation."""
        try:
            outcome, score = self._outcome(expectation)
        except BadRequest as error:
            yield expectation.fault("", f"is no request: {error.message}")
            return
        by = f", complexity {score:.2f}" if score is not None else ""
        for key, wanted in expectation.expect.items():
            if wanted not in (outcome[key], untuned(outcome[key]) if key == "backend" else None):
                what = outcome[key] or "none: there is one backend"
                context = f"route {outcome['route']!r}{by}" if key != "route" else "by the rules' match"
                yield expectation.fault(key, f"expected {wanted}, got {what} ({context})")

    def _outcome(self, expectation: Expectation) -> tuple[Mapping[str, str], float | None]:
        """Return the outcome by the keys of `expect`, and the complexity if it was judged. Raise `BadRequest`."""
        request, call, models = described_request(
            "POST",
            expectation.path,
            expectation.headers,
            orjson.dumps(expectation.body),
            tenant=expectation.tenant,
            rules=NO_CHANGES,
            clock=FrozenClock(),
        )
        route = find_route(request, call, models, self._policy)
        if call is None:
            return self._pass_through_outcome(request, route), None
        clock, telemetry = FrozenClock(), Telemetry()
        features = idle_features(clock, telemetry)
        call = features.apply_route(request, call, route)
        scorer: ComplexityScorer = (
            self._text_model if expectation.complexity is None else FixedScore(expectation.complexity)
        )
        promises, escalations = Promises(clock, telemetry), TierLearning("", clock, telemetry)
        ports = features.ports(route)
        decision = BackendChoice(
            route,
            self._pools,
            promises,
            escalations,
            clock,
            scorer,
            _always_first,
            conversations=ports.conversations,
            trials=ports.trials,
        ).decide(request)
        outcome = {
            "route": route.name,
            "backend": decision.backends[0],
            "tier": decision.tier or "",
            "cache": _cache(request, call, route),
            "share": route.share,
        }
        return outcome, request.estimates.complexity

    def _pass_through_outcome(self, request: RequestContext, route: Route) -> Mapping[str, str]:
        signals = Signals(None, client_of(request.headers))
        backend = select(route.target, self._pools, signals, route.slo.late).backends[0]
        cache = str(Bypass.PASS_THROUGH)
        return {"route": route.name, "backend": backend, "tier": "", "cache": cache, "share": route.share}


def failed_expectations(
    policy: Policy, adapters: Mapping[str, str], clock: Callable[[], float] = time.monotonic
) -> tuple[ConfigError, ...]:
    """Return the faults of all expectations. `clock` is in seconds. After `MAX_S`, one fault stands for the rest."""
    runner, faults, deadline = PolicyTestRunner(policy, adapters), list[ConfigError](), clock() + MAX_S
    for expectation in policy.expectations:
        if clock() > deadline:
            message = f"the tests take more than {MAX_S:g} s together, expected fewer or shorter ones"
            return (*faults, expectation.fault("", message))
        faults += runner.faults(expectation)
    return tuple(faults)


def _always_first() -> float:
    """Return the draw that chooses the first part of a split, for requests without a conversation."""
    return 0.0


def _cache(request: RequestContext, call: Call, route: Route) -> str:
    """Return the caches that are looked up, or the reason for none, in the order of the pipeline's checks."""
    if not route.caches:
        return "off"
    if call.uncached is not None:
        return str(call.uncached)
    if request.directives.no_store:
        return str(Bypass.NO_STORE)
    if request.directives.no_cache:
        return str(Bypass.NO_CACHE)
    if route.semantic is not None and call.no_question is None:
        return "semantic"
    return "exact" if route.exact_ttl_s is not None else str(call.no_question)
