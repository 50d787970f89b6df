"""Who fails so much more often than the others that it is left out, and for how long."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.circuit_breaker import BreakerState, CircuitBreaker
from gateway.upstream.outlier_detection import HALF_LIFE_S, MARGIN, MIN_CALLS, Record, is_outlier, may_eject

COUNTS = st.tuples(st.floats(0, 1000), st.floats(0, 1000))


def test_an_upstream_that_fails_every_other_time_among_good_ones_is_an_outlier() -> None:
    assert is_outlier((12, 12), [(100, 1), (90, 0)])
    assert not is_outlier((12, 12), [(50, 50), (50, 50)]), "they all do"
    assert not is_outlier((5, 5), [(100, 0)]), "too few calls"
    assert not is_outlier((12, 12), []), "there is nobody to be held against"


@given(COUNTS, st.lists(COUNTS, max_size=6))
def test_who_fails_no_more_often_than_the_others_is_none(
    one: tuple[float, float], others: list[tuple[float, float]]
) -> None:
    calls, of_others = sum(one), sum(map(sum, others))
    if is_outlier(one, others):
        assert calls >= MIN_CALLS
        assert of_others >= MIN_CALLS
        assert one[1] / calls >= sum(failed for _, failed in others) / of_others + MARGIN * 0.999


@given(st.integers(1, 100))
def test_never_more_than_half_are_left_out(upstreams: int) -> None:
    out = 0
    while may_eject(out, upstreams):
        out += 1
    assert out == upstreams // 2


@given(st.lists(st.tuples(st.booleans(), st.floats(0, 60)), max_size=50))
def test_a_record_fades(calls: list[tuple[bool, float]]) -> None:
    record, now = Record(), 0.0
    for ok, later in calls:
        now += later
        record.add(ok=ok, now=now)
    ok, failed = record.counts(now)
    assert 0 <= ok <= sum(ok for ok, _ in calls)
    assert 0 <= failed <= sum(not ok for ok, _ in calls)
    assert record.counts(now + HALF_LIFE_S) == pytest.approx((ok / 2, failed / 2))
    record.reset()
    assert record.counts(now) == (0, 0)


def test_what_comes_back_and_fails_again_stays_out_twice_as_long_up_to_a_bound() -> None:
    breaker, now, lengths = CircuitBreaker(5, 5.0, longest_s=60.0), 0.0, []
    for _ in range(6):
        breaker.eject(now)
        lengths.append(next(s for s in range(1, 100) if breaker.state(now + s) is BreakerState.HALF_OPEN))
        now += lengths[-1]
        assert [breaker.allow(now), breaker.allow(now)] == [True, False], "one probe"
        breaker.succeeded(sent_at=now)
    assert lengths == [5, 10, 20, 40, 60, 60]
    breaker.eject(now + 61)
    assert breaker.state(now + 66) is BreakerState.HALF_OPEN, "it was good for a while"


def test_a_probe_that_fails_costs_no_more_than_the_last_cooldown() -> None:
    breaker = CircuitBreaker(5, 5.0, longest_s=60.0)
    breaker.eject(0.0)
    assert breaker.allow(5.0)
    breaker.failed(5.0, sent_at=5.0)
    assert breaker.state(9.9) is BreakerState.OPEN
    assert breaker.ready(10.0)


def test_what_was_on_its_way_at_the_opening_neither_closes_nor_prolongs_it() -> None:
    breaker = CircuitBreaker(5, 5.0, longest_s=60.0)
    breaker.eject(10.0)
    breaker.succeeded(sent_at=9.0)
    assert breaker.state(10.0) is BreakerState.OPEN
    breaker.failed(14.0, sent_at=9.0)
    assert breaker.state(15.0) is BreakerState.HALF_OPEN
