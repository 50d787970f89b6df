"""What every request leaves behind: metrics and a line in the access log. The one place that both paths of an answer
come by, the stages and the front."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

import orjson

from gateway.cache.directives import NONE
from gateway.cache.freshness import freshness_of
from gateway.cache.hits import provenance_of
from gateway.cache.looked import Sought
from gateway.messages import Provenance, Verdict
from gateway.observing.access_log import AccessLog, LogShares, access_fields
from gateway.observing.decimals import IN_MS
from gateway.observing.decisions import Decisions
from gateway.observing.fetched import Kind as Missed
from gateway.observing.found import Found
from gateway.observing.metrics import bucket_of
from gateway.observing.relayed import Relayed
from gateway.observing.repeated import NO_LABELS, STAGE, Repeated
from gateway.observing.spans import root_of
from gateway.observing.telemetry import Telemetry
from gateway.observing.trace import Trace
from gateway.observing.traced import Traced
from gateway.observing.tracing import Tracing
from gateway.ports import Clock

if TYPE_CHECKING:
    from gateway.traffic.facts import Facts


class Recording(Protocol):
    """Who keeps what became of a request: a `Recorder`."""

    def over(
        self, facts: Facts, trace: Trace, provenance: Provenance, *, request_id: str, status: int, seconds: float
    ) -> None: ...


class Observer:
    """`used` is told the fingerprint of every hit; `shares`: of which requests there are lines in the log; `tracing`
    None: none is traced."""

    def __init__(
        self,
        telemetry: Telemetry,
        clock: Clock,
        access_log: AccessLog | None,
        used: Callable[[str], None],
        recorder: Recording,
        decisions: Decisions,
        shares: LogShares,
        tracing: Tracing | None = None,
    ) -> None:
        self._recorder = recorder
        self._used = used
        self._decisions = decisions
        self._telemetry = telemetry
        self._clock = clock
        self._access_log = access_log
        self._shares = shares
        self._tracing = tracing

    def begin(self, trace: Trace, headers: Mapping[str, str], kind: str = "server") -> None:
        """When a request has come. `kind`: of its span."""
        if self._tracing is not None:
            trace.traced = self._tracing.begin(headers, kind)

    def first_byte(self, received: float, trace: Trace) -> None:
        """When the answer begins. `received`: the request's arrival, monotonic seconds."""
        waited = trace.spans.get("upstream", 0.0) + trace.spans.get("wait", 0.0)
        spent = self._clock.monotonic() - received - waited
        self._telemetry.overhead_seconds.observe(max(0.0, spent))

    def hit(
        self,
        what: Repeated,
        request_id: str,
        headers: Mapping[str, str],
        received: float,
        seconds: float,
        wall: float,
    ) -> None:
        """All that `begin`, `first_byte` and `over` leave of an exact hit that took `seconds`, from `received`
        (monotonic seconds) to when its bytes were handed over. `wall`: when it was found fresh."""
        if self._tracing is not None or what.facts is not None or self._decisions.watched:
            self._hit_in_full(what, request_id, headers, received, seconds, wall)
            return
        telemetry, entry, bucket = self._telemetry, what.entry, bucket_of(seconds)
        telemetry.requests.add_to(what.requests)
        telemetry.request_seconds.observe_in(bucket, seconds, what.seconds)
        telemetry.stage_seconds.observe_in(bucket, seconds, STAGE)
        telemetry.overhead_seconds.observe_in(bucket, seconds, NO_LABELS)
        self._used(entry.fingerprint)
        telemetry.saved(what.route, what.tokens, entry.cost_dollars, entry.upstream_s)
        if self._access_log is not None and self._shares.keep(Verdict.EXACT, 200):
            self._access_log.add(what.line(request_id, seconds, wall))

    @property
    def traces(self) -> bool:
        return self._tracing is not None

    def relayed(self, what: Relayed, request_id: str, received: float, upstream_s: float) -> None:
        """All that `begin`, `first_byte` and `over` leave of an answer that passed straight through, and its backend's
        figures, where there are no traces. `received`: monotonic seconds."""
        seconds = self._clock.monotonic() - received
        what.tally.add(upstream_s, seconds, seconds - upstream_s if seconds > upstream_s else 0.0)
        self._log(Verdict.BYPASS, what.line, request_id, seconds, upstream_s)

    def found(
        self, what: Found, hit: Sought, request_id: bytes, seconds: float, steps_ms: Sequence[float], near: bytes
    ) -> None:
        """All that `begin`, `first_byte` and `over` leave of a hit that was found without the stages, where nothing is
        traced or recorded. `seconds`: from its arrival to when its bytes were handed over; `near`: as `Found.line`."""
        entry = hit.entry
        what.tally.add(seconds, *hit.spans.values())
        self._used(entry.fingerprint)
        tokens = entry.input_tokens + entry.output_tokens
        self._telemetry.saved(what.route, tokens, entry.cost_dollars, entry.upstream_s)
        self._log(what.verdict, what.line, request_id, seconds, steps_ms, entry, near)

    def _log(self, verdict: Verdict, line: Callable[..., bytes], *said: object) -> None:
        """The line of an answer with status 200, for the log and for those who watch. `line`: makes it of the wall
        clock and what is said, where anybody wants it."""
        logged = self._access_log if self._shares.all or self._shares.keep(verdict, 200) else None
        watched = self._decisions.watches
        if logged is not None or watched:
            text = line(self._clock.wall(), *said)
            if logged is not None:
                logged.add(text)
            if watched:
                self._decisions.tell(orjson.loads(text))

    def fetched(self, what: Missed, trace: Trace, request_id: str, seconds: float) -> Sequence[float]:
        """All that `begin`, `first_byte` and `over` leave of a miss that was fetched without the stages, where nothing
        is traced or recorded -> what its steps took, in milliseconds. `seconds`: as in `found`."""
        spans = trace.spans
        own = seconds - spans["upstream"]
        what.tally.add(seconds, own if own > 0 else 0.0, *spans.values())
        steps_ms = [*map(IN_MS, spans.values())]
        self._log(Verdict.MISS, what.line_of, request_id, seconds, steps_ms)
        return steps_ms

    def _hit_in_full(
        self,
        what: Repeated,
        request_id: str,
        headers: Mapping[str, str],
        received: float,
        seconds: float,
        wall: float,
    ) -> None:
        trace = Trace(self._clock)
        what.trace_into(trace)
        self.begin(trace, headers)
        if trace.traced is not None:
            trace.traced.operation, trace.traced.model = what.entry.operation, what.entry.model
            trace.traced.mark("exact", received, received + seconds, "")
        trace.add("exact", seconds)
        self.first_byte(received, trace)
        self.over(
            request_id=request_id,
            method="POST",
            path=what.path,
            received=received,
            trace=trace,
            status=200,
            provenance=provenance_of(what.entry, freshness_of(what.entry, what.lifetime, NONE, wall), Verdict.EXACT),
        )

    def over(
        self,
        *,
        request_id: str,
        method: str,
        path: str,
        received: float,
        trace: Trace,
        status: int,
        provenance: Provenance | None,
    ) -> None:
        """When its last byte has gone, or its client has left (then there may be no `provenance`)."""
        telemetry = self._telemetry
        verdict = Verdict.MISS if provenance is None else provenance.verdict
        seconds = self._clock.monotonic() - received
        dialect = trace.dialect.name if trace.dialect is not None else "none"
        telemetry.requests.add(trace.route, dialect, verdict, str(status))
        telemetry.request_seconds.observe(seconds, trace.route, verdict)
        telemetry.stage_seconds.observe_each(trace.spans)
        if provenance is not None and provenance.fingerprint:
            self._used(provenance.fingerprint)
        if provenance is not None:
            saved = provenance.saved_tokens, provenance.saved_dollars, provenance.upstream_s
            telemetry.saved((trace.route,), *saved)
        if trace.facts is not None and provenance is not None:
            self._recorder.over(trace.facts, trace, provenance, request_id=request_id, status=status, seconds=seconds)
        if trace.traced is not None:
            ended = received + seconds
            self._traced(trace.traced, request_id, method, path, received, ended, trace, status, provenance)
        logged = self._access_log if self._shares.keep(verdict, status) else None
        if logged is None and not self._decisions.watched:
            return
        fields = access_fields(
            request_id=request_id,
            method=method,
            path=path,
            status=status,
            seconds=seconds,
            trace=trace,
            provenance=provenance,
        )
        if logged is not None:
            logged.write(fields)
        self._decisions.tell(fields)

    def _traced(
        self,
        traced: Traced,
        request_id: str,
        method: str,
        path: str,
        received: float,
        ended: float,
        trace: Trace,
        status: int,
        provenance: Provenance | None,
    ) -> None:
        tracing = self._tracing
        if tracing is None or not tracing.keeps(traced, status, ended - received):
            return
        root = root_of(
            request_id=request_id,
            method=method,
            path=path,
            received=received,
            ended=ended,
            status=status,
            trace=trace,
            traced=traced,
            provenance=provenance,
        )
        tracing.over(traced, root)
        telemetry, wall, trace_id = self._telemetry, self._clock.wall(), traced.trace_id
        verdict = Verdict.MISS if provenance is None else provenance.verdict
        telemetry.request_seconds.exemplify(ended - received, trace_id, wall, trace.route, verdict)
        for stage, spent in trace.spans.items():
            telemetry.stage_seconds.exemplify(spent, trace_id, wall, stage)
