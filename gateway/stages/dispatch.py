"""Innermost: chooses a backend, calls it, and asks another one when it fails before its first byte."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

import numpy as np

from gateway.bodies import close_body
from gateway.errors import BackendError, OnlyIfCached
from gateway.lane import asked_of
from gateway.messages import Bypass, Call, Choice, Provenance, Request, Response, Vector, Verdict
from gateway.policy.model import Route
from gateway.pool import Pool
from gateway.ports import Clock
from gateway.routing.choice import Decision, Remaining, choose, only
from gateway.routing.complexity import complexity, features_of
from gateway.telemetry import Telemetry

LOG = logging.getLogger("nearhit.dispatch")
RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})


class Dispatch:
    """`hardness` is the axis of `routing.complexity`, None where embeddings say nothing of difficulty; `bypass` says
    why the caches of this chain are not asked, None where they were."""

    def __init__(
        self,
        route: Route,
        pools: Mapping[str, Pool],
        clock: Clock,
        telemetry: Telemetry,
        hardness: Vector | None,
        bypass: Bypass | None = None,
    ) -> None:
        self._route = route
        self._pools = pools
        self._clock = clock
        self._telemetry = telemetry
        self._hardness = hardness
        self._bypass = bypass

    async def __call__(self, request: Request) -> Response:
        if request.directives.only_if_cached:
            raise OnlyIfCached("there is no stored answer, and the request allows no other (only-if-cached)")
        decision = self.decide(request)
        response, name = await self._first_answer(request, decision.backends)
        fell_back = name != decision.backends[0]
        reason: str = Choice.FALLBACK if fell_back else decision.reason
        tier = self._route.target.tier_of(name) if decision.tier is not None else None
        self._telemetry.routed.add(self._route.name, tier or "none", reason)
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

    def decide(self, request: Request) -> Decision:
        """Which backends are asked, in order, and why. Writes the complexity into the trace."""
        target, call = self._route.target, request.call
        best = target.tiers[-1].backend
        if len(target.tiers) == 1:
            return only(best)
        if call is None:
            return only(next((n for n in reversed(target.backends) if self._pools[n].http), best))
        if call.operation == "embeddings":
            return only(best)  # vectors of two models cannot be mixed
        hardness = 0.0
        if self._hardness is not None and request.embedding is not None:
            hardness = float(np.dot(request.embedding.vector, self._hardness))
        score = complexity(features_of(call.question or call.prompt, call.max_tokens, hardness))
        request.trace.complexity = score
        return self._choose(request, call, score)

    def _choose(self, request: Request, call: Call, score: float) -> Decision:
        target, now = self._route.target, self._clock.monotonic()
        remaining = Remaining(
            None if request.deadline is None else request.deadline - now,
            None if request.ttft_deadline is None else request.ttft_deadline - now,
            request.tpot_s,
        )
        asked = asked_of(call, self._route.name)
        predictions = [None if asked is None else self._pools[name].predict(asked, now) for name in target.backends]
        return choose(target, target.escalate_above, score, remaining, predictions)

    async def _first_answer(self, request: Request, names: Sequence[str]) -> tuple[Response, str]:
        """Asks one after the other until one answers usably; the last one's failure is the request's."""
        for name in names[:-1]:
            pool = self._pools[name]
            if not pool.allow(self._clock.monotonic()):
                self._telemetry.backend_requests.add(name, "breaker_open")
                continue
            try:
                response = await pool.call(request)
            except BackendError as error:
                if not error.retryable:
                    raise
                LOG.warning("falling back", extra={"fields": {"id": request.id, "backend": name, "error": str(error)}})
                continue
            if response.status not in RETRYABLE:
                return response, name
            await close_body(response.body)
        return await self._pools[names[-1]].call(request), names[-1]
