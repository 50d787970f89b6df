"""Hits that were found without the stages: what is told of those of one kind, its labels and lines prepared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import orjson

from gateway.cache.judged import Judged
from gateway.messages import Provenance, Verdict
from gateway.observing.access_log import COMMON
from gateway.observing.metrics import Labels, Tally
from gateway.observing.repeated import NO_LABELS, inner
from gateway.observing.telemetry import Telemetry

JUDGED = b'"judged":{"similarity":%.4f,"score":%.4f,"threshold":%.4f,"probability":%.4f}'


class Kind(NamedTuple):
    """Of hits with one verdict that went through the same steps. `tally` is added to by how long all of it took, and
    each step; `timing` and `line` are completed by `timing_of` and `line_of`."""

    tally: Tally
    route: Labels
    timing: bytes
    line: bytes

    def timing_of(self, steps_ms: Sequence[float], judged: Judged | None) -> bytes:
        """What `Trace.server_timing` says."""
        if judged is None:
            return self.timing % tuple(steps_ms)
        *before, verified_ms = steps_ms
        return self.timing % (*before, judged.probability, verified_ms)

    def line_of(
        self,
        request_id: str,
        seconds: float,
        wall: float,
        steps_ms: Sequence[float],
        hit: Provenance,
        judged: Judged | None,
    ) -> bytes:
        """What `access_fields` says of it, as the log has it. `request_id`: of characters that JSON has as they are."""
        said = (wall, request_id.encode(), 1e3 * seconds, *steps_ms, orjson.dumps(hit.backend))
        if judged is None:
            return self.line % said
        near = judged.similarity
        return self.line % (*said, near, near, judged.score, judged.threshold, judged.probability)


class Found:
    """Of answers with status 200 to POST requests for `path` whose bytes were at hand."""

    def __init__(self, telemetry: Telemetry, *, route: str, dialect: str, tenant: str, path: str) -> None:
        self._telemetry = telemetry
        self._route = route
        self._dialect = dialect
        self._before = inner({"method": "POST", "path": path, "status": 200, "route": route, "tenant": tenant[:12]})
        self._kinds: dict[tuple[str, ...], Kind] = {}

    def kind(self, verdict: Verdict, steps: Iterable[str]) -> Kind:
        """`steps`: those of `Trace.spans`; a semantic hit's last one is its verification."""
        known = verdict, *steps
        return self._kinds.get(known) or self._kind(verdict, known)

    def _kind(self, verdict: Verdict, known: tuple[str, ...]) -> Kind:
        telemetry, route, steps = self._telemetry, self._route, known[1:]
        whole = [(telemetry.request_seconds, (route, verdict)), (telemetry.overhead_seconds, NO_LABELS)]
        tally = Tally(
            [(telemetry.requests, (route, self._dialect, verdict, "200"))],
            [whole, *([(telemetry.stage_seconds, (step,))] for step in steps)],
        )
        semantic = verdict is Verdict.SEMANTIC
        spent = b",".join(b'"%b":%%.3f' % step.encode() for step in steps)
        behind = inner({"dialect": self._dialect, "verdict": verdict})
        judged = b',"similarity":%.4f,' + JUDGED if semantic else b""
        line = b'{"time":%%.3f,%b,"id":"%%b",%b,"ms":%%.3f,"timing_ms":{%b},%b,"backend":%%b%b}' % (
            _as_written(COMMON), _as_written(self._before), spent, behind, judged,
        )  # fmt: skip
        told = [b';desc="p=%.3f"' if semantic and step == steps[-1] else b"" for step in steps]
        timing = b", ".join(b"%b%b;dur=%%.1f" % (step.encode(), more) for step, more in zip(steps, told, strict=True))
        kind = self._kinds[known] = Kind(tally, (route,), timing, line)
        return kind


def _as_written(text: bytes) -> bytes:
    """For a format."""
    return text.replace(b"%", b"%%")
