"""How soon places come free, by what was seen: means that one stall does not turn over."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.upstream.adaptive_concurrency import SAMPLES, RecentLatencies, SlotTurnover


def busy(turnover: SlotTurnover, hold_s: float, places: int, seconds: float, start: float = 0.0) -> float:
    """All places are held for so long each, and somebody always waits. -> the end."""
    now = start
    while now < start + seconds:
        now += hold_s / places
        turnover.record_hold(hold_s, now)
        turnover.on_grant(start, now)
    return now


@given(values=st.lists(st.floats(0, 1e3), min_size=1), steps=st.lists(st.floats(0, 100), min_size=1))
def test_a_mean_is_among_what_it_was_made_of(values: list[float], steps: list[float]) -> None:
    recent, now = RecentLatencies(), 0.0
    for number, value in enumerate(values):
        now += steps[number % len(steps)]
        recent.add(value, now)
    assert recent.mean is not None
    assert min(values) * (1 - 1e-9) <= recent.mean <= max(values) * (1 + 1e-9)


def test_nothing_is_known_before_the_first_one() -> None:
    turnover = SlotTurnover()
    assert (turnover.hold_s, turnover.slot_interval_s(4), turnover.loop_s) == (None, 0.0, 0.0)


@settings(max_examples=20, deadline=None)
@given(hold_s=st.floats(0.001, 0.02), places=st.integers(2, 64), stall_s=st.floats(0.01, 0.3))
def test_one_stall_of_the_loop_does_not_make_fast_places_slow(hold_s: float, places: int, stall_s: float) -> None:
    """All that were in flight are late by it, and nobody had a turn meanwhile."""
    turnover = SlotTurnover()
    now = busy(turnover, hold_s, places, 1.5) + stall_s
    for _ in range(places):
        turnover.record_hold(hold_s + stall_s, now)
        turnover.on_grant(0.0, now)
    assert turnover.slot_interval_s(places) <= 1.6 * hold_s / places


def test_slow_places_are_known_from_the_last_ones() -> None:
    turnover = SlotTurnover()
    now = busy(turnover, 1.0, 1, 100.0)
    for _ in range(2 * SAMPLES):
        now += 10.0
        turnover.record_hold(10.0, now)
    assert turnover.hold_s == pytest.approx(10.0, rel=0.15)


def test_streams_that_hold_some_places_for_long_do_not_slow_down_the_others() -> None:
    """What was seen from turn to turn is believed where it is sooner."""
    turnover = SlotTurnover()
    now = busy(turnover, 0.1, 8, 5.0)
    turnover.record_hold(600.0, now)
    assert turnover.hold_s is not None and turnover.hold_s > 5.0
    assert turnover.slot_interval_s(8) == pytest.approx(0.1 / 8, rel=0.01)


def test_the_time_that_the_loop_takes_is_not_the_backends() -> None:
    turnover = SlotTurnover()
    now = busy(turnover, 0.04, 8, 5.0)
    for _ in range(100):
        turnover.record_wakeup(0.02, now)
    assert turnover.backend_interval_s(8) == 0.0
    assert turnover.slot_interval_s(8) == pytest.approx(0.04 / 8)
