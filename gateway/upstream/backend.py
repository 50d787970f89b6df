"""A backend as routes see it: one name for one or more upstreams."""

from __future__ import annotations

import asyncio
import logging
import math
import random
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from gateway.circuit_breaker import BreakerState
from gateway.context import Load, RequestContext
from gateway.errors import AttemptTimedOut, BackendError, RateLimited
from gateway.latency_forecast import Prediction
from gateway.messages import Response
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.request_fields import NO_CALLS, UpstreamCalls
from gateway.upstream.header_filter import UPSTREAM_REQUEST_ID
from gateway.upstream.hedging import HedgeAttempt as AttemptResult
from gateway.upstream.hedging import HedgeRules, Hedging
from gateway.upstream.latency import CONFIDENCE, CallFeatures
from gateway.upstream.load_balancer import UNKNOWN_S, LoadCandidate, Sticky, kv_factor, pick, sticky_key
from gateway.upstream.outlier_detection import RETURN_SUSPICION, is_outlier, may_eject
from gateway.upstream.refusals import REFUSED_S, TOO_MANY, Refusal, Refused, names_caller, refused
from gateway.upstream.retry import (
    Outcome,
    RetryBudget,
    RetryTarget,
    attempt_timeout_s,
    backoff_s,
    discard_response,
    is_free_attempt,
    is_refusal,
    is_repeatable,
    retry_target,
    unwrap_outcome,
)
from gateway.upstream.upstream import Upstream, in_service
from gateway.upstream.warm_upstreams import open_prefixes

if TYPE_CHECKING:  # features bring them
    from gateway.transmission import Transmission

LOG = logging.getLogger("nearhit.upstreams")


MAX_LISTING_S = 2.0  # for one upstream's list of models, so that another one can still answer


# Calls to the other upstreams between two probes of one, after the first: so that probes are at most 4 % of the calls.
PROBE_EVERY = 25


def eject_if_outlier(backend: str, endpoint: Upstream, endpoints: Sequence[Upstream], now: float) -> None:
    """Eject `endpoint` if it is an outlier. Call this after a failure; `endpoints` are all upstreams of `backend`."""
    states = {other: other.breaker.state(now) for other in endpoints}
    if states[endpoint] is not BreakerState.CLOSED:
        return
    others = [other.record.counts(now) for other in endpoints if other is not endpoint]
    out = sum(state is not BreakerState.CLOSED for state in states.values())
    proven = endpoint.suspicion.is_proven or is_outlier(endpoint.record.counts(now), others)
    if proven and may_eject(out, len(endpoints)):
        endpoint.breaker.eject(now)
        endpoint.record.reset()
        endpoint.suspicion.score = RETURN_SUSPICION
        LOG.warning("upstream ejected", extra={"fields": {"backend": backend, "upstream": endpoint.upstream.address}})


@dataclass(frozen=True, slots=True)
class BackendRules:
    """`BackendRules` are the settings that hold for all upstreams of a backend together."""

    sticky: Sticky = "off"
    retry_share: float = 0.2  # retries as a share of the calls
    attempts: int = 2  # attempts of one call, the first one included
    hedge: HedgeRules | None = None
    counts_cached: bool = False  # input tokens are counted, with those from the prompt cache
    total_s: float = math.inf  # `timeouts.total`: for all calls of a request, counted from the first one to any backend


class UpstreamPool:
    """`UpstreamPool` is a backend with its upstreams. It chooses one for each call, retries and hedges.

    `name` is the name in the configuration. `rng` returns numbers in [0, 1). `budget` is that of the retries, which the
    transports of the upstreams share.
    """

    def __init__(
        self,
        name: str,
        endpoints: Sequence[Upstream],
        clock: Clock,
        telemetry: Telemetry,
        rules: BackendRules = BackendRules(),
        rng: Callable[[], float] = random.random,
        budget: RetryBudget | None = None,
    ) -> None:
        self.name = name
        self.endpoints = tuple(endpoints)
        self._clock = clock
        self._telemetry = telemetry
        self._rules = rules
        self._rng = rng
        self.budget = budget or RetryBudget(rules.retry_share)
        # The common case is one upstream: there is nothing to choose.
        self.single = self.endpoints[0] if len(self.endpoints) == 1 else None
        for endpoint in self.endpoints:
            endpoint.is_compared, endpoint.counts_input = self.single is None, rules.counts_cached
            endpoint.on_doubt = partial(self._doubt, endpoint)
        self._calls = 0
        self._prefixes = open_prefixes() if rules.sticky == "prefix" and self.single is None else None
        hedge = rules.hedge if len(self.endpoints) > 1 else None
        self._hedging = None if hedge is None else Hedging(hedge, self.endpoints, clock, telemetry)

    @property
    def http(self) -> bool:
        """Whether requests on paths that no dialect knows can be forwarded to this backend."""
        return self.endpoints[0].backend.http

    @property
    def speaks(self) -> str:
        """The name of the dialect that the backend speaks, or `text`."""
        return self.endpoints[0].backend.speaks

    @property
    def inflight(self) -> int:
        return self.occupancy.inflight

    @property
    def occupancy(self) -> Load:
        """The load of all upstreams together."""
        occupancies = [endpoint.backend.occupancy for endpoint in self.endpoints]
        return Load(
            sum(c.inflight for c in occupancies), sum(c.limit for c in occupancies), sum(c.queued for c in occupancies)
        )

    @property
    def load(self) -> int:
        """The number of unfinished calls: in flight, or waiting for a permit."""
        return sum(endpoint.load for endpoint in self.endpoints)

    def state(self, now: float) -> BreakerState:
        """Return the breaker state of the healthiest upstream. `now` is monotonic."""
        return min(endpoint.breaker.state(now) for endpoint in self.endpoints)

    def wait_s(self, request: RequestContext) -> float:
        """Return the seconds that this request would now wait for a permit."""
        endpoints = in_service(self.endpoints, self._clock.monotonic()) if self.single is None else self.endpoints
        return min([endpoint.backend.wait_s(request.priority) for endpoint in endpoints])

    def predict(self, features: CallFeatures, now: float, confidence: float = CONFIDENCE) -> Prediction | None:
        """Return how long the slowest upstream that may be chosen would take, kept with probability `confidence`.

        The result is None while nothing recent is known. It is `upstream.PENDING_PREDICTION` while a call is in flight
        that will provide a measurement.
        """
        predictions = [endpoint.predict(features, now, confidence) for endpoint in in_service(self.endpoints, now)]
        known = sorted((p for p in predictions if p is not None), key=lambda p: p.total_s)
        finite = [prediction for prediction in known if not math.isinf(prediction.total_s)]
        if not finite:
            return known[0] if known else None
        # The slower of two candidates always loses, so the slowest of all upstreams is never chosen.
        return finite[-1] if len(finite) == 1 or self._rules.sticky != "off" else finite[-2]

    def allow(self, now: float, request: RequestContext | None = None) -> bool:
        """Return whether some upstream accepts the request now. Without one, return whether it accepts any call, of any
        tenant."""
        return any(
            endpoint.breaker.ready(now)
            and not endpoint.retry_after_s(request, now)
            and not (request is not None and endpoint.upstream.own_account and endpoint.refuses(request, now))
            for endpoint in self.endpoints
        )

    def _doubt(self, endpoint: Upstream) -> None:
        """Count an answer of no use against `endpoint`, and eject it if that is its fault."""
        now = self._clock.monotonic()
        endpoint.suspicion.add([other.record.counts(now) for other in self.endpoints if other is not endpoint])
        eject_if_outlier(self.name, endpoint, self.endpoints, now)

    async def call(self, request: RequestContext) -> Response:
        """Call an upstream, and retry on another one if the first fails and the rules allow it.

        Raise `BackendError` if no upstream begins a response. A response is returned whatever its status. A body that
        streams is awaited first, or a full buffer of it, because a slow client must not hold what others wait for.
        """
        if request.call is None and request.body_source.buffered_body is None:
            await request.body_source.buffer()
        now = self._clock.monotonic()
        calls = request.calls
        if calls is NO_CALLS:
            calls = request.calls = UpstreamCalls()
            calls.since = now
        calls.due = calls.since + self._rules.total_s
        if request.work.transmission is not None:
            self._require_first_transmission(request, request.work.transmission)
        if now >= calls.due:
            message = f"backend '{self.name}' was not called: earlier calls have used up timeouts.total"
            raise BackendError(message, status=504, retryable=False, sent=False)
        self.budget.record_call(now)
        self._calls += 1
        endpoint = self._pick_first(request, now)
        if self.single is None or endpoint.breaker.failures:
            return await self._retry_until_final(
                request, endpoint, await self._attempt(endpoint, request, [endpoint], 0)
            )
        try:  # a shortcut for `_attempt`: one upstream, and no failures to take into account
            with endpoint.attempt(request) as attempt:
                response = attempt.track_response(await endpoint.backend.send(request))
        except BackendError as error:
            return await self._retry_until_final(request, endpoint, [AttemptResult(endpoint, error)])
        if response.status < 400:
            return response  # the common case: nothing to record, no retry
        return await self._retry_until_final(request, endpoint, [AttemptResult(endpoint, response)])

    def _require_first_transmission(self, request: RequestContext, transmission: Transmission) -> None:
        """Raise `BackendError` if the request has gone to a backend before and may go only once."""
        transmission.once = not is_repeatable(request)
        if transmission.final:
            reason = "the request may have been sent before, and may be sent only once"
            raise BackendError(f"backend '{self.name}' was not called: {reason}", retryable=False)

    async def _retry_until_final(
        self, request: RequestContext, endpoint: Upstream, attempts: list[AttemptResult]
    ) -> Response:
        """Retry until the outcome is final. `attempts` are the first attempts, at `endpoint`; see `call`."""
        tried, retries = [endpoint], 0
        while True:
            # `_pause_s` spends one again if a retry follows.
            self.budget.refund(sum(isinstance(attempt.outcome, AttemptTimedOut) for attempt in attempts))
            target = [self._retry_target(attempt, request) for attempt in attempts][-1]
            endpoint, outcome = attempts[-1].endpoint, attempts[-1].outcome
            request.calls.address = endpoint.upstream.address
            tried += [attempt.endpoint for attempt in attempts if attempt.endpoint not in tried]
            if retries:
                recovered = isinstance(outcome, Response) and target is RetryTarget.NOBODY
                self._telemetry.retries.add(self.name, "recovered" if recovered else "failed")
            next_endpoint = self._pick_next(request, endpoint, tried, target)
            if next_endpoint is None:
                return unwrap_outcome(outcome)
            is_free = next_endpoint not in tried and (is_free_attempt(outcome) or is_refusal(outcome))
            pause_s = 0.0 if is_free else self._pause_s(request, retries, outcome)
            if pause_s is None:
                return unwrap_outcome(outcome)
            await discard_response(outcome)
            if not is_free:
                retries += 1
                self._log_retry(request, endpoint, outcome)
                await asyncio.sleep(pause_s)
            tried.append(next_endpoint)
            attempts = await self._attempt(next_endpoint, request, tried, retries)

    async def models(self, request: RequestContext) -> list[dict[str, Any]]:
        """Return the models that the backend offers, as OpenAI model objects. Raise `BackendError`."""
        now = self._clock.monotonic()
        first = self._pick_first(request, now)
        failure: BackendError | None = None
        for endpoint in [first, *(other for other in in_service(self.endpoints, now) if other is not first)]:
            try:
                async with asyncio.timeout(MAX_LISTING_S):
                    return await endpoint.backend.models(request)
            except TimeoutError:
                late = f"backend '{self.name}' did not list its models within {MAX_LISTING_S:g} s"
                failure = failure or BackendError(late, status=504)
            except BackendError as error:
                failure = failure or error
        assert failure is not None  # there is at least one
        raise failure

    async def close(self) -> None:
        for endpoint in self.endpoints:
            await endpoint.backend.close()

    def _send(
        self, endpoint: Upstream, request: RequestContext, tried: Sequence[Upstream], retries: int
    ) -> Awaitable[Response]:
        now = self._clock.monotonic()
        endpoint.breaker.allow(now)  # if the breaker is half-open, this call is its probe
        attempt_timeout_s = (
            None if self.single is not None else self._attempt_timeout_s(request, {*tried, endpoint}, retries, now)
        )
        return (
            endpoint.call(request, None)
            if attempt_timeout_s is None
            else self._call_with_timeout(endpoint, request, attempt_timeout_s)
        )

    async def _call_with_timeout(
        self, endpoint: Upstream, request: RequestContext, attempt_timeout_s: float
    ) -> Response:
        """Call with a timeout, and reserve a retry, because many timeouts at once would exceed the budget."""
        self.budget.reserved += 1
        try:
            return await endpoint.call(request, attempt_timeout_s)
        except AttemptTimedOut:
            self.budget.spend(self._clock.monotonic())
            raise
        finally:
            self.budget.reserved -= 1

    async def _try_call(
        self, endpoint: Upstream, request: RequestContext, tried: Sequence[Upstream], retries: int
    ) -> Outcome:
        try:
            return await self._send(endpoint, request, tried, retries)
        except BackendError as error:
            return error

    async def _attempt(
        self, endpoint: Upstream, request: RequestContext, tried: Sequence[Upstream], retries: int
    ) -> list[AttemptResult]:
        """Call an upstream, and a second one meanwhile if the call is hedged. Only the first attempt is hedged."""
        hedging = None if retries or request.constraints.affinity is not None else self._hedging
        delay_s = None if hedging is None else hedging.delay_s(endpoint, request)
        if hedging is None or delay_s is None:
            return [AttemptResult(endpoint, await self._try_call(endpoint, request, tried, retries))]
        return await hedging.send_hedged(
            lambda endpoint, request: self._try_call(endpoint, request, tried, 0),
            endpoint,
            request,
            delay_s,
            # The next turn goes to the upstream of the first attempt: a hedge is usually cancelled.
            lambda others: self._pick(request, others, self._clock.monotonic(), remember=False),
        )

    def _pick_first(self, request: RequestContext, now: float) -> Upstream:
        """Choose the upstream of the first attempt. Raise `RateLimited` if none may be called."""
        single = self.single
        if single is not None and not single.retry_after_s(request, now):
            return single  # even if its breaker is open: there is no other upstream
        candidates = self._candidates(request)
        available = [endpoint for endpoint in candidates if not endpoint.retry_after_s(request, now)]
        if not available:
            soonest = min(endpoint.retry_after_s(request, now) for endpoint in candidates)
            self._telemetry.backend_requests.add(self.name, "rate_limited")
            raise RateLimited(f"backend '{self.name}' is at its rate limit", max(1, math.ceil(soonest)))
        available = [endpoint for endpoint in available if not endpoint.refuses(request, now)] or available
        pinned = request.constraints.pinned_upstream
        if pinned is not None:
            for endpoint in in_service(available, now):
                if endpoint.upstream.address == pinned:
                    return endpoint
        ready = [endpoint for endpoint in available if endpoint.breaker.ready(now)]
        probes = [endpoint for endpoint in ready if endpoint.breaker.state(now) is BreakerState.HALF_OPEN]
        if len(probes) < len(ready):
            due = [probe for probe in probes if self._calls >= probe.next_probe]
            probes = due if is_repeatable(request) else []
        if probes:  # otherwise a half-open upstream might never get a probe
            probes[0].next_probe = self._calls + PROBE_EVERY
            return probes[0]
        return self._pick(request, in_service(available, now), now)

    def _candidates(self, request: RequestContext) -> Sequence[Upstream]:
        """Return the upstreams that may be called: the maker of a resource that the request names, otherwise all.

        Another upstream would say that the resource does not exist, whatever the maker's own trouble is.
        """
        affinity = request.constraints.affinity
        if affinity is None or affinity.upstream is None:
            return self.endpoints
        return [each for each in self.endpoints if each.upstream.address == affinity.upstream] or self.endpoints

    def _pick_next(
        self, request: RequestContext, endpoint: Upstream, tried: Sequence[Upstream], retry_target: RetryTarget
    ) -> Upstream | None:
        if retry_target is RetryTarget.NOBODY:
            return None
        now = self._clock.monotonic()
        others = [
            other
            for other in self._candidates(request)
            if other not in tried
            and other.breaker.ready(now)
            and not other.retry_after_s(request, now)
            and not other.refuses(request, now)
        ]
        if others:
            return self._pick(request, in_service(others, now), now)
        return endpoint if retry_target is RetryTarget.ANYBODY and not endpoint.retry_after_s(request, now) else None

    def _pick(
        self, request: RequestContext, endpoints: Sequence[Upstream], now: float, *, remember: bool = True
    ) -> Upstream:
        """Choose one of `endpoints`. With `remember`, later prompts with the same prefix prefer it."""
        call, prefixes = request.call, self._prefixes
        if call is not None and prefixes is not None:
            candidates = [
                LoadCandidate(each.upstream.address, each.calls_ahead, each.upstream.weight) for each in endpoints
            ]
            warm = prefixes.pick(
                call, request.client.tenant, candidates, request.constraints.preferred_upstream, remember=remember
            )
            if warm is not None:
                index, outcome = warm
                if remember:
                    self._telemetry.prefix_picks.add(self.name, outcome)
                return endpoints[index]
        return endpoints[0] if len(endpoints) == 1 else self._pick_by_load(request, endpoints, now)

    def _pick_by_load(self, request: RequestContext, endpoints: Sequence[Upstream], now: float) -> Upstream:
        paces = [endpoint.pace_of(request.call) for endpoint in endpoints]
        best = min((p.seconds for p in paces if p is not None and p.seconds is not None), default=UNKNOWN_S)
        expected = [best if pace is None else pace.expected(best, now) for pace in paces]
        candidates = [
            LoadCandidate(
                endpoint.upstream.address,
                endpoint.calls_ahead,
                endpoint.upstream.weight,
                seconds * kv_factor(endpoint.server_load.kv_cache),
            )
            for endpoint, seconds in zip(endpoints, expected, strict=True)
        ]
        key = sticky_key(request.call, request.client.tenant, self._rules.sticky) if request.call is not None else None
        return endpoints[pick(candidates, self._rng, key=key, preferred=request.constraints.preferred_upstream)]

    def _retry_target(self, attempt: AttemptResult, request: RequestContext) -> RetryTarget:
        endpoint, outcome, now = attempt.endpoint, attempt.outcome, self._clock.monotonic()
        refusal = refused(outcome, is_read=request.call is not None) if isinstance(outcome, Response) else None
        if refusal is not None and isinstance(outcome, Response):
            if self._on_refusal(endpoint, request, refusal, outcome.status, now):
                attempt.outcome = outcome = replace(outcome, refused=True)
                return RetryTarget.OTHERS if is_repeatable(request, answered=True) else RetryTarget.NOBODY
            return RetryTarget.NOBODY if outcome.status != TOO_MANY else retry_target(outcome, request, waits=True)
        return retry_target(outcome, request, waits=endpoint.retry_after_s(request, now) > 0)

    def _on_refusal(
        self, endpoint: Upstream, request: RequestContext, refusal: Refused, status: int, now: float
    ) -> bool:
        """Prefer other upstreams for such calls for a while.

        Return whether the refusal is the upstream's fault. With the client's credentials it is the client's.
        """
        own = endpoint.upstream.own_account
        blamed = own and not names_caller(request.headers)  # otherwise it may be about this client alone
        scope = "" if refusal is Refused.KEY else endpoint.scope_of(request)
        if blamed and refusal is Refused.KEY:
            endpoint.breaker.eject(now)
        else:
            endpoint.refusals.add("" if blamed else request.client.tenant, now + REFUSED_S, scope)
        if not own:
            return False
        if blamed:
            endpoint.refusal = Refusal(refusal, status, scope, now)
        fields = {**request.log_fields, "backend": self.name, "upstream": endpoint.upstream.address, "status": status}
        LOG.warning("the upstream refuses the gateway's calls", extra={"fields": {**fields, "refused": str(refusal)}})
        return True

    def _pause_s(self, request: RequestContext, retries: int, outcome: Outcome) -> float | None:
        """Return the seconds to wait before the next attempt, or None if there is none."""
        if retries + 1 >= self._rules.attempts:
            return None
        now, until = self._clock.monotonic(), min(request.due, request.calls.due)
        given_up = isinstance(outcome, AttemptTimedOut)  # `_call_with_timeout` has reserved its retry
        pause_s = 0.0 if given_up else backoff_s(retries, self._rng())
        if now + pause_s >= until:
            self._telemetry.retries.add(self.name, "deadline")
            return None
        if not given_up and not self.budget.is_available(now):
            self._telemetry.retries.add(self.name, "budget")
            return None
        self.budget.spend(now)
        return pause_s

    def _attempt_timeout_s(
        self, request: RequestContext, tried: Collection[Upstream], retries: int, now: float
    ) -> float | None:
        """Return the time to first byte that the last one of `tried` is allowed, or None if only its own timeouts
        apply."""
        until = request.due
        if math.isinf(until) or until <= now or retries + 1 >= self._rules.attempts:
            return None
        if not is_repeatable(request) or not self.budget.is_available(now):
            return None
        others = [
            endpoint
            for endpoint in self._candidates(request)
            if endpoint not in tried
            and endpoint.breaker.state(now) is BreakerState.CLOSED
            and not endpoint.retry_after_s(request, now)
            and not endpoint.refuses(request, now)
        ]
        if not others:
            return None
        paces = [pace.seconds for endpoint in others if (pace := endpoint.pace_of(request.call)) is not None]
        return attempt_timeout_s(until - now, min((seconds for seconds in paces if seconds is not None), default=None))

    def _log_retry(self, request: RequestContext, endpoint: Upstream, outcome: Outcome) -> None:
        why = f"status {outcome.status}" if isinstance(outcome, Response) else str(outcome)
        fields = {**request.log_fields, "backend": self.name, "upstream": endpoint.upstream.address, "error": why}
        for name, value in outcome.headers:  # of the response, or of the error that a response became
            if name is UPSTREAM_REQUEST_ID:
                fields["upstream_request_id"] = value
        LOG.warning("retrying the call", extra={"fields": fields})
