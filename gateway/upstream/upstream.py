"""One upstream of a backend, with its latency, health and load."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gateway.calls import Call
from gateway.circuit_breaker import BreakerState, CircuitBreaker
from gateway.context import Backend, RequestContext
from gateway.dialects.model_names import ModelNames
from gateway.dialects.prompt_tokens import NO_TOKENS, PromptTokens, prompt_tokens
from gateway.errors import (
    AttemptTimedOut,
    BackendError,
    BackendOverloaded,
    ModelNotReady,
    UnsupportedByBackend,
    UpstreamStreamError,
)
from gateway.latency_forecast import Prediction
from gateway.messages import Event, EventStream, FullBody, Response
from gateway.observability.metrics import MetricBundle
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, ModelCondition
from gateway.statuses import is_failure, is_overload
from gateway.streams import StreamObserver, with_completion, with_observer
from gateway.tracing import BROKEN, UpstreamCall
from gateway.upstream.backoff import UpstreamBackoff, bounded_scope, rate_limit_headers, retry_delay_s
from gateway.upstream.latency import CallFeatures, LazyLatencyBook
from gateway.upstream.load_balancer import PeakEwma
from gateway.upstream.outlier_detection import Record, Suspicion
from gateway.upstream.refusals import OF_CLIENT, Refusal, names_caller
from gateway.upstream.retry import failed
from gateway.upstream.usable import MAX_DOUBTED_EVENTS, is_success, is_usable, is_usable_stream

if TYPE_CHECKING:  # features bring them
    from gateway.upstream.model_versions import ModelVersions

FAILURES, COOLDOWN_S, MAX_COOLDOWN_S = 5, 5.0, 60.0
CHARACTERS_PER_TOKEN = 4  # for English, the usual rule of thumb
# Nothing recent is known, but a call is in flight that will provide a measurement. More calls would be blind.
PENDING_PREDICTION = Prediction(math.inf, math.inf, math.inf)


def call_features(call: Call | None, route: str) -> CallFeatures | None:
    """Return what is known of a call before it is sent; None if its latency says nothing about other calls."""
    if call is None or call.embeds or call.passes:
        return None
    if call.tuning:
        route = route_of_features(route, call.tuning)
    return CallFeatures(call.stream, len(call.prompt) / CHARACTERS_PER_TOKEN, call.max_tokens, route)


def route_of_features(route: str, tuning: str) -> str:
    """Return the kind of calls whose latency is learnt apart: those of a route, with the parameters of a tier."""
    return f"{route} {tuning}"


class UpstreamState(IntEnum):
    """The state of an upstream, as in the metric `nearhit_upstream_state`. The first three are those of its breaker."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2
    WAITS = 3  # it said when it accepts calls again


@dataclass(frozen=True, slots=True)
class ServerLoad:
    """`ServerLoad` holds facts from a server's metrics that the gateway cannot know itself, and None for each that
    it does not report."""

    queued_elsewhere: int = 0  # calls of other clients at the server: those that wait, and those of its batch
    gpu_utilization: float | None = None  # of its busiest GPU, in [0, 1]
    gpu_memory_bytes: float | None = None  # used, of all its GPUs together
    kv_cache: float | None = None  # share in use, in [0, 1]


UpstreamTask = Callable[["Upstream"], Coroutine[Any, Any, None]]
"""Work in the background for an upstream, such as reading the metrics of its server."""


@dataclass(frozen=True, slots=True)
class UpstreamConfig:
    """`UpstreamConfig` describes one address of a backend."""

    backend: Backend
    address: str
    weight: float = 1.0  # its share of the calls, relative to the others
    conditions: Mapping[str, ModelCondition] = field(default_factory=dict)  # of its models, if the server reports them
    provider: str = ""  # the backend's `adapter`
    models: ModelNames | None = None  # maps model names; None: the clients' names are sent
    own_account: bool = True  # it gets the gateway's credentials or none, so its limits cover all clients together
    tasks: Sequence[UpstreamTask] = ()  # they run as long as the gateway does
    versions: ModelVersions | None = None  # of its model, if the server has them and calls can name one


class Upstream:
    """`Upstream` is the state of one upstream. All routes share it, so what one route learns serves the others."""

    def __init__(self, upstream: UpstreamConfig, clock: Clock, telemetry: Telemetry) -> None:
        self.upstream = upstream
        self.backend = upstream.backend
        self.latency = LazyLatencyBook()
        self.breaker = CircuitBreaker(FAILURES, COOLDOWN_S, MAX_COOLDOWN_S)
        self.record = Record()
        self.load = 0  # unfinished calls: in flight, or waiting for a permit
        self.observed_load = 0  # those of them whose latency is observed
        self.server_load = ServerLoad()
        self.waits = UpstreamBackoff()
        self.refusals = UpstreamBackoff()  # of accounts and models, for which other upstreams are preferred
        self.suspicion = Suspicion()
        self.refusal: Refusal | None = None  # the last one of the gateway's own credentials, or of a model with them
        self.next_probe = 0  # the number of the backend's call from which on it may be probed, if it is out of service
        self.on_doubt: Callable[[], None] = lambda: None  # called after an answer of no use
        self.on_breaker_open: Callable[[], None] = lambda: None  # called when the breaker opens
        # by operation and stream, because embeddings are unlike chats
        self._paces: dict[tuple[str, bool], PeakEwma] = {}
        self.clock = clock
        self.telemetry = telemetry
        self.counts_input = False  # the input tokens of its answers are counted
        self.is_compared = False  # its failures are compared with those of the backend's other upstreams
        # Records a call; use it as a context manager around the call.
        self.attempt: Callable[[RequestContext], Attempt] = partial(Attempt, self)
        self._answers: dict[tuple[int, bool], MetricBundle] = {}  # by status, and whether the response came complete
        self.unlimited_headers: Sequence[tuple[str, str]] | None = None  # the last headers without rate limits

    def pace_of(self, call: Call | None) -> PeakEwma | None:
        """Return the peak EWMA of similar calls; None if they cannot be compared. There are few kinds of calls."""
        return None if call is None else self.pace_of_kind((call.operation, call.stream))

    def pace_of_kind(self, kind: tuple[str, bool]) -> PeakEwma:
        pace = self._paces.get(kind)
        if pace is None:
            pace = self._paces[kind] = PeakEwma()
        return pace

    def slowest_s(self) -> float | None:
        """Return the seconds that the slowest kind of call takes, or None if nothing is known yet."""
        return max((s for pace in self._paces.values() if (s := pace.seconds) is not None), default=None)

    def retry_after_s(self, request: RequestContext | None, now: float) -> float:
        """Return the seconds that the upstream wants no such calls: 0 if they are allowed.

        With None, the longest pause of some model or path counts, if it holds for all tenants.
        """
        waits = self.waits
        if not waits.until:  # the common case
            return 0.0
        return (
            waits.longest_s(now)
            if request is None
            else waits.remaining_s(request.client.tenant, now, self.scope_of(request))
        )

    def scope_of(self, request: RequestContext) -> str:
        """Return what the limits and refusals of a response concern, unless it says more: the model, or the path."""
        call, models = request.call, self.upstream.models
        if call is None:
            return bounded_scope(f"path {request.path}")
        return bounded_scope(f"model {(None if models is None else models.upstream_name(call.model)) or call.model}")

    def refuses(self, request: RequestContext, now: float) -> bool:
        """Return whether the upstream has lately refused such calls, so that another one is preferred."""
        refusals = self.refusals
        return bool(refusals.until) and refusals.remaining_s(request.client.tenant, now, self.scope_of(request)) > 0.0

    def state(self, now: float) -> UpstreamState:
        """Return the state, as far as it is the same for all tenants."""
        waits = self.retry_after_s(None, now) > 0
        return UpstreamState.WAITS if waits else UpstreamState(self.breaker.state(now))

    @property
    def calls_ahead(self) -> int:
        """The unfinished calls of this gateway, and those of others at the server."""
        return self.load + self.server_load.queued_elsewhere

    def predict(self, features: CallFeatures, now: float, confidence: float) -> Prediction | None:
        """Predict the latency of a call now.

        The result is None while nothing recent is known, and `PENDING_PREDICTION` while a call in flight is measuring
        it.
        """
        known = self.latency.predict(features, load=self.calls_ahead, now=now, confidence=confidence)
        return PENDING_PREDICTION if known is None and self.observed_load > 0 else known

    def record_rate_limits(
        self, request: RequestContext, status: int, headers: Sequence[tuple[str, str]], now: float
    ) -> None:
        """Record the rate limits in a response's headers, for the account that they belong to.

        A limit holds for the model or the path of its response: providers count each model apart. A 503 or 529 concerns
        all accounts and everything.
        """
        limits = rate_limit_headers(headers)
        seconds = retry_delay_s(status, limits, self.clock.wall()) if limits else 0.0
        self.unlimited_headers = None if limits else headers
        if seconds > 0:
            everything = is_overload(status)
            account = "" if self.upstream.own_account or everything else request.client.tenant
            self.waits.add(account, now + seconds, "" if everything else self.scope_of(request))

    def count(self, status: int, seconds: float, *, whole: bool) -> None:
        """Count a response that began `seconds` after the call. A `whole` one was complete by then."""
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

    def count_input(self, tokens: PromptTokens) -> None:
        """Count the input tokens of one answer."""
        name, counter = self.backend.name, self.telemetry.input_tokens
        counter.add(name, "cached", amount=tokens.cached)
        counter.add(name, "uncached", amount=tokens.total - tokens.cached)

    async def call(self, request: RequestContext, timeout_s: float | None = None) -> Response:
        """Send the call. Raise `BackendError` if it fails before the first byte.

        Raise `AttemptTimedOut` if the first byte takes longer than `timeout_s`.
        """
        with self.attempt(request) as attempt:
            answer = self.backend.send(request)
            return attempt.track_response(await (answer if timeout_s is None else self._within(answer, timeout_s)))

    async def _within(self, answer: Awaitable[Response], timeout_s: float) -> Response:
        try:
            async with asyncio.timeout(timeout_s):
                return await answer
        except TimeoutError:
            raise AttemptTimedOut(f"backend '{self.backend.name}' took too long for the request's deadline") from None


class Attempt:
    """`Attempt` follows one call to an upstream from before it is sent to its last byte.

    It records latency, health and load. It ends with `track_response`, whose body then reports its end, or with
    `failed`.
    """

    __slots__ = (
        "_is_observed",
        "_latency_recorded",
        "_load",
        "_pace",
        "endpoint",
        "first",
        "request",
        "span",
        "started_at",
    )

    def __init__(self, endpoint: Upstream, request: RequestContext) -> None:
        call = request.call
        self.endpoint = endpoint
        self.request = request
        self._is_observed = call is not None and not (call.embeds or call.passes)  # its latency is observed
        self._pace = None if call is None else endpoint.pace_of_kind((call.operation, call.stream))
        # A call of the property would cost each request one.
        self._load = endpoint.load + endpoint.server_load.queued_elsewhere  # calls ahead of it
        self._latency_recorded = False  # its latency was recorded, or cannot be
        self.started_at = endpoint.clock.monotonic()
        self.first: float | None = None  # time of the first byte
        self.span: UpstreamCall | None = (
            None if request.traced is None else upstream_span(request, endpoint.upstream, self.started_at)
        )
        endpoint.load += 1
        if self._is_observed:
            endpoint.observed_load += 1

    def __enter__(self) -> Attempt:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            self.failed(error)

    def failed(self, error: BaseException) -> None:
        """Record a failure before the first byte."""
        endpoint = self.endpoint
        self.request.since("upstream", self.started_at)
        if isinstance(error, BackendError):
            if failed(error):
                self._record_outcome(endpoint.clock.monotonic(), failed=True, usable=False)
            if isinstance(error, ModelNotReady):
                endpoint.breaker.eject(endpoint.clock.monotonic())
            endpoint.telemetry.backend_requests.add(endpoint.backend.name, outcome_of(error))
        late = isinstance(error, BackendError) and error.status == 504
        self._latency_recorded = not (late or isinstance(error, asyncio.CancelledError))
        if self.span is not None:
            self.span.error = outcome_of(error)
        self._finish()

    def track_response(self, response: Response) -> Response:
        """Record the first byte, and return the response with a body that reports its end."""
        endpoint, body, status, request = self.endpoint, response.body, response.status, self.request
        self.first = now = request.since("upstream", self.started_at)
        whole = isinstance(body, FullBody)
        endpoint.count(status, now - self.started_at, whole=whole)
        if response.headers is not endpoint.unlimited_headers:
            endpoint.record_rate_limits(request, status, response.headers, now)
        if self.span is not None:
            self.span.record_response(now, response)
        if isinstance(body, FullBody):
            self._latency_recorded = True
            # Each question for an observation counts, so there is one.
            observed = self._is_observed and status == 200 and endpoint.latency.should_observe(now)
            usable = is_success(status) and (not (observed or endpoint.is_compared) or self._is_usable(body.data))
            self._conclude(now, status, usable=usable)
            if endpoint.counts_input and status == 200:
                endpoint.count_input(prompt_tokens(body.data))
            if observed and usable:
                self._record_latency(now, now, pieces=0)
            self._finish()
            return response
        if isinstance(body, EventStream):
            if self._pace is not None:  # a slow beginning counts at once, a fast one once the stream was of use
                self._pace.observe_censored(now - self.started_at, now)
            body = EventStream(with_observer(body.events, _StreamWatch(self, now).observer))
            response = Response(status, response.headers, body, response.provenance)
        else:
            self._latency_recorded = True
            self._conclude(now, status, usable=is_success(status))
        return with_completion(response, self._finish)

    def _is_usable(self, data: bytes) -> bool:
        """Return whether a whole answer with a good status is of use."""
        call = self.request.call
        return call is None or is_usable(call, data)

    def _conclude(self, now: float, status: int, *, usable: bool) -> None:
        """Record an answer for the upstream's pace and health. `now` is the time of its first byte, or of its end."""
        endpoint, pace = self.endpoint, self._pace
        if pace is not None and self.first is not None:
            if usable:
                pace.observe(self.first - self.started_at, now)
            else:
                pace.doubt(now)
        if 400 <= status < 500 and self._is_of_caller(status):
            return
        if not usable or endpoint.is_compared or endpoint.breaker.failures:
            # An upstream that is out of service stays so after another answer of no use.
            stays_out = not usable and (endpoint.is_compared or status in OF_CLIENT)
            failed = is_failure(status) or (stays_out and endpoint.breaker.state(now) is not BreakerState.CLOSED)
            self._record_outcome(now, failed=failed, usable=usable)

    def _is_of_caller(self, status: int) -> bool:
        """Return whether a client's error says nothing about the upstream.

        It is then about the client's own credentials, or about a resource that no other upstream has.
        """
        request, own = self.request, self.endpoint.upstream.own_account
        if status in OF_CLIENT and (not own or names_caller(request.headers)):
            return True
        return request.constraints.affinity is not None

    def _record_outcome(self, now: float, *, failed: bool, usable: bool) -> None:
        """Record the outcome for the upstream's health. If it has `failed`, the upstream is at fault."""
        endpoint = self.endpoint
        breaker, previous = endpoint.breaker, endpoint.breaker.state(now)
        if endpoint.is_compared:
            endpoint.record.add(ok=usable, now=now)
            if usable:
                endpoint.suspicion.relieve()
        if failed:
            breaker.failed(now, sent_at=self.started_at)
            if previous is BreakerState.CLOSED and breaker.state(now) is not BreakerState.CLOSED:
                endpoint.on_breaker_open()
        else:
            breaker.succeeded(sent_at=self.started_at)
        if endpoint.is_compared and not usable:
            endpoint.on_doubt()

    def end_stream(self, first: float, now: float, *, pieces: int, usable: bool) -> None:
        """Record the end of a stream of `pieces` events."""
        self._latency_recorded = True
        self._conclude(now, 200, usable=usable)
        if usable and self._is_observed and self.endpoint.latency.should_observe(now):
            self._record_latency(first, now, pieces=pieces)

    def break_stream(self) -> None:
        """Record that a stream broke off."""
        self._latency_recorded = True  # the error says nothing about the full duration
        now = self.endpoint.clock.monotonic()
        if self._pace is not None:
            self._pace.doubt(now)
        self._record_outcome(now, failed=True, usable=False)

    def leave_stream(self) -> None:
        """Record that the client has left a stream that was good so far."""
        self._conclude(self.endpoint.clock.monotonic(), 200, usable=True)

    def _record_latency(self, first: float, now: float, *, pieces: int) -> None:
        """Record the latency at the last byte. `pieces` counts the events of a stream: about one a token."""
        features, streamed = call_features(self.request.call, self.request.route), pieces > 0
        assert features is not None  # only observed calls get here
        self.endpoint.latency.observe(
            features if features.stream is streamed else features._replace(stream=streamed),
            load=self._load,
            ttft_s=first - self.started_at,
            total_s=now - self.started_at,
            output_tokens=pieces,
            now=now,
        )

    def _finish(self) -> None:
        """End the attempt. If it was abandoned by its client or a timeout, its latency counts as a lower bound."""
        endpoint, request = self.endpoint, self.request
        endpoint.load -= 1
        if self._is_observed:
            endpoint.observed_load -= 1
        if self._latency_recorded and self.span is None and self.first is not None:
            return
        now = endpoint.clock.monotonic()
        if self.span is not None and request.traced is not None:
            self.span.ended = now
            request.traced.record_call(self.span)
        if self.first is None and self._pace is not None:
            self._pace.observe_censored(now - self.started_at, now)
        features = None if self._latency_recorded else call_features(request.call, request.route)
        if features is not None:
            first = None if self.first is None else self.first - self.started_at
            endpoint.latency.observe_censored(
                features, load=self._load, seconds=now - self.started_at, now=now, ttft_s=first
            )


class _StreamWatch:
    """`_StreamWatch` follows the events of one answer for its `Attempt`. `first` is the time of the first byte."""

    __slots__ = ("_attempt", "_first", "_is_over", "_opening", "_pieces", "_tokens", "observer")

    def __init__(self, attempt: Attempt, first: float) -> None:
        self._attempt = attempt
        self._first = first
        self._pieces = 0
        self._opening: list[bytes] = []  # the data of the first events
        self._tokens = NO_TOKENS
        self._is_over = False
        self.observer = StreamObserver(self._saw, self._on_end, self._on_error, self._on_close)

    def _saw(self, events: Sequence[Event]) -> Sequence[Event]:
        attempt, span = self._attempt, self._attempt.span
        if self._pieces < MAX_DOUBTED_EVENTS:
            self._opening.extend(event.data for event in events)
        self._pieces += len(events)
        if attempt.endpoint.counts_input:
            for event in events:
                self._tokens = self._tokens.merged(prompt_tokens(event.data))
        if span is not None:
            for event in events:
                span.observe(event.data)
        return events

    def _on_end(self) -> None:
        self._is_over, attempt = True, self._attempt
        endpoint, call = attempt.endpoint, attempt.request.call
        now = endpoint.clock.monotonic()
        usable = self._pieces > MAX_DOUBTED_EVENTS or call is None or is_usable_stream(call, self._opening)
        endpoint.telemetry.backend_seconds.observe(now - attempt.started_at, endpoint.backend.name)
        if endpoint.counts_input:
            endpoint.count_input(self._tokens)
        attempt.end_stream(self._first, now, pieces=self._pieces, usable=usable)

    def _on_error(self, error: UpstreamStreamError) -> None:
        self._is_over, span = True, self._attempt.span
        self._attempt.break_stream()
        if span is not None:
            span.error = outcome_of(error)

    def _on_close(self) -> None:
        if self._pieces and not self._is_over:  # the client has left, and the stream was good so far
            self._attempt.leave_stream()


def upstream_span(request: RequestContext, upstream: UpstreamConfig, started_at: float) -> UpstreamCall:
    """Start the span of a call that is sent at `started_at`; it is the parent of the upstream's own spans."""
    call, previous = request.call, request.calls.last
    sent = None if call is None or call.passes or upstream.models is None else upstream.models.upstream_name(call.model)
    request.calls.last = span = UpstreamCall(
        backend=upstream.backend.name,
        provider=upstream.provider,
        address=upstream.address,
        model="" if call is None else sent or call.model,
        call=call,
        attempt=1 if previous is None else previous.attempt + 1,
        purpose=request.work.purpose,
        started=started_at,
    )
    return span


def outcome_of(error: BaseException) -> str:
    """Return the label `outcome` of a call without a complete response, which is also its `error.type`."""
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


def in_service(endpoints: Sequence[Upstream], now: float) -> Sequence[Upstream]:
    """Return the upstreams with a closed breaker; if there are none, those that may be probed; else all."""
    closed = [endpoint for endpoint in endpoints if endpoint.breaker.state(now) is BreakerState.CLOSED]
    return closed or [endpoint for endpoint in endpoints if endpoint.breaker.ready(now)] or endpoints
