"""A hit of the front leaves what a hit of the stages leaves: the same metrics, the same line, the same use."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.directives import NONE
from gateway.cache.freshness import Lifetime, freshness_of
from gateway.cache.hits import provenance_of
from gateway.dialects.openai import OpenAI
from gateway.messages import Entry, Verdict
from gateway.observing.access_log import AccessLog, LogShares
from gateway.observing.decimals import millis, tenths_of_millis, thousandths
from gateway.observing.decisions import Decisions
from gateway.observing.observer import Observer
from gateway.observing.repeated import repeated_of
from gateway.observing.telemetry import Telemetry
from gateway.observing.trace import Trace
from tests.fixtures.clock import FakeClock
from tests.fixtures.entries import entry_of

PATH, HOUR = "/v1/chat/completions", Lifetime(3600.0)
SECONDS = st.floats(0, 1e4)


class Watched:
    """An observer with all that it tells."""

    def __init__(self, clock: FakeClock, shares: dict[str, float]) -> None:
        self.telemetry, self.used, self.clock = Telemetry(), [], clock
        self.stream = io.StringIO()
        self.log, self.decisions = AccessLog(self.stream), Decisions()
        self.observer = Observer(
            self.telemetry,
            clock,
            self.log,
            self.used.append,
            None,
            self.decisions,
            LogShares(shares, lambda: 0.5),  # type: ignore[arg-type]
        )

    def told(self) -> Any:
        self.log.flush()
        lines = [json.loads(line) for line in self.stream.getvalue().splitlines()]
        for line in lines:
            line["time"] = 0  # of the machine here, of the clock there
        metrics = {metric.name: vars(metric) for metric in self.telemetry.metrics()}
        figures = {name: {key: kept.get(key) for key in ("values", "counts", "sums")} for name, kept in metrics.items()}
        return lines, figures, self.used


def trace_of(clock: FakeClock) -> Trace:
    trace = Trace(clock)
    trace.dialect, trace.route, trace.tenant = OpenAI(), "default", "acme-and-some-more"
    return trace


def by_the_stages(it: Watched, entry: Entry, request_id: str, seconds: float) -> None:
    trace, received = trace_of(it.clock), it.clock.monotonic() - seconds
    it.observer.begin(trace, {})
    trace.add("exact", seconds)
    it.observer.first_byte(received, trace)
    provenance = provenance_of(entry, freshness_of(entry, HOUR, NONE, it.clock.wall()), Verdict.EXACT)
    it.observer.over(
        request_id=request_id,
        method="POST",
        path=PATH,
        received=received,
        trace=trace,
        status=200,
        provenance=provenance,
    )


def by_the_front(it: Watched, entry: Entry, request_id: str, seconds: float) -> None:
    trace = trace_of(it.clock)
    what = repeated_of(
        OpenAI(), entry, HOUR, route=trace.route, tenant=trace.tenant, path=PATH, permit=None, expose_headers=True
    )
    received = it.clock.monotonic() - seconds
    it.observer.hit(what, request_id, {}, received, seconds, it.clock.wall())


@pytest.mark.parametrize("shares", [{}, {"exact": 0.0}, {"2xx": 1.0, "exact": 0.0}])
@pytest.mark.parametrize("watching", [False, True])
async def test_both_ways_leave_the_same(shares: dict[str, float], watching: bool) -> None:
    clock = FakeClock(monotonic=1024.0)
    entry = entry_of("a" * 64)
    told = []
    for way in (by_the_stages, by_the_front):
        it = Watched(clock, shares)
        with it.decisions.watch() as watch:
            if not watching:
                watch.end()
                it.decisions.watches.clear()
            for i, seconds in enumerate((0.0, 2.0**-13, 0.25, 3.0)):
                way(it, entry, f"id-{i}", seconds)
            decisions = [{**each, "time": 0} for each in watch._waiting]
        told.append((it.told(), decisions))
    assert told[0] == told[1]
    (lines, _, used), _ = told[0]
    assert len(lines) == (0 if shares == {"exact": 0.0} else 4)
    assert len(used) == 4


@given(SECONDS)
def test_decimals_are_those_of_rounding(seconds: float) -> None:
    """But for which way a half goes."""
    assert millis(seconds) == pytest.approx(round(1e3 * seconds, 3), abs=1.001e-3)
    assert thousandths(seconds) == pytest.approx(round(seconds, 3), abs=1.001e-3)
    assert float(tenths_of_millis(seconds)) == pytest.approx(1e3 * seconds, abs=0.0501, rel=1e-12)
    assert len(repr(thousandths(seconds)).partition(".")[2]) <= 3
