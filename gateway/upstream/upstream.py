"""One upstream with what is known of how it fares: what it takes, and whether it fails."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from types import TracebackType

from gateway.circuit_breaker import BreakerState, CircuitBreaker
from gateway.context import Backend, RequestContext
from gateway.dialects.model_names import ModelNames
from gateway.errors import (
    AttemptTimedOut,
    BackendError,
    BackendOverloaded,
    ModelNotReady,
    UnsupportedByBackend,
    UpstreamStreamError,
)
from gateway.latency_forecast import Prediction
from gateway.messages import Call, Event, EventStream, FullBody, Response
from gateway.observability.metrics import MetricBundle
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, HostedModels
from gateway.streams import StreamObserver, tapped, with_end
from gateway.tracing import BROKEN, UpstreamCall
from gateway.upstream.backoff import UpstreamBackoff, limits_in, wait_s
from gateway.upstream.latency import CallFeatures, LazyLatencyBook
from gateway.upstream.load_balancer import PeakEwma
from gateway.upstream.outlier_detection import Record
from gateway.upstream.retry import failed

FAILURES, COOLDOWN_S, LONGEST_COOLDOWN_S = 5, 5.0, 60.0
CHARACTERS_PER_TOKEN = 4  # of English, by the usual rule of thumb
# Nothing recent is known, and a call is on its way that will tell: more of them would be asked in the dark.
UNTOLD = Prediction(math.inf, math.inf, math.inf)


def asked_of(call: Call | None, route: str) -> CallFeatures | None:
    """What is known of a call before it is sent; None where its latency says nothing of others'."""
    if call is None or call.operation == "embeddings":
        return None
    return CallFeatures(call.stream, len(call.prompt) / CHARACTERS_PER_TOKEN, call.max_tokens, route)


class UpstreamState(IntEnum):
    """The value is that of the metric `nearhit_upstream_state`; the first three are those of its breaker."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2
    WAITS = 3  # it said when it wants to be asked again


@dataclass(frozen=True, slots=True)
class UpstreamConfig:
    """One address of a backend."""

    backend: Backend
    address: str
    weight: float = 1.0  # its part of the calls, against the others'
    hosted: HostedModels | None = None  # where it says how its models are
    provider: str = ""  # the backend's `adapter`
    models: ModelNames | None = None  # under which names it is asked; None: as the client said them
    own_account: bool = True  # it is shown the gateway's credentials, or none: its limits are for all clients together


class Upstream:
    """All routes share it: what one of them learns of an upstream holds for the others."""

    def __init__(self, upstream: UpstreamConfig, clock: Clock, telemetry: Telemetry) -> None:
        self.upstream = upstream
        self.backend = upstream.backend
        self.latency = LazyLatencyBook()
        self.breaker = CircuitBreaker(FAILURES, COOLDOWN_S, LONGEST_COOLDOWN_S)
        self.record = Record()
        self.load = 0  # calls that are not over: on their way, or waiting for a place at the gate
        self.telling = 0  # those of them from which latencies are learnt
        self.waits = UpstreamBackoff()
        self.opened: Callable[[], None] = lambda: None  # told when the breaker opens
        self._paces: dict[tuple[str, bool], PeakEwma] = {}  # by what calls have in common: embeddings are no chats
        self.clock = clock
        self.telemetry = telemetry
        self.compared = False  # its failures are, with those of its backend's other upstreams
        # Books a call from here on: to be used as a context manager around the call.
        self.attempt: Callable[[RequestContext], Attempt] = partial(Attempt, self)
        self._answers: dict[tuple[int, bool], MetricBundle] = {}  # by status, and whether the answer came at once
        self.heeded: Sequence[tuple[str, str]] | None = None  # the last headers that said nothing of limits

    def pace_of(self, call: Call | None) -> PeakEwma | None:
        """Of calls like this one; None where they cannot be compared. Dialects have a handful of operations."""
        return None if call is None else self.pace_of_kind((call.operation, call.stream))

    def pace_of_kind(self, kind: tuple[str, bool]) -> PeakEwma:
        pace = self._paces.get(kind)
        if pace is None:
            pace = self._paces[kind] = PeakEwma()
        return pace

    def slowest_s(self) -> float | None:
        """What the slowest kind of call takes. None: nothing is known yet."""
        return max((s for pace in self._paces.values() if (s := pace.seconds) is not None), default=None)

    def told_to_wait_s(self, tenant: str | None, now: float) -> float:
        """For how long the upstream wants to be left alone, with this tenant's credentials; 0: it may be asked. None:
        whoever asks."""
        return self.waits.left_s("" if tenant is None else tenant, now)

    def state(self, now: float) -> UpstreamState:
        """As far as it is the same for all who ask."""
        waits = self.told_to_wait_s(None, now) > 0
        return UpstreamState.WAITS if waits else UpstreamState(self.breaker.state(now))

    def predict(self, asked: CallFeatures, now: float, confidence: float) -> Prediction | None:
        """What it would take now. None while nothing recent is known, `UNTOLD` while somebody is finding out."""
        known = self.latency.predict(asked, load=self.load, now=now, confidence=confidence)
        return UNTOLD if known is None and self.telling > 0 else known

    def heed(self, tenant: str, status: int, headers: Sequence[tuple[str, str]], now: float) -> None:
        """What an answer says of the limits of an account: they are of that account. What an upstream cannot do at all
        (503) is the same for all."""
        limits = limits_in(headers)
        seconds = wait_s(status, limits, self.clock.wall()) if limits else 0.0
        self.heeded = None if limits else headers
        if seconds > 0:
            account = "" if self.upstream.own_account or status == 503 else tenant
            self.waits.add(account, now + seconds)

    def count(self, status: int, seconds: float, *, whole: bool) -> None:
        """An answer has begun, `seconds` after the call; `whole`: it was over with that."""
        tally = self._answers.get((status, whole))
        if tally is None:
            name, telemetry = self.backend.name, self.telemetry
            times = [(telemetry.backend_ttft_seconds, (name,))]
            if whole:
                times.append((telemetry.backend_seconds, (name,)))
            tally = self._answers[status, whole] = MetricBundle(
                [(telemetry.backend_requests, (name, str(status)))], [times]
            )
        tally.add(seconds)

    async def call(self, request: RequestContext, timeout_s: float | None = None) -> Response:
        """Sends the call. Raises `BackendError` where it fails before its first byte, `AttemptTimedOut` where that takes longer
        than `timeout_s`."""
        with self.attempt(request) as attempt:
            answer = self.backend.send(request)
            return attempt.answered(await (answer if timeout_s is None else self._within(answer, timeout_s)))

    async def _within(self, answer: Awaitable[Response], timeout_s: float) -> Response:
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise AttemptTimedOut(f"backend '{self.backend.name}' took too long for the request's deadline") from None


class Attempt:
    """One call to an upstream, from before it is sent to its last byte: what it tells of latencies, of the upstream's
    health and of the load on it. It ends with `answered`, whose body then tells its end, or with `failed`."""

    __slots__ = ("_lane", "_load", "_pace", "_request", "_settled", "_tells", "at", "first", "span")

    def __init__(self, lane: Upstream, request: RequestContext) -> None:
        call = request.call
        self._lane = lane
        self._request = request
        self._tells = call is not None and call.operation != "embeddings"  # latencies are learnt from it
        self._pace = None if call is None else lane.pace_of_kind((call.operation, call.stream))
        self._load = lane.load  # calls ahead of it
        self._settled = False  # whether latencies have been learnt from it, or cannot be
        self.at = lane.clock.monotonic()
        self.first: float | None = None  # when its first byte came
        self.span: UpstreamCall | None = (
            None if request.traced is None else upstream_span(request, lane.upstream, self.at)
        )
        lane.load += 1
        if self._tells:
            lane.telling += 1

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Before the first byte."""
        lane = self._lane
        self._request.since("upstream", self.at)
        if isinstance(error, BackendError):
            if failed(error):
                self._judge(lane.clock.monotonic(), ok=False)
            if isinstance(error, ModelNotReady):
                lane.breaker.eject(lane.clock.monotonic())
            lane.telemetry.backend_requests.add(lane.backend.name, outcome_of(error))
        late = isinstance(error, BackendError) and error.status == 504
        self._settled = not (late or isinstance(error, asyncio.CancelledError))
        if self.span is not None:
            self.span.error = outcome_of(error)
        self._over()

    def answered(self, response: Response) -> Response:
        """With the first byte, which of a short answer is the last one too. -> the answer, whose body tells its end."""
        lane, body, status, request = self._lane, response.body, response.status, self._request
        self.first = now = request.since("upstream", self.at)
        whole = isinstance(body, FullBody)
        lane.count(status, now - self.at, whole=whole)
        if status >= 500 or lane.compared or lane.breaker.failures:
            self._judge(now, ok=status < 500)
        if response.headers is not lane.heeded:
            lane.heed(request.tenant, status, response.headers, now)
        if self.span is not None:
            self.span.answered(now, response)
        if self._pace is not None and status < 400:
            self._pace.observe(now - self.at, now)
        if whole:
            self._settled = True
            if self._tells and status == 200 and lane.latency.wants(now):
                self._learn(now, now, pieces=0)
            self._over()
            return response
        if isinstance(body, EventStream):
            body = EventStream(tapped(body.events, self._timing(now)))
            response = Response(status, response.headers, body, response.provenance)
        else:
            self._settled = True
        return with_end(response, self._over)

    def _judge(self, now: float, *, ok: bool) -> None:
        """What this says of the upstream's health."""
        lane = self._lane
        if lane.compared:
            lane.record.add(ok=ok, now=now)
        if ok:
            lane.breaker.succeeded(asked_at=self.at)
            return
        before = lane.breaker.state(now)
        lane.breaker.failed(now, asked_at=self.at)
        if before is BreakerState.CLOSED and lane.breaker.state(now) is not BreakerState.CLOSED:
            lane.opened()

    def _timing(self, first: float) -> StreamObserver[Event]:
        pieces, span = 0, self.span

        def saw(events: Sequence[Event]) -> Sequence[Event]:
            nonlocal pieces
            pieces += len(events)
            if span is not None:
                for event in events:
                    span.saw(event.data)
            return events

        def ended() -> None:
            now = self._lane.clock.monotonic()
            self._lane.telemetry.backend_seconds.observe(now - self.at, self._lane.backend.name)
            self._settled = True
            if self._tells and self._lane.latency.wants(now):
                self._learn(first, now, pieces=pieces)

        def broke(error: UpstreamStreamError) -> None:
            self._settled = True  # that says nothing of how long it would have taken
            if span is not None:
                span.error = outcome_of(error)

        return StreamObserver(saw, ended, broke)

    def _learn(self, first: float, now: float, *, pieces: int) -> None:
        """With its last byte. `pieces`: events of a stream; models send a token in each, or nearly."""
        features, streamed = asked_of(self._request.call, self._request.route), pieces > 0
        assert features is not None  # as it tells
        self._lane.latency.observe(
            features if features.stream is streamed else features._replace(stream=streamed),
            load=self._load,
            ttft_s=first - self.at,
            total_s=now - self.at,
            output_tokens=pieces,
            now=now,
        )

    def _over(self) -> None:
        """However it ended. What was given up before its end, by its client or by a timeout, took longer than that."""
        lane, request = self._lane, self._request
        lane.load -= 1
        if self._tells:
            lane.telling -= 1
        if self._settled and self.span is None and self.first is not None:
            return
        now = lane.clock.monotonic()
        if self.span is not None and request.traced is not None:
            self.span.over = now
            request.traced.ended(self.span)
        if self.first is None and self._pace is not None:
            self._pace.outlasted(now - self.at, now)
        features = None if self._settled else asked_of(request.call, request.route)
        if features is not None:
            first = None if self.first is None else self.first - self.at
            lane.latency.outlasted(features, load=self._load, seconds=now - self.at, now=now, ttft_s=first)


def upstream_span(request: RequestContext, upstream: UpstreamConfig, at: float) -> UpstreamCall:
    """The span of a call that is sent `at`, and the parent of what the upstream traces."""
    call, before = request.call, request.upstream_call
    sent = None if call is None or upstream.models is None else upstream.models.sent_for(call.model)
    request.upstream_call = span = UpstreamCall(
        backend=upstream.backend.name,
        provider=upstream.provider,
        address=upstream.address,
        model="" if call is None else sent or call.model,
        call=call,
        attempt=1 if before is None else before.attempt + 1,
        purpose=request.purpose,
        started=at,
    )
    return span


def outcome_of(error: BaseException) -> str:
    """The label `outcome` of a call that gave no whole answer, and its `error.type`."""
    if isinstance(error, BackendOverloaded):
        return "full"
    if isinstance(error, AttemptTimedOut):
        return "given_up"
    if isinstance(error, UnsupportedByBackend):
        return "unfit"
    if isinstance(error, BackendError):
        return "timeout" if error.status == 504 else "error"
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return "cancelled"
    return BROKEN if isinstance(error, UpstreamStreamError) else "error"


def in_service(lanes: Sequence[Upstream], now: float) -> Sequence[Upstream]:
    """Those whose breaker is closed; where none is, those that may be probed; else all: somebody has to answer."""
    closed = [lane for lane in lanes if lane.breaker.state(now) is BreakerState.CLOSED]
    return closed or [lane for lane in lanes if lane.breaker.ready(now)] or lanes
