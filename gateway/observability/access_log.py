"""Writes the access log: one JSON line for each request, made from templates and written in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from functools import lru_cache
from random import random
from typing import TYPE_CHECKING, Any, TextIO

import orjson

from gateway.bounded_cache import BoundedCache
from gateway.context import RequestContext
from gateway.messages import Provenance
from gateway.observability.metrics import Histogram, MetricBundle
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Verdict

if TYPE_CHECKING:
    from gateway.ports import Judgement


FLUSH_EVERY_S = 0.1

MAX_LINES = 1000  # in the buffer; then they are written at once


class LogShares:
    """Decides which requests get a line. `shares` in [0, 1] by verdict (`exact`) or by class of status (`4xx`).

    The class of status goes first. A request with neither gets a line, and so does a status of 500 or more unless
    `5xx` is named. `rng` returns numbers in [0, 1)."""

    def __init__(self, shares: Mapping[str, float], rng: Callable[[], float] = random) -> None:
        self._shares = shares
        self.all = not shares  # every request gets a line
        self._rng = rng

    def is_logged(self, verdict: Verdict, status: int) -> bool:
        if not self._shares:
            return True
        share = self._shares.get(f"{status // 100}xx")
        if share is None:
            share = 1.0 if status >= 500 else self._shares.get(verdict, 1.0)
        return share >= 1.0 or self._rng() < share


class AccessLog:
    """Buffers lines and writes them. For use from one event loop. `flush` writes the buffer."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._lines: list[bytes] = []
        self._flush_at: asyncio.TimerHandle | None = None

    def add(self, line: bytes) -> None:
        """Add a line of JSON."""
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


# A line is a template, since requests with the same outcome differ in a few values only.
#
# It never contains prompts, credentials or query strings, and a path only if a dialect of the gateway has it.
Values = Callable[[RequestContext, Provenance | None], Sequence[Any]]
"""Returns the values for the slots of a field."""


class LogLine:
    """The line of all requests with the same shape: the same status, route and verdict, and the same steps and kinds of
    values. `AllSeries` groups the requests."""

    __slots__ = ("_extras", "_form")

    def __init__(self, request: RequestContext, status: int, provenance: Provenance | None) -> None:
        has_dialect = request.dialect is not None
        fields: list[tuple[str, bytes]] = [
            ("time", b"%.3f"),
            ("level", _constant("info")),
            ("logger", _constant("nearhit.access")),
            ("message", _constant("request")),
            ("id", b'"%b"'),
            ("method", _constant(request.method)),
            ("path", b"%b" if has_dialect else _constant("(pass-through)")),
            ("status", _constant(status)),
            ("route", _constant(request.route)),
            ("tenant", b"%b"),
            ("ms", b"%.3f"),
            ("timing_ms", b"{%b}" % _joined([(step, b"%.3f") for step in request.timings])),
        ]
        extras: list[Values] = []
        if request.traced is not None:
            fields.append(("trace_id", b'"%b"'))
        if request.dialect is not None:
            fields.append(("dialect", _constant(request.dialect.name)))
        if provenance is not None:
            fields.append(("verdict", _constant(provenance.verdict)))
            constants = (("reason", provenance.reason), ("backend", provenance.backend))
            fields += [(name, _constant(value)) for name, value in constants if value is not None]
            if provenance.similarity is not None:
                fields.append(("similarity", b"%.4f"))
                extras.append(_similarity)
        if request.judged is not None:
            fields.append(("judged", b"{%b}" % _joined([(name, b"%.4f") for name in JUDGED])))
            extras.append(_judgement)
        if request.estimates.complexity is not None:
            fields.append(("complexity", b"%.4f"))
            extras.append(_complexity)
        if request.note is not None:
            fields.append(("note", _constant(request.note)))
        if request.upstream_request_id is not None:
            fields.append(("upstream_request_id", b"%b"))
            extras.append(_upstream_request_id)
        self._form = b"{%b}" % _joined(fields)
        self._extras = extras

    def of(self, request: RequestContext, provenance: Provenance | None, wall: float, seconds: float) -> bytes:
        """Return the line of a request. `wall` is the time of the line in seconds since 1970. The answer ended
        `seconds` after the request arrived."""
        has_dialect = request.dialect is not None
        values: list[Any] = [wall, request.id.encode()]
        if has_dialect:
            values.append(_text(request.path))
        values += (_text(request.client.tenant[:12]), 1e3 * seconds, *map(IN_MS, request.timings.values()))
        if request.traced is not None:
            values.append(request.traced.trace_id.encode())
        for extra in self._extras:
            values += extra(request, provenance)
        return self._form % tuple(values)


MAX_TEXTS = 1024  # each at most as long as a request line

JUDGED = ("similarity", "score", "threshold", "probability")

IN_MS = (1e3).__mul__  # seconds -> milliseconds


def _similarity(_: RequestContext, provenance: Provenance | None) -> Sequence[Any]:
    assert provenance is not None
    return (provenance.similarity,)


def _judgement(request: RequestContext, _: Provenance | None) -> Sequence[Any]:
    judged: Judgement | None = request.judged
    assert judged is not None
    return judged.similarity, judged.score, judged.threshold, judged.probability


def _complexity(request: RequestContext, _: Provenance | None) -> Sequence[Any]:
    return (request.estimates.complexity,)


def _upstream_request_id(request: RequestContext, _: Provenance | None) -> Sequence[Any]:
    return (orjson.dumps(request.upstream_request_id),)


@lru_cache(maxsize=MAX_TEXTS)
def _text(text: str) -> bytes:
    """Encode text as JSON. Cached, since paths and tenants repeat. Bytes that were not UTF-8 are replaced."""
    try:
        return orjson.dumps(text)
    except orjson.JSONEncodeError:
        return orjson.dumps(text.encode("utf-8", "replace").decode())


def _constant(value: object) -> bytes:
    return orjson.dumps(value).replace(b"%", b"%%")


def _joined(fields: Iterable[tuple[str, bytes]]) -> bytes:
    return b",".join([b"%b:%b" % (_constant(name), form) for name, form in fields])


MAX_SERIES = 2048  # some kB each; clients cannot choose any part of their keys


class RequestSeries:
    """The metric series and the log line that requests with the same outcome share.

    `route` is the labels of a metric that has only this label. `tally` takes the seconds of the whole request and of
    each step. `whole_tally` takes the seconds spent in the gateway before them."""

    __slots__ = ("line", "route", "tally", "verdict", "whole_tally")

    def __init__(
        self, telemetry: Telemetry, request: RequestContext, status: int, provenance: Provenance | None
    ) -> None:
        dialect = "none" if request.dialect is None else request.dialect.name
        self.verdict = Verdict.MISS if provenance is None else provenance.verdict
        self.route = (request.route,)
        counters = [(telemetry.requests, (request.route, dialect, self.verdict, str(status)))]
        times: list[Sequence[tuple[Histogram, tuple[str, ...]]]] = [
            [(telemetry.request_seconds, (request.route, self.verdict))],
            *[[(telemetry.stage_seconds, (step,))] for step in request.timings],
        ]
        self.tally = MetricBundle(counters, times)
        self.whole_tally = MetricBundle(counters, [[(telemetry.overhead_seconds, ())], *times])
        self.line = LogLine(request, status, provenance)


class AllSeries:
    """Finds the series of a request, by all that decides its labels and the values of its line."""

    def __init__(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self._known: BoundedCache[Hashable, RequestSeries] = BoundedCache(MAX_SERIES)

    def of(self, request: RequestContext, status: int, provenance: Provenance | None) -> RequestSeries:
        dialect = request.dialect
        key = (
            status,
            request.route,
            request.method,
            None if dialect is None else dialect.name,
            request.traced is None,
            request.judged is None,
            request.estimates.complexity is None,
            request.note,
            request.upstream_request_id is None,
            *request.timings,
            *(
                ()
                if provenance is None
                else (provenance.verdict, provenance.reason, provenance.backend, provenance.similarity is None)
            ),
        )
        series = self._known.get(key)
        if series is None:
            series = RequestSeries(self._telemetry, request, status, provenance)
            self._known.put(key, series)
        return series
