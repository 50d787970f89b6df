"""Hits that were found without the stages: what is told of those of one kind, its labels and lines prepared."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import orjson

from gateway.messages import Entry, Verdict
from gateway.observing.metrics import Labels, Tally
from gateway.observing.repeated import NO_LABELS, line_form
from gateway.observing.telemetry import Telemetry

# What a plain threshold is held against is all that was judged.
JUDGED = b',"similarity":%%b,"judged":{"similarity":%%b,"score":%%b,"threshold":%.4f,"probability":%%b}'


class Found:
    """Of answers with status 200 to POST requests for `path` whose bytes were at hand, and which went through the same
    `steps`. `threshold`: the plain one of semantic hits. `tally` is added to by how long all of it took, and each
    step."""

    def __init__(
        self,
        telemetry: Telemetry,
        verdict: Verdict,
        steps: Sequence[str],
        threshold: float | None = None,
        *,
        route: str,
        dialect: str,
        tenant: str,
        path: str,
    ) -> None:
        self.verdict = verdict
        self.route: Labels = (route,)
        whole = [(telemetry.request_seconds, (route, verdict)), (telemetry.overhead_seconds, NO_LABELS)]
        self.tally = Tally(
            [(telemetry.requests, (route, dialect, verdict, "200"))],
            [whole, *([(telemetry.stage_seconds, (step,))] for step in steps)],
        )
        before = {"method": "POST", "path": path, "status": 200, "route": route, "tenant": tenant[:12]}
        judged = b"" if threshold is None else JUDGED % threshold
        self._line = line_form(before, steps, {"dialect": dialect, "verdict": verdict}, b',"backend":%b' + judged)

    def line(
        self, wall: float, request_id: bytes, seconds: float, steps_ms: Iterable[float], entry: Entry, near: bytes
    ) -> bytes:
        """What `access_fields` says of it, as the log has it. `request_id`: of characters that JSON has as they are;
        `near`: the similarity to four decimals, empty for the very answer."""
        said = (wall, request_id, 1e3 * seconds, *steps_ms, orjson.dumps(entry.backend))
        return self._line % ((*said, near, near, near, near) if near else said)
