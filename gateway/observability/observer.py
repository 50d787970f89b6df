"""Records every request: in metrics, the access log, the traffic log, live events and its trace."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Protocol

import orjson

from gateway.context import RequestContext
from gateway.messages import Provenance
from gateway.observability.access_log import AccessLog, AllSeries, LogShares, RequestSeries
from gateway.observability.live_events import LiveEvents
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Verdict
from gateway.ports import Clock
from gateway.tracing import TraceRecorder

if TYPE_CHECKING:
    from gateway.observability.sampler import Tracing
    from gateway.request_fields import TrafficNotes


NAME = "Observe"  # in `nearhit_step_failures_total`
CLIENT_CLOSED = 499  # nginx's status for a client that left before it got an answer


class TrafficRecorder(Protocol):
    """Records the outcome of a request in the traffic log: a `Recorder`."""

    def on_end(
        self, traffic: TrafficNotes, request: RequestContext, provenance: Provenance, *, status: int, seconds: float
    ) -> None: ...


class Observer:
    """Records the outcome of requests. `on_hit` receives the fingerprint of every hit. `shares` decides which requests
    get a line in the access log. Without `tracing` no request is traced."""

    def __init__(
        self,
        telemetry: Telemetry,
        clock: Clock,
        access_log: AccessLog | None,
        on_hit: Callable[[str], None],
        recorder: TrafficRecorder,
        decisions: LiveEvents,
        shares: LogShares,
        tracing: Tracing | None = None,
    ) -> None:
        self._recorder = recorder
        self._on_hit = on_hit
        self._decisions = decisions
        self._telemetry = telemetry
        self._clock = clock
        self._access_log = access_log
        self._shares = shares
        self._tracing = tracing
        # Begins or continues the trace of a request; None if no request is traced.
        self.start_trace: Callable[[RequestContext], None] | None = None if tracing is None else tracing.start_trace
        self._series = AllSeries(telemetry)
        self.ends: Mapping[str, Callable[[RequestContext, Provenance | None], None]] = {}
        """By route: what is told of its requests that are over."""

    def exports(self, request: RequestContext, status: int, seconds: float) -> bool:
        """Return whether the trace of a request that ends after `seconds` is exported."""
        traced, tracing = request.traced, self._tracing
        return traced is not None and tracing is not None and tracing.should_export(traced, status, seconds)

    def first_byte(self, request: RequestContext) -> None:
        """Record the start of an answer that ends later."""
        seconds = self._clock.monotonic() - request.received
        self._telemetry.overhead_seconds.observe(_overhead(request.timings, seconds))

    def on_end(self, request: RequestContext, status: int, provenance: Provenance | None) -> None:
        """Record a request whose last byte was sent, or whose client has left (`provenance` may then be None)."""
        series, seconds = self.series(request, status, provenance), self._clock.monotonic() - request.received
        series.tally.add(seconds, *request.timings.values())
        self._record(series, request, status, provenance, seconds)

    def whole(
        self, request: RequestContext, status: int, provenance: Provenance, series: RequestSeries | None = None
    ) -> None:
        """Record an answer that begins and ends at once. A caller that has the result of `series` passes it."""
        if series is None:
            series = self._series.of(request, status, provenance)
        seconds, timings = self._clock.monotonic() - request.received, request.timings
        spent = seconds if "upstream" not in timings and "wait" not in timings else _overhead(timings, seconds)
        series.whole_tally.add(spent, seconds, *timings.values())
        self._record(series, request, status, provenance, seconds)

    def series(self, request: RequestContext, status: int, provenance: Provenance | None) -> RequestSeries:
        """Return the series of requests with this outcome, for a caller of `whole` that has many of them."""
        return self._series.of(request, status, provenance)

    def _record(
        self,
        series: RequestSeries,
        request: RequestContext,
        status: int,
        provenance: Provenance | None,
        seconds: float,
    ) -> None:
        if provenance is not None:
            if provenance.fingerprint:
                self._on_hit(provenance.fingerprint)
            if provenance.saved_tokens or provenance.upstream_s:
                saved = provenance.saved_tokens, provenance.saved_dollars, provenance.upstream_s
                self._telemetry.record_savings(series.route, *saved)
            if request.traffic is not None:
                self._recorder.on_end(request.traffic, request, provenance, status=status, seconds=seconds)
        if self.ends and (told := self.ends.get(request.route)) is not None:
            self._tell(told, request, provenance)
        traced, tracing = request.traced, self._tracing
        if traced is not None and tracing is not None:
            if tracing.should_export(traced, status, seconds):
                self._export(traced, tracing, request, status, provenance, request.received + seconds)
            else:
                tracing.drop(traced)
        logged = self._access_log if self._shares.all or self._shares.is_logged(series.verdict, status) else None
        if logged is None and not self._decisions.watches:
            return
        line = series.line.of(request, provenance, self._clock.wall(), seconds)
        if logged is not None:
            logged.add(line)
        if self._decisions.watches:
            self._decisions.publish(orjson.loads(line))

    def _tell(
        self,
        told: Callable[[RequestContext, Provenance | None], None],
        request: RequestContext,
        provenance: Provenance | None,
    ) -> None:
        try:
            told(request, provenance)
        except Exception as error:
            self._telemetry.failures.record(NAME, error)

    def _export(
        self,
        traced: TraceRecorder,
        tracing: Tracing,
        request: RequestContext,
        status: int,
        provenance: Provenance | None,
        ended: float,
    ) -> None:
        seconds = ended - request.received
        tracing.end(traced, request, ended=ended, status=status, provenance=provenance)
        telemetry, wall, trace_id = self._telemetry, self._clock.wall(), traced.trace_id
        verdict = Verdict.MISS if provenance is None else provenance.verdict
        telemetry.request_seconds.exemplify(seconds, trace_id, wall, request.route, verdict)
        for step, spent in request.timings.items():
            telemetry.stage_seconds.exemplify(spent, trace_id, wall, step)


def _overhead(timings: Mapping[str, float], seconds: float) -> float:
    """Return the part of `seconds` that a request spent in the gateway, not at a backend."""
    return max(0.0, seconds - timings.get("upstream", 0.0) - timings.get("wait", 0.0))
