"""Decides which requests are traced, and hands their data to the exporter when they are over."""

from __future__ import annotations

import asyncio
from random import getrandbits
from typing import Protocol

from gateway.context import RequestContext
from gateway.messages import Provenance
from gateway.observability.spans import FinishedRequest, Root, root_of
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.tracing import LOW_BITS, TraceRecorder, parent_of, sampling_limit

BACKGROUND_FLUSH_S = 1.0  # work after the response (audits, shadows) is exported at this interval
MAX_BACKGROUND = 256  # requests with such work at once


class SpanSink(Protocol):
    """Takes data for export, without waiting."""

    def offer(self, finished: FinishedRequest) -> None: ...


class Tracing:
    """Traces requests. For use from one event loop.

    `share` in [0, 1] is the part of the traces begun here that is exported. A request is always exported if it ends in
    an error: a status of 500 or more, or a broken stream. So is a request that takes `slow_s` or longer (infinite:
    none). Both ignore the sampling decision, here and of the client."""

    def __init__(self, share: float, slow_s: float, sink: SpanSink, clock: Clock, telemetry: Telemetry) -> None:
        self._limit = sampling_limit(share)
        self._slow_s = slow_s
        self._sink = sink
        self._clock = clock
        self._telemetry = telemetry
        self._flush_timers: dict[TraceRecorder, asyncio.TimerHandle] = {}

    def start_trace(self, request: RequestContext) -> None:
        """Continue the trace that the request headers name, or begin one."""
        kind, trace_headers = "consumer" if request.work.background else "server", request.trace_headers
        parent = parent_of(request.headers) if trace_headers is None or trace_headers else None
        if parent is not None:
            request.traced = TraceRecorder(parent.trace_id, parent, parent.sampled, kind)
            return
        bits = getrandbits(128) or 1
        request.traced = TraceRecorder(bits.to_bytes(16).hex(), None, bits & LOW_BITS < self._limit, kind)

    def should_export(self, traced: TraceRecorder, status: int, seconds: float) -> bool:
        """Return whether a request that ends after `seconds` is exported."""
        return traced.sampled or seconds >= self._slow_s or traced.failed(status)

    def drop(self, traced: TraceRecorder) -> None:
        """Export nothing of a request, not even its later work."""
        traced.later = _forget

    def end(
        self,
        traced: TraceRecorder,
        request: RequestContext,
        *,
        ended: float,
        status: int,
        provenance: Provenance | None,
    ) -> None:
        """Export a request that is over, as `on_end`."""
        self.on_end(traced, root_of(request, traced, ended=ended, status=status, provenance=provenance))

    def on_end(self, traced: TraceRecorder, root: Root) -> None:
        """Export a request, and its later work at intervals."""
        self._export(traced, root)
        traced.later = self._schedule_flush

    def close(self) -> None:
        """Export the work that still waits for its interval."""
        for traced in tuple(self._flush_timers):
            self._flush(traced)

    def _export(self, traced: TraceRecorder, root: Root | None) -> None:
        marks, calls = traced.drain()
        wall = self._clock.wall()
        for call in calls:
            call.settle()
            if call.first is not None and call.error == "":
                ttft_s = call.first - call.started
                self._telemetry.backend_ttft_seconds.exemplify(ttft_s, traced.trace_id, wall, call.backend)
        self._sink.offer(FinishedRequest(traced, root, marks, calls, wall - self._clock.monotonic()))

    def _schedule_flush(self, traced: TraceRecorder) -> None:
        if traced in self._flush_timers or len(self._flush_timers) >= MAX_BACKGROUND:
            return
        self._flush_timers[traced] = asyncio.get_running_loop().call_later(BACKGROUND_FLUSH_S, self._flush, traced)

    def _flush(self, traced: TraceRecorder) -> None:
        self._flush_timers.pop(traced).cancel()
        self._export(traced, None)


def _forget(traced: TraceRecorder) -> None:
    traced.drain()
