"""Outermost: sees every outcome once, when the last byte of its answer has gone or its client has left."""

from __future__ import annotations

import logging
import math
from dataclasses import replace
from typing import Any

from gateway.bodies import Guarded
from gateway.messages import EventStream, Request, Response, Verdict, Whole
from gateway.pipeline import Handler
from gateway.ports import Clock
from gateway.telemetry import Telemetry

LOG = logging.getLogger("nearhit.access")
CLIENT_CLOSED = 499  # nginx's status for a client that left before it got an answer


class Observe:
    def __init__(self, telemetry: Telemetry, clock: Clock) -> None:
        self._telemetry = telemetry
        self._clock = clock

    async def __call__(self, request: Request, forward: Handler) -> Response:
        try:
            response = await forward(request)
        except BaseException:  # only a cancellation gets past `Protect`
            self._record(request, CLIENT_CLOSED, None)
            raise
        self._first_byte(request)
        body = response.body
        if isinstance(body, Whole):
            self._record(request, response.status, response)
            return response

        def done() -> None:
            self._record(request, response.status, response)

        if isinstance(body, EventStream):
            return replace(response, body=EventStream(Guarded(body.events, done)))
        return replace(response, body=type(body)(Guarded(body.chunks, done)))

    def _first_byte(self, request: Request) -> None:
        spent = self._clock.monotonic() - request.received - request.trace.spans.get("upstream", 0.0)
        self._telemetry.overhead_seconds.observe(max(0.0, spent))

    def _record(self, request: Request, status: int, response: Response | None) -> None:
        trace, telemetry = request.trace, self._telemetry
        provenance = None if response is None else response.provenance
        verdict = Verdict.MISS if provenance is None else provenance.verdict
        seconds = self._clock.monotonic() - request.received
        dialect = trace.dialect.name if trace.dialect else "none"
        telemetry.requests.add(trace.route, dialect, verdict, str(status))
        telemetry.request_seconds.observe(seconds, trace.route, verdict)
        for stage, spent in trace.spans.items():
            telemetry.stage_seconds.observe(spent, stage)
        if provenance is not None and provenance.saved_tokens:
            telemetry.tokens_saved.add(trace.route, amount=provenance.saved_tokens)
            telemetry.cost_saved.add(trace.route, amount=provenance.saved_dollars)
        if LOG.isEnabledFor(logging.INFO):
            LOG.info("request", extra={"fields": _fields(request, status, seconds, dialect, response)})


def _fields(request: Request, status: int, seconds: float, dialect: str, response: Response | None) -> dict[str, Any]:
    """Neither prompts nor credentials nor query strings; the path only where the gateway itself knows it."""
    trace = request.trace
    fields: dict[str, Any] = {
        "id": request.id,
        "method": request.method,
        "path": request.path if trace.dialect else "(pass-through)",
        "status": status,
        "route": trace.route,
        "tenant": trace.tenant[:12],
        "dialect": dialect,
        "ms": round(1e3 * seconds, 2),
        "timing_ms": {stage: round(1e3 * spent, 2) for stage, spent in trace.spans.items()},
    }
    if response is not None:
        provenance = response.provenance
        fields |= {
            "verdict": provenance.verdict,
            "reason": provenance.reason,
            "similarity": _rounded(provenance.similarity),
            "backend": provenance.backend,
            "complexity": _rounded(trace.complexity),
            "note": trace.note,
        }
    return {name: value for name, value in fields.items() if value is not None}


def _rounded(value: float | None) -> float | None:
    return None if value is None or math.isnan(value) else round(value, 4)
