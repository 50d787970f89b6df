"""What requests that end alike leave behind: the series that they add to, and their line in the access log."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from gateway.bounded_cache import BoundedCache
from gateway.context import RequestContext
from gateway.messages import Provenance, Verdict
from gateway.observability.log_line import LogLine
from gateway.observability.metrics import Histogram, Tally
from gateway.observability.telemetry import Telemetry

MAX_SERIES = 2048  # of some kB; clients choose none of what makes one


class RequestSeries:
    """`verdict`, and `route` as the only label of a metric. `tally` is given the seconds of the whole request and of
    each of its steps; `whole_tally` before them those that it spent here."""

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
        self.tally = Tally(counters, times)
        self.whole_tally = Tally(counters, [[(telemetry.overhead_seconds, ())], *times])
        self.line = LogLine(request, status, provenance)


class AllSeries:
    """Found by what decides the labels, and which values a line has."""

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
            request.complexity is None,
            request.note,
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
