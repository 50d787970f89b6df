"""What every request leaves behind: metrics and a line in the access log. The one place that both paths of an answer
come by, the stages and the front."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from gateway.messages import Provenance, Verdict
from gateway.observing.access_log import AccessLog, access_fields
from gateway.observing.decisions import Decisions
from gateway.observing.telemetry import Telemetry
from gateway.observing.trace import Trace
from gateway.ports import Clock

if TYPE_CHECKING:
    from gateway.traffic.facts import Facts


class Recording(Protocol):
    """Who keeps what became of a request: a `Recorder`."""

    def over(
        self, facts: Facts, trace: Trace, provenance: Provenance, *, request_id: str, status: int, seconds: float
    ) -> None: ...


class Observer:
    """`used` is told the fingerprint of every hit."""

    def __init__(
        self,
        telemetry: Telemetry,
        clock: Clock,
        access_log: AccessLog | None,
        used: Callable[[str], None],
        recorder: Recording,
        decisions: Decisions,
    ) -> None:
        self._recorder = recorder
        self._used = used
        self._decisions = decisions
        self._telemetry = telemetry
        self._clock = clock
        self._access_log = access_log

    def first_byte(self, received: float, trace: Trace) -> None:
        """When the answer begins. `received`: the request's arrival, monotonic seconds."""
        waited = trace.spans.get("upstream", 0.0) + trace.spans.get("wait", 0.0)
        spent = self._clock.monotonic() - received - waited
        self._telemetry.overhead_seconds.observe(max(0.0, spent))

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
        for stage, spent in trace.spans.items():
            telemetry.stage_seconds.observe(spent, stage)
        if provenance is not None and provenance.fingerprint:
            self._used(provenance.fingerprint)
        if provenance is not None and provenance.saved_tokens:
            telemetry.tokens_saved.add(trace.route, amount=provenance.saved_tokens)
            telemetry.cost_saved.add(trace.route, amount=provenance.saved_dollars)
        if trace.facts is not None and provenance is not None:
            self._recorder.over(trace.facts, trace, provenance, request_id=request_id, status=status, seconds=seconds)
        if provenance is not None and provenance.upstream_s:
            telemetry.backend_seconds_saved.add(trace.route, amount=provenance.upstream_s)
        if self._access_log is None and not self._decisions.watched:
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
        if self._access_log is not None:
            self._access_log.write(fields)
        self._decisions.tell(fields)
