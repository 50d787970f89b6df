"""Which upstream is asked: costs, two choices, and keys that stay where they are."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.load_balancer import (
    BOUNDED_LOAD_FACTOR,
    TIME_CONSTANT_S,
    LoadCandidate,
    PeakEwma,
    power_of_two_choices,
    sticky,
)

SECONDS = st.floats(0.001, 100)
CANDIDATES = st.lists(
    st.builds(LoadCandidate, st.text(max_size=5), st.integers(0, 50), st.floats(0.01, 100), SECONDS),
    min_size=1,
    max_size=8,
    unique_by=lambda candidate: candidate.name,
)


def test_a_slower_answer_counts_at_once_and_faster_ones_by_and_by() -> None:
    ewma = PeakEwma()
    ewma.observe(0.1, 0.0)
    ewma.observe(3.0, 1.0)
    assert ewma.seconds == 3.0
    ewma.observe(0.1, 1.0 + TIME_CONSTANT_S)
    assert ewma.seconds == pytest.approx(0.1 + 2.9 / math.e)


@given(st.lists(st.tuples(SECONDS, st.floats(0, 30)), min_size=1))
def test_what_is_expected_lies_between_the_best_and_the_slowest_that_was_seen(seen: list[tuple[float, float]]) -> None:
    ewma, now = PeakEwma(), 0.0
    for seconds, later in seen:
        now += later
        ewma.observe(seconds, now)
    values = [seconds for seconds, _ in seen]
    for best in (0.001, min(values), 50.0):
        expected = ewma.expected(best, now + 5)
        assert min(best, *values) * 0.999 <= expected <= max(best, *values) * 1.001


@given(SECONDS, SECONDS)
def test_an_upstream_that_nobody_asks_becomes_as_good_as_the_best(seconds: float, best: float) -> None:
    ewma = PeakEwma()
    ewma.observe(seconds, 0.0)
    assert ewma.expected(best, 40 * TIME_CONSTANT_S) == pytest.approx(best)


@given(SECONDS, SECONDS)
def test_a_failure_makes_no_upstream_faster(seen: float, failed_after: float) -> None:
    ewma = PeakEwma()
    ewma.observe_censored(failed_after, 0.0)
    assert ewma.seconds is None
    ewma.observe(seen, 1.0)
    ewma.observe_censored(failed_after, 100.0)
    assert ewma.seconds == max(seen, failed_after)


@given(CANDIDATES, st.floats(0, 1, exclude_max=True), st.floats(0, 1, exclude_max=True))
def test_the_dearest_of_several_is_never_chosen(candidates: list[LoadCandidate], first: float, second: float) -> None:
    draws = iter([first, second])
    chosen = candidates[power_of_two_choices(candidates, lambda: next(draws))]
    if len(candidates) > 1:
        assert sum(candidate.cost >= chosen.cost for candidate in candidates) >= 2


def test_two_different_ones_are_drawn_and_each_as_often() -> None:
    chance = random.Random(7)
    candidates = [LoadCandidate(str(i), load=0, weight=1.0) for i in range(4)]
    counts = Counter(power_of_two_choices(candidates, chance.random) for _ in range(8000))
    assert all(count == pytest.approx(2000, rel=0.1) for count in counts.values())


def test_twice_the_latency_or_half_the_weight_bear_half_the_load() -> None:
    """Calls that stay: the loads end up in proportion to weight over latency."""
    chance = random.Random(7)
    kinds = [(1.0, 1.0), (1.0, 2.0), (2.0, 1.0)]  # weight, seconds
    loads = [0, 0, 0]
    for _ in range(700):
        candidates = [LoadCandidate(str(i), loads[i], weight, seconds) for i, (weight, seconds) in enumerate(kinds)]
        loads[power_of_two_choices(candidates, chance.random)] += 1
    assert loads == pytest.approx([200, 100, 400], abs=8)


@given(CANDIDATES, st.binary(min_size=1, max_size=32))
def test_a_key_never_goes_to_who_has_more_than_its_part(candidates: list[LoadCandidate], key: bytes) -> None:
    chosen = candidates[sticky(key, candidates)]
    total, weights = sum(each.load for each in candidates) + 1, sum(each.weight for each in candidates)
    assert chosen.load < math.ceil(BOUNDED_LOAD_FACTOR * total * chosen.weight / weights)


@given(st.integers(2, 8), st.binary(min_size=1, max_size=32))
def test_when_an_upstream_goes_only_its_keys_move(count: int, key: bytes) -> None:
    candidates = [LoadCandidate(f"http://host-{i}", 0, 1.0) for i in range(count)]
    home = candidates[sticky(key, candidates)]
    for gone in candidates:
        rest = [candidate for candidate in candidates if candidate is not gone]
        assert (rest[sticky(key, rest)] is home) == (gone is not home)


def test_keys_are_spread_by_weight() -> None:
    candidates = [LoadCandidate("a", 0, 1.0), LoadCandidate("b", 0, 2.0), LoadCandidate("c", 0, 1.0)]
    counts = Counter(sticky(str(i).encode(), candidates) for i in range(4000))
    assert [counts[i] / 4000 for i in range(3)] == pytest.approx([0.25, 0.5, 0.25], abs=0.03)
