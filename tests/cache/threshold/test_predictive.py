"""The formulas, against what they must be equal to."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.threshold.wrong_hits import (
    exceedance_probability,
    exceeds_risk,
    pool_adjacent_violators,
    wilson_interval,
)


@pytest.mark.parametrize(("mean", "limit"), [(0.5, 0), (6.17, 10), (13.2, 20), (39.0, 50)])
def test_without_doubt_of_the_rate_it_is_poisson(mean: float, limit: int) -> None:
    below = sum(math.exp(-mean + k * math.log(mean) - math.lgamma(k + 1)) for k in range(limit + 1))
    assert exceedance_probability(mean, mean, limit) == pytest.approx(1 - below, rel=1e-3, abs=1e-4)


def test_a_geometric_distribution_is_one_of_them() -> None:
    mean = 4.0  # variance m + m^2 makes it geometric: P(X > k) = (m / (1 + m)) ** (k + 1)
    assert exceedance_probability(mean, mean + mean**2, 9) == pytest.approx(0.8**10, rel=1e-9)


@given(st.floats(0.01, 200), st.floats(1, 50), st.integers(0, 60))
def test_more_doubt_or_a_lower_limit_never_makes_a_small_count_safer(mean: float, spread: float, limit: int) -> None:
    chance = exceedance_probability(mean, mean * spread, limit)
    assert 0.0 <= chance <= 1.0
    assert exceedance_probability(mean, mean * spread, limit + 1) <= chance + 1e-9
    assert exceedance_probability(mean * 1.1, mean * 1.1 * spread, limit) >= chance - 1e-6


@given(st.just(0.0) | st.floats(0.01, 200), st.floats(0, 1000), st.integers(0, 60), st.floats(0.01, 0.5))
def test_what_is_told_without_counting_is_what_counting_tells(
    mean: float, more: float, limit: int, risk: float
) -> None:
    assert exceeds_risk(mean, mean + more, limit, risk) == (exceedance_probability(mean, mean + more, limit) > risk)


def test_nothing_expected_is_no_risk() -> None:
    assert exceedance_probability(0.0, 0.0, 0) == 0.0


@given(st.lists(st.tuples(st.floats(0, 50), st.floats(0.1, 50)), min_size=1, max_size=40))
def test_pooled_rates_never_rise_and_lose_no_label(bands: list[tuple[float, float]]) -> None:
    events, trials = [min(e, t) for e, t in bands], [t for _, t in bands]
    pools = pool_adjacent_violators(events, trials)
    assert all(a.rate >= b.rate - 1e-12 for a, b in itertools.pairwise(pools))
    assert sum(pool.events for pool in pools) == pytest.approx(sum(events))
    assert sum(pool.trials for pool in pools) == pytest.approx(sum(trials))
    assert pools[0].first == 0 and all(a.first < b.first for a, b in itertools.pairwise(pools))


def test_rates_that_fall_already_are_left_alone() -> None:
    assert [pool.rate for pool in pool_adjacent_violators([8, 4, 1], [10, 10, 10])] == [0.8, 0.4, 0.1]


def test_wilson_is_the_textbook_interval() -> None:
    low, high = wilson_interval(0.1, 100)  # Brown, Cai and DasGupta 2001, formula (4), by hand
    assert (low, high) == (pytest.approx(0.0552, abs=2e-4), pytest.approx(0.1744, abs=2e-4))
    assert wilson_interval(0.5, 0) == (0.0, 1.0)
