"""Answers that passed straight through: what is told of those of one kind, its labels and lines prepared."""

from __future__ import annotations

from gateway.messages import Bypass, Choice, Verdict
from gateway.observing.access_log import COMMON
from gateway.observing.metrics import Tally
from gateway.observing.repeated import NO_LABELS, inner
from gateway.observing.telemetry import Telemetry

UPSTREAM = "upstream"
_COMMON = COMMON.decode()


class Relayed:
    """Of answers with status 200 that `backend` gave, of requests by `method` for `path`. `dialect` empty: none knows
    it. `tally` is added to by how long the backend took, how long all of it took, and what of that was the gateway's
    own."""

    def __init__(
        self, telemetry: Telemetry, *, route: str, dialect: str, backend: str, tenant: str, method: str, path: str
    ) -> None:
        bypass = Bypass.POLICY if dialect else Bypass.PASS_THROUGH
        counters = [
            (telemetry.backend_requests, (backend, "200")),
            (telemetry.routed, (route, "none", Choice.ONLY)),
            (telemetry.requests, (route, dialect or "none", Verdict.BYPASS, "200")),
        ]
        upstream = [
            (telemetry.backend_ttft_seconds, (backend,)),
            (telemetry.backend_seconds, (backend,)),
            (telemetry.stage_seconds, (UPSTREAM,)),
        ]
        whole = [(telemetry.request_seconds, (route, Verdict.BYPASS))]
        self.tally = Tally(counters, [upstream, whole, [(telemetry.overhead_seconds, NO_LABELS)]])
        said = {"method": method, "path": path if dialect else "(pass-through)", "status": 200, "route": route}
        self._before_ms = inner({**said, "tenant": tenant[:12]}).decode()
        named = {"dialect": dialect} if dialect else {}
        self._behind_timing = inner({**named, "verdict": Verdict.BYPASS, "reason": bypass, "backend": backend}).decode()

    def line(self, wall: float, request_id: str, seconds: float, upstream_s: float) -> bytes:
        """What `access_fields` says of it, as the log has it. `request_id`: of characters that JSON has as they are."""
        ms, upstream_ms = 1e3 * seconds, 1e3 * upstream_s
        start = f'{{"time":{wall:.3f},{_COMMON},"id":"{request_id}",{self._before_ms},"ms":{ms:.3f}'
        return f'{start},"timing_ms":{{"{UPSTREAM}":{upstream_ms:.3f}}},{self._behind_timing}}}'.encode()
