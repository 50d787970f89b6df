"""Promise latency budgets, and count the outcomes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from gateway.config.policy.model import Route
from gateway.context import RequestContext
from gateway.messages import Event, EventStream, FullBody, Response
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.streams import StreamObserver, with_observer

# The probability with which a backend must be predicted to be in time, so that promises are kept at the requested
# confidence.

# How far one promise moves the requirement: small steps adapt slowly and vary little. At a confidence of 0.95 one
# broken promise outweighs 19 kept ones.
STEP = 0.01

# A backend that is more likely late than in time is not chosen.
MIN_REQUIRED = 0.5

MAX_REQUIRED = 0.999


class Confidence:
    """Adaptive conformal inference (Gibbs and Candes 2021) over the promises of a route.

    If each answer met a bound of 95 %, more than 95 % of all promises would be kept, since most budgets are loose.
    Wrong predictions keep fewer. So the requirement per answer (`required`) falls while promises are kept and rises
    after a broken one. It settles where the share of kept promises equals the confidence.

    After T promises the share is off by at most 1 / (T * STEP), whatever the answers do, while `required` is within its
    bounds. At `MIN_REQUIRED` more promises are kept, at `MAX_REQUIRED` fewer.
    """

    __slots__ = ("adapts", "confidence", "required")

    def __init__(self, confidence: float, *, adapts: bool = True) -> None:
        self.confidence = confidence
        self.required = confidence
        self.adapts = adapts  # otherwise `required` stays at the confidence

    def record(self, *, kept: bool) -> None:
        """Record whether a promise was kept."""
        if not self.adapts:
            return
        step = STEP * ((1.0 - self.confidence) - (0.0 if kept else 1.0))
        self.required = min(MAX_REQUIRED, max(min(MIN_REQUIRED, self.confidence), self.required - step))


class Promises:
    """The requirements of all routes. They survive a reload of the policy."""

    def __init__(self, clock: Clock, telemetry: Telemetry) -> None:
        self._clock = clock
        self._telemetry = telemetry
        self._routes: dict[str, Confidence] = {}

    def confidence(self, route: Route) -> Confidence:
        """Return the requirement of a route. It starts again when the policy changes the confidence."""
        confidence, rule = self._routes.get(route.name), route.slo
        if confidence is None or confidence.confidence != rule.confidence or confidence.adapts == rule.per_request:
            confidence = self._routes[route.name] = Confidence(rule.confidence, adapts=not rule.per_request)
        return confidence

    def promise_for(self, request: RequestContext, route: Route, *, promised: bool) -> Promise | None:
        """Return the promise for a request; None where it has no budget."""
        if request.call is None or not request.has_budget:
            return None
        return Promise(request, self.confidence(route), self._clock, self._telemetry, promised=promised)

    def not_asked(self, route: Route, outcome: str) -> None:
        """Count a request that reached no backend: `refused` or `stale`."""
        self._telemetry.promises.add(route.name, outcome)


class Promise:
    """The budgets of one request, until its answer has ended.

    If `promised`, the backend was predicted to meet them. Otherwise the outcome is only counted.
    """

    def __init__(
        self, request: RequestContext, confidence: Confidence, clock: Clock, telemetry: Telemetry, *, promised: bool
    ) -> None:
        self._request = request
        self._confidence = confidence
        self._clock = clock
        self._telemetry = telemetry
        self._promised = promised
        self._is_counted = False

    def failed(self, error: BaseException) -> None:
        """Record that no answer came. A client that leaves counts only after its deadline."""
        if not isinstance(error, asyncio.CancelledError):
            self._count("failed")
        else:
            self._on_abandoned()

    def observe_response(self, response: Response, *, as_chosen: bool) -> Response:
        """Observe an answer. With `as_chosen` the predicted backend answers.

        If another one answers, the promise counts, but says nothing about the predictions.
        """
        body, now = response.body, self._clock.monotonic()
        if response.status >= 400:
            self._count("failed")
        elif isinstance(body, FullBody):
            self._report(self._in_time(now, now, 0), as_chosen)
        elif isinstance(body, EventStream):
            return replace(
                response, body=EventStream(with_observer(body.events, self._stream_observer(now, as_chosen)))
            )
        return response

    def _stream_observer(self, first: float, as_chosen: bool) -> StreamObserver[Event]:
        pieces = 0

        def on_events(events: Sequence[Event]) -> Sequence[Event]:
            nonlocal pieces
            pieces += len(events)
            return events

        def on_end() -> None:
            self._report(self._in_time(first, self._clock.monotonic(), pieces), as_chosen)

        return StreamObserver(on_events, on_end, on_close=self._on_abandoned)

    def _in_time(self, first: float, end: float, pieces: int) -> bool:
        whole, first_token, tpot_s = self._request.deadlines
        return (
            (whole is None or end <= whole)
            and (first_token is None or first <= first_token)
            and (tpot_s is None or (end - first) <= tpot_s * max(1, pieces))
        )

    def _on_abandoned(self) -> None:
        deadline = self._request.deadlines.whole
        if not self._is_counted and deadline is not None and self._clock.monotonic() > deadline:
            self._report(False, True)

    def _report(self, in_time: bool, as_chosen: bool) -> None:
        if not self._promised:
            self._count("in-time" if in_time else "late")
            return
        self._count("kept" if in_time else "broken")
        if as_chosen:
            self._confidence.record(kept=in_time)
            self._telemetry.required_confidence.set(self._request.route, value=self._confidence.required)

    def _count(self, outcome: str) -> None:
        self._is_counted = True
        self._telemetry.promises.add(self._request.route, outcome)
