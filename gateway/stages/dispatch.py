"""Innermost: chooses a backend, calls it, and asks another one when it fails before its first byte."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from gateway.bodies import Guarded, close_body
from gateway.errors import BackendError, BackendFull, OnlyIfCached
from gateway.messages import Bypass, Choice, Event, EventStream, Provenance, Request, Response, Vector, Verdict, Whole
from gateway.policy.model import OneBackend, Route, Tiers
from gateway.ports import Backend, Clock
from gateway.routing.breaker import Breaker
from gateway.routing.choice import Decision, Remaining, choose, only
from gateway.routing.complexity import complexity, features_of
from gateway.routing.latency import LatencyBook
from gateway.telemetry import Telemetry

LOG = logging.getLogger("nearhit.dispatch")
RETRYABLE = frozenset({408, 429, 500, 502, 503, 504})
FAILURES, COOLDOWN_S = 5, 5.0
DEFAULT_THRESHOLD = 0.5


@dataclass(frozen=True, slots=True)
class Lane:
    """A backend with what is known of how it fares; all routes share it."""

    backend: Backend
    latency: LatencyBook = field(default_factory=LatencyBook)
    breaker: Breaker = field(default_factory=lambda: Breaker(FAILURES, COOLDOWN_S))


class Dispatch:
    """`hardness` is the axis of `routing.complexity`, None where embeddings say nothing of difficulty; `bypass` says
    why the caches of this chain are not asked, None where they were."""

    def __init__(
        self,
        route: Route,
        lanes: Mapping[str, Lane],
        clock: Clock,
        telemetry: Telemetry,
        hardness: Vector | None,
        bypass: Bypass | None = None,
    ) -> None:
        self._route = route
        self._lanes = lanes
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
        tier = self._tier(name) if decision.tier is not None else None
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

    def _tier(self, backend: str) -> str | None:
        target = self._route.target
        return None if isinstance(target, OneBackend) else "light" if backend == target.light else "large"

    def decide(self, request: Request) -> Decision:
        """Which backends are asked, in order, and why. Writes the complexity into the trace."""
        target, call = self._route.target, request.call
        if isinstance(target, OneBackend):
            return only(target.backend)
        if call is None:
            return only(next((n for n in (target.large, target.light) if self._lanes[n].backend.http), target.large))
        if call.operation == "embeddings":
            return only(target.large)  # vectors of two models cannot be mixed
        hardness = 0.0
        if self._hardness is not None and request.embedding is not None:
            hardness = float(np.dot(request.embedding.vector, self._hardness))
        score = complexity(features_of(call.question or call.prompt, call.max_tokens, hardness))
        request.trace.complexity = score
        return self._choose(request, target, score)

    def _choose(self, request: Request, target: Tiers, score: float) -> Decision:
        call, now = request.call, self._clock.monotonic()
        assert call is not None
        light, large = (
            self._lanes[name].latency.predict(stream=call.stream, max_tokens=call.max_tokens, now=now)
            for name in (target.light, target.large)
        )
        remaining = Remaining(
            None if request.deadline is None else request.deadline - now,
            None if request.ttft_deadline is None else request.ttft_deadline - now,
            request.tpot_s,
        )
        threshold = DEFAULT_THRESHOLD if target.escalate_above is None else target.escalate_above
        return choose(target, threshold, score, remaining, light, large)

    async def _first_answer(self, request: Request, names: Sequence[str]) -> tuple[Response, str]:
        """Asks one after the other until one answers usably; the last one's failure is the request's."""
        for name in names[:-1]:
            lane = self._lanes[name]
            if not lane.breaker.allow(self._clock.monotonic()):
                self._telemetry.backend_requests.add(name, "breaker_open")
                continue
            try:
                response = await self._call(request, name, lane)
            except BackendError as error:
                if not error.retryable:
                    raise
                LOG.warning("falling back", extra={"fields": {"id": request.id, "backend": name, "error": str(error)}})
                continue
            if response.status not in RETRYABLE:
                return response, name
            await close_body(response.body)
        return await self._call(request, names[-1], self._lanes[names[-1]]), names[-1]

    async def _call(self, request: Request, name: str, lane: Lane) -> Response:
        started = self._clock.monotonic()
        try:
            with request.trace.span("upstream"):
                response = await lane.backend.send(request)
        except BackendFull:
            self._telemetry.backend_requests.add(name, "full")
            raise
        except BackendError as error:
            lane.breaker.failed(self._clock.monotonic())
            self._telemetry.backend_requests.add(name, "timeout" if error.status == 504 else "error")
            raise
        now = self._clock.monotonic()
        self._telemetry.backend_ttft_seconds.observe(now - started, name)
        self._telemetry.backend_requests.add(name, str(response.status))
        if response.status >= 500:
            lane.breaker.failed(now)
        else:
            lane.breaker.succeeded()
        if isinstance(response.body, EventStream):
            timed = Guarded(self._timed(request, lane, response.body, started, now), source=response.body.events)
            return replace(response, body=EventStream(timed))
        if isinstance(response.body, Whole):
            self._observe(request, lane, started, now, now, pieces=0, ok=response.status == 200)
        return response

    async def _timed(
        self, request: Request, lane: Lane, body: EventStream, started: float, first: float
    ) -> AsyncGenerator[Event, None]:
        pieces = 0
        async for event in body.events:
            pieces += 1
            yield event
        self._observe(request, lane, started, first, self._clock.monotonic(), pieces=pieces, ok=True)

    def _observe(
        self, request: Request, lane: Lane, started: float, first: float, now: float, *, pieces: int, ok: bool
    ) -> None:
        """`pieces`: events of a stream; models send a token in each, or nearly."""
        self._telemetry.backend_seconds.observe(now - started, lane.backend.name)
        call = request.call
        if not ok or call is None or call.operation == "embeddings":
            return
        lane.latency.observe(
            stream=pieces > 0,
            max_tokens=call.max_tokens,
            ttft_s=first - started,
            total_s=now - started,
            output_tokens=pieces,
            now=now,
        )
