"""A backend as the routes see it: by its name, whatever upstreams are behind it."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from gateway.circuit_breaker import BreakerState
from gateway.context import Load, RequestContext
from gateway.errors import AttemptTimedOut, BackendError, RateLimited
from gateway.latency_forecast import Prediction
from gateway.messages import Response
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.upstream.hedging import HedgeAttempt as AskedOf
from gateway.upstream.hedging import HedgeRules, Hedging
from gateway.upstream.latency import CONFIDENCE, CallFeatures
from gateway.upstream.load_balancer import UNKNOWN_S, LoadCandidate, Sticky, cheaper_of_two, sticky, sticky_key
from gateway.upstream.outlier_detection import is_outlier, may_eject
from gateway.upstream.retry import (
    Outcome,
    RetryBudget,
    RetryTarget,
    again,
    backoff_s,
    cost_nothing,
    failed,
    final,
    let_go,
    patience_s,
    repeatable,
)
from gateway.upstream.upstream import Upstream, in_service

# An upstream that fails so much more often than the others of its backend that it is left out for a while.
LOG = logging.getLogger("nearhit.upstreams")


def eject_if_outlier(backend: str, lane: Upstream, lanes: Sequence[Upstream], now: float) -> None:
    """After a failure of `lane`, one of the `lanes` of `backend`."""
    states = {other: other.breaker.state(now) for other in lanes}
    if states[lane] is not BreakerState.CLOSED:
        return
    others = [other.record.counts(now) for other in lanes if other is not lane]
    out = sum(state is not BreakerState.CLOSED for state in states.values())
    if may_eject(out, len(lanes)) and is_outlier(lane.record.counts(now), others):
        lane.breaker.eject(now)
        lane.record.forget()
        LOG.warning("upstream ejected", extra={"fields": {"backend": backend, "upstream": lane.upstream.address}})


# A backend as the routes see it: by its name, whatever upstreams are behind it.
@dataclass(frozen=True, slots=True)
class BackendRules:
    """What the configuration says of a backend's upstreams together."""

    sticky: Sticky = "off"
    retry_share: float = 0.2  # of the calls
    attempts: int = 2  # of one call, the first one included
    hedge: HedgeRules | None = None


class UpstreamPool:
    """`name` is the backend's in the configuration. `draw`: numbers in [0, 1)."""

    def __init__(
        self,
        name: str,
        lanes: Sequence[Upstream],
        clock: Clock,
        telemetry: Telemetry,
        rules: BackendRules = BackendRules(),
        draw: Callable[[], float] = random.random,
    ) -> None:
        self.name = name
        self.lanes = tuple(lanes)
        self._clock = clock
        self._telemetry = telemetry
        self._rules = rules
        self._draw = draw
        self.budget = RetryBudget(rules.retry_share)
        self.lone = self.lanes[0] if len(self.lanes) == 1 else None  # as a rule: then there is nothing to choose
        for lane in self.lanes:
            lane.compared = self.lone is None
        hedge = rules.hedge if len(self.lanes) > 1 else None
        self._hedging = None if hedge is None else Hedging(hedge, self.lanes, clock, telemetry)

    @property
    def http(self) -> bool:
        """Whether paths that no dialect knows can be passed through to it."""
        return self.lanes[0].backend.http

    @property
    def speaks(self) -> str:
        """The name of the dialect that it understands, or `text`."""
        return self.lanes[0].backend.speaks

    @property
    def inflight(self) -> int:
        return self.crowd.inflight

    @property
    def crowd(self) -> Load:
        """At all of its upstreams together."""
        crowds = [lane.backend.crowd for lane in self.lanes]
        return Load(sum(c.inflight for c in crowds), sum(c.limit for c in crowds), sum(c.queued for c in crowds))

    @property
    def load(self) -> int:
        """Calls that are not over: on their way, or waiting for a place."""
        return sum(lane.load for lane in self.lanes)

    def state(self, now: float) -> BreakerState:
        """Of the upstream that fares best. `now`: monotonic clock."""
        return min(lane.breaker.state(now) for lane in self.lanes)

    def wait_s(self, request: RequestContext) -> float:
        """How long it would wait for a place, as it looks now."""
        lanes = in_service(self.lanes, self._clock.monotonic()) if self.lone is None else self.lanes
        return min([lane.backend.wait_s(request.priority) for lane in lanes])

    def predict(self, asked: CallFeatures, now: float, confidence: float = CONFIDENCE) -> Prediction | None:
        """What it would take to answer, kept with `confidence`, by the slowest upstream that may be chosen. None while
        nothing recent is known, `lane.UNTOLD` while a call is on its way that will tell."""
        all_of_them = [lane.predict(asked, now, confidence) for lane in in_service(self.lanes, now)]
        known = sorted((p for p in all_of_them if p is not None), key=lambda p: p.total_s)
        told = [prediction for prediction in known if not math.isinf(prediction.total_s)]
        if not told:
            return known[0] if known else None
        # Of two that are drawn the dearer one loses, so that the slowest of all is never chosen.
        return told[-1] if len(told) == 1 or self._rules.sticky != "off" else told[-2]

    def allow(self, now: float) -> bool:
        """Whether there is an upstream that may be asked now, whoever asks."""
        return any(lane.breaker.ready(now) and not lane.told_to_wait_s(None, now) for lane in self.lanes)

    async def call(self, request: RequestContext) -> Response:
        """Calls an upstream, and another one where that is no use and the rules allow it. Raises `BackendError` where
        there is no answer before its first byte; what came as an answer is returned, whatever its status."""
        now = self._clock.monotonic()
        self.budget.asked(now)
        lane = self._first(request, now)
        if self.lone is None or lane.breaker.failures:
            return await self._settled(request, lane, await self._asked(lane, request, [lane], 0))
        try:  # as `_asked` does where nothing has to be weighed
            with lane.attempt(request) as attempt:
                response = attempt.answered(await lane.backend.send(request))
        except BackendError as error:
            return await self._settled(request, lane, [AskedOf(lane, error)])
        if response.status < 400:
            return response  # as a rule: nothing to tell, nobody else to call
        return await self._settled(request, lane, [AskedOf(lane, response)])

    async def _settled(self, request: RequestContext, lane: Upstream, came: list[AskedOf]) -> Response:
        """What a call comes to, of which this came when `lane` was asked; as `call`."""
        tried, retries = [lane], 0
        while True:
            self.budget.unspent(
                sum(isinstance(each.outcome, AttemptTimedOut) for each in came)
            )  # one is, where any follows
            whom = [self._again(each.outcome, each.lane, request) for each in came][-1]
            lane, outcome = came[-1].lane, came[-1].outcome
            tried += [each.lane for each in came if each.lane not in tried]
            if retries:
                recovered = isinstance(outcome, Response) and whom is RetryTarget.NOBODY
                self._telemetry.retries.add(self.name, "recovered" if recovered else "failed")
            following = self._following(request, lane, tried, whom)
            if following is None:
                return final(outcome)
            if following in tried or not cost_nothing(outcome):
                pause_s = self._pause_s(request, retries, outcome)
                if pause_s is None:
                    return final(outcome)
                retries += 1
                self._note(request, lane, outcome)
                await let_go(outcome)
                await asyncio.sleep(pause_s)
            tried.append(following)
            came = await self._asked(following, request, tried, retries)

    async def models(self, request: RequestContext) -> list[dict[str, Any]]:
        """The models it offers, as OpenAI model objects. Raises `BackendError`."""
        now = self._clock.monotonic()
        first = self._first(request, now)
        failure: BackendError | None = None
        for lane in [first, *(other for other in in_service(self.lanes, now) if other is not first)]:
            try:
                return await lane.backend.models(request)
            except BackendError as error:
                failure = failure or error
        assert failure is not None  # there is at least one
        raise failure

    async def close(self) -> None:
        for lane in self.lanes:
            await lane.backend.close()

    def _sent(
        self, lane: Upstream, request: RequestContext, tried: Sequence[Upstream], retries: int
    ) -> Awaitable[Response]:
        now = self._clock.monotonic()
        lane.breaker.allow(now)  # where it is half-open, this is its probe
        patience_s = None if self.lone is not None else self._patience_s(request, {*tried, lane}, retries, now)
        return lane.call(request, None) if patience_s is None else self._patiently(lane, request, patience_s)

    async def _patiently(self, lane: Upstream, request: RequestContext, patience_s: float) -> Response:
        """A retry is set aside for it meanwhile: many who are given up at once would else exceed the budget."""
        self.budget.held += 1
        try:
            return await lane.call(request, patience_s)
        except AttemptTimedOut:
            self.budget.spend(self._clock.monotonic())
            raise
        finally:
            self.budget.held -= 1

    async def _ask(self, lane: Upstream, request: RequestContext, tried: Sequence[Upstream], retries: int) -> Outcome:
        try:
            return await self._sent(lane, request, tried, retries)
        except BackendError as error:
            return error

    async def _asked(
        self, lane: Upstream, request: RequestContext, tried: Sequence[Upstream], retries: int
    ) -> list[AskedOf]:
        """An upstream, and a second one meanwhile where the call is hedged: once, not for each retry."""
        hedging = None if retries else self._hedging
        delay_s = None if hedging is None else hedging.delay_s(lane, request)
        if hedging is None or delay_s is None:
            return [AskedOf(lane, await self._ask(lane, request, tried, retries))]
        return await hedging.asked(
            lambda lane, request: self._ask(lane, request, tried, 0),
            lane,
            request,
            delay_s,
            lambda others: self._chosen(request, others, self._clock.monotonic()),
        )

    def _first(self, request: RequestContext, now: float) -> Upstream:
        """Raises `RateLimited`."""
        lone = self.lone
        if lone is not None and not (lone.waits.until and lone.told_to_wait_s(request.tenant, now)):
            return lone  # whatever its breaker says: somebody has to answer
        askable = [lane for lane in self.lanes if not lane.told_to_wait_s(request.tenant, now)]
        if not askable:
            soonest = min(lane.told_to_wait_s(request.tenant, now) for lane in self.lanes)
            self._telemetry.backend_requests.add(self.name, "rate_limited")
            raise RateLimited(f"backend '{self.name}' is at its rate limit", max(1, math.ceil(soonest)))
        ready = [lane for lane in askable if lane.breaker.ready(now)]
        probes = [lane for lane in ready if lane.breaker.state(now) is BreakerState.HALF_OPEN]
        if probes and (len(probes) == len(ready) or repeatable(request)):
            return probes[0]  # else nothing might ever ask the one that is known to have been bad
        return self._chosen(request, in_service(askable, now), now)

    def _following(
        self, request: RequestContext, lane: Upstream, tried: Sequence[Upstream], again: RetryTarget
    ) -> Upstream | None:
        if again is RetryTarget.NOBODY:
            return None
        now = self._clock.monotonic()
        others = [
            other
            for other in self.lanes
            if other not in tried and other.breaker.ready(now) and not other.told_to_wait_s(request.tenant, now)
        ]
        if others:
            return self._chosen(request, in_service(others, now), now)
        return lane if again is RetryTarget.ANYBODY and not lane.told_to_wait_s(request.tenant, now) else None

    def _chosen(self, request: RequestContext, lanes: Sequence[Upstream], now: float) -> Upstream:
        if len(lanes) == 1:
            return lanes[0]
        paces = [lane.pace_of(request.call) for lane in lanes]
        best = min((p.seconds for p in paces if p is not None and p.seconds is not None), default=UNKNOWN_S)
        expected = [best if pace is None else pace.expected(best, now) for pace in paces]
        candidates = [
            LoadCandidate(lane.upstream.address, lane.load, lane.upstream.weight, seconds)
            for lane, seconds in zip(lanes, expected, strict=True)
        ]
        key = sticky_key(request.call, request.tenant, self._rules.sticky) if request.call is not None else None
        return lanes[cheaper_of_two(candidates, self._draw) if key is None else sticky(key, candidates)]

    def _again(self, outcome: Outcome, lane: Upstream, request: RequestContext) -> RetryTarget:
        if failed(outcome):
            eject_if_outlier(self.name, lane, self.lanes, self._clock.monotonic())
        return again(outcome, request, waits=lane.told_to_wait_s(request.tenant, self._clock.monotonic()) > 0)

    def _pause_s(self, request: RequestContext, retries: int, outcome: Outcome) -> float | None:
        """How long to wait before the next attempt; None: there is none."""
        if retries + 1 >= self._rules.attempts:
            return None
        now, until = self._clock.monotonic(), request.due
        given_up = isinstance(outcome, AttemptTimedOut)  # for this: the retry was set aside for it
        pause_s = 0.0 if given_up else backoff_s(retries, self._draw())
        if now + pause_s >= until:
            self._telemetry.retries.add(self.name, "deadline")
            return None
        if not given_up and not self.budget.left(now):
            self._telemetry.retries.add(self.name, "budget")
            return None
        self.budget.spend(now)
        return pause_s

    def _patience_s(
        self, request: RequestContext, tried: Collection[Upstream], retries: int, now: float
    ) -> float | None:
        """How long the last one of `tried` may take to its first byte; None: as long as its timeouts let it."""
        until = request.due
        if math.isinf(until) or until <= now or retries + 1 >= self._rules.attempts:
            return None
        if not repeatable(request) or not self.budget.left(now):
            return None
        others = [
            lane
            for lane in self.lanes
            if lane not in tried
            and lane.breaker.state(now) is BreakerState.CLOSED
            and not lane.told_to_wait_s(request.tenant, now)
        ]
        if not others:
            return None
        paces = [pace.seconds for lane in others if (pace := lane.pace_of(request.call)) is not None]
        return patience_s(until - now, min((seconds for seconds in paces if seconds is not None), default=None))

    def _note(self, request: RequestContext, lane: Upstream, outcome: Outcome) -> None:
        why = f"status {outcome.status}" if isinstance(outcome, Response) else str(outcome)
        fields = {**request.log_fields, "backend": self.name, "upstream": lane.upstream.address, "error": why}
        LOG.warning("asking again", extra={"fields": fields})
