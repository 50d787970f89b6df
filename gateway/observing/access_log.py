"""One JSON line a request, written in batches: logging's own way costs 40 us a line, this one 4.

Neither prompts nor credentials nor query strings are ever in it; a path only where the gateway itself knows it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from random import random
from typing import Any, TextIO

import orjson

from gateway.messages import Provenance, Verdict
from gateway.observing.decimals import millis, thousandths
from gateway.observing.trace import Trace

FLUSH_EVERY_S = 0.1
# The fields of every line, as `Repeated` writes them.
COMMON = b'"level":"info","logger":"nearhit.access","message":"request"'
MAX_LINES = 1000  # held at most


class LogShares:
    """Of how many requests there is a line: `shares` in [0, 1] by verdict (`exact`) or by class of status (`4xx`), of
    which the status goes first; all where neither is named, and always from 500 on unless `5xx` is. `draw`: numbers in
    [0, 1)."""

    def __init__(self, shares: Mapping[str, float], draw: Callable[[], float] = random) -> None:
        self._shares = shares
        self.all = not shares  # of each there is one
        self._draw = draw

    def keep(self, verdict: Verdict, status: int) -> bool:
        if not self._shares:
            return True
        share = self._shares.get(f"{status // 100}xx")
        if share is None:
            share = 1.0 if status >= 500 else self._shares.get(verdict, 1.0)
        return share >= 1.0 or self._draw() < share


class AccessLog:
    """To be used from one event loop. `close` writes what is held."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[bytes] = []
        self._flush_at: asyncio.TimerHandle | None = None

    def write(self, fields: dict[str, Any]) -> None:
        self.add(orjson.dumps(fields))

    def add(self, line: bytes) -> None:
        """A line as JSON."""
        self._lines.append(line)
        if self._flush_at is None:
            self._flush_at = asyncio.get_running_loop().call_later(FLUSH_EVERY_S, self.flush)
        if len(self._lines) >= MAX_LINES:
            self.flush()

    def flush(self) -> None:
        if self._flush_at is not None:
            self._flush_at.cancel()
            self._flush_at = None
        lines, self._lines = self._lines, []
        if lines:
            self._stream.write(b"\n".join(lines).decode() + "\n")
            self._stream.flush()


def access_fields(
    *,
    request_id: str,
    method: str,
    path: str,
    status: int,
    seconds: float,
    trace: Trace,
    provenance: Provenance | None,
) -> dict[str, Any]:
    """What is logged of a request; `seconds` from its arrival to the end of its answer."""
    dialect = trace.dialect
    fields: dict[str, Any] = {
        "time": thousandths(time.time()),
        "level": "info",
        "logger": "nearhit.access",
        "message": "request",
        "id": request_id,
        "method": method,
        "path": path if dialect else "(pass-through)",
        "status": status,
        "route": trace.route,
        "tenant": trace.tenant[:12],
        "ms": millis(seconds),
        "timing_ms": {stage: millis(spent) for stage, spent in trace.spans.items()},
    }
    if trace.traced is not None:
        fields["trace_id"] = trace.traced.trace_id
    if dialect is not None:
        fields["dialect"] = dialect.name
    if provenance is not None:
        fields["verdict"] = provenance.verdict
        if provenance.reason is not None:
            fields["reason"] = provenance.reason
        if provenance.backend is not None:
            fields["backend"] = provenance.backend
        if provenance.similarity is not None:
            fields["similarity"] = round(provenance.similarity, 4)
    if trace.judged is not None:
        fields["judged"] = {
            "similarity": round(trace.judged.similarity, 4),
            "score": round(trace.judged.score, 4),
            "threshold": round(trace.judged.threshold, 4),
            "probability": round(trace.judged.probability, 4),
        }
    if trace.complexity is not None:
        fields["complexity"] = round(trace.complexity, 4)
    if trace.note is not None:
        fields["note"] = trace.note
    return fields
