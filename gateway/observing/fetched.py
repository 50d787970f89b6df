"""Misses that were fetched without the stages: what is told of those of one kind, its labels and lines prepared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from gateway.messages import Choice, Verdict
from gateway.observing.metrics import Tally
from gateway.observing.repeated import NO_LABELS, line_form
from gateway.observing.telemetry import Telemetry

MAX_KINDS = 64


class Kind(NamedTuple):
    """Of answers that went through the same steps. `tally` is added to by how long all of it took, what of that was
    the gateway's own until the answer began, and each step; `timing` and `line` are completed by the milliseconds."""

    tally: Tally
    timing: bytes
    line: bytes

    def line_of(self, wall: float, request_id: str, seconds: float, steps_ms: Sequence[float]) -> bytes:
        """What `access_fields` says of it, as the log has it. `request_id`: of characters that JSON has as they are."""
        return self.line % (wall, request_id.encode(), 1e3 * seconds, *steps_ms)


class Fetched:
    """Of answers with status 200 that `backend` gave to POST requests for `path`. `of_backend` is added to by how long
    it took."""

    def __init__(self, telemetry: Telemetry, *, route: str, dialect: str, backend: str, tenant: str, path: str) -> None:
        self._telemetry = telemetry
        self._route = route
        self._dialect = dialect
        self._before = {"method": "POST", "path": path, "status": 200, "route": route, "tenant": tenant[:12]}
        self._behind = {"dialect": dialect, "verdict": Verdict.MISS, "reason": Choice.ONLY, "backend": backend}
        took = [(telemetry.backend_ttft_seconds, (backend,)), (telemetry.backend_seconds, (backend,))]
        asked = [(telemetry.backend_requests, (backend, "200")), (telemetry.routed, (route, "none", Choice.ONLY))]
        self.of_backend = Tally(asked, [took])
        self._kinds: dict[tuple[str | None, ...], Kind] = {}

    def kind(self, steps: Mapping[str, float], note: str | None) -> Kind:
        """`steps`: of the trace; `note`: why nothing alike was served."""
        known = note, *steps
        return self._kinds.get(known) or self._kind(known, list(steps), note)

    def _kind(self, known: tuple[str | None, ...], steps: Sequence[str], note: str | None) -> Kind:
        telemetry, route = self._telemetry, self._route
        tally = Tally(
            [(telemetry.requests, (route, self._dialect, Verdict.MISS, "200"))],
            [
                [(telemetry.request_seconds, (route, Verdict.MISS))],
                [(telemetry.overhead_seconds, NO_LABELS)],
                *([(telemetry.stage_seconds, (step,))] for step in steps),
            ],
        )
        behind = self._behind if note is None else {**self._behind, "note": note}
        line = line_form(self._before, steps, behind, b"")
        timing = b", ".join(b"%b;dur=%%.1f" % step.encode() for step in steps)
        if len(self._kinds) >= MAX_KINDS:
            self._kinds.clear()
        kind = self._kinds[known] = Kind(tally, timing, line)
        return kind
