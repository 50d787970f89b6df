"""The threshold starts safe, falls where labels allow it, rises where they forbid it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cache.threshold.ledger import (
    BANDS,
    LOWEST,
    MAX_AUDIT_WEIGHT,
    MIN_AUDIT_WEIGHT,
    WIDTH,
    ThresholdLedger,
    band_of,
)

HIGHEST = LOWEST + BANDS * WIDTH
CENTRES = [LOWEST + WIDTH * (band + 0.5) for band in range(BANDS)]
# Wrong with 60 % at the bottom, 2 % at the top; every twentieth request meets a neighbour of a band.
PRIOR = [(max(0.02, 0.9 - 1.2 * max(0.0, centre - 0.6)), 0.02) for centre in CENTRES]


def traffic(ledger: ThresholdLedger, random: np.random.Generator, requests: int, wrong_below: float) -> None:
    """Neighbours of all scores; those below `wrong_below` are wrong, all are labelled."""
    for _ in range(requests):
        ledger.advance(1)
        score = float(random.uniform(0.5, 1.2))
        ledger.observe(score)
        ledger.label(score, float(score < wrong_below))


def test_it_starts_stricter_than_it_ends_with_good_news() -> None:
    ledger = ThresholdLedger(PRIOR)
    before = ledger.threshold(0.01)
    traffic(ledger, np.random.default_rng(1), 4000, wrong_below=0.8)
    after = ledger.threshold(0.01)
    assert 0.8 <= after < before


def test_bad_news_raises_it() -> None:
    ledger = ThresholdLedger(PRIOR)
    traffic(ledger, np.random.default_rng(1), 6000, wrong_below=0.7)
    good = ledger.threshold(0.05)
    traffic(ledger, np.random.default_rng(2), 1000, wrong_below=1.0)
    assert ledger.threshold(0.05) > good  # one band of the wrong ones, 29 in 1,000 requests, is within the promise


def test_more_neighbours_raise_it_without_any_label() -> None:
    """A cache that grows meets more neighbours: the same share of wrong ones is more wrong answers."""

    def met(every: int) -> float:
        ledger = ThresholdLedger(PRIOR)
        for i in range(3000):
            ledger.advance(1)
            if i % every == 0:
                ledger.observe(CENTRES[(i // every) % BANDS])
        return ledger.threshold(0.05)

    assert met(every=1) > met(every=3) > met(every=10)


@given(st.floats(0.0001, 0.2), st.floats(0.0001, 0.2), st.integers(0, 3))
@settings(deadline=None, max_examples=30)
def test_a_stricter_promise_never_lowers_it(a: float, b: float, seed: int) -> None:
    ledger = ThresholdLedger(PRIOR)
    traffic(ledger, np.random.default_rng(seed), 200, wrong_below=0.85)
    assert ledger.threshold(min(a, b)) >= ledger.threshold(max(a, b))
    assert LOWEST <= ledger.threshold(a) <= HIGHEST


def test_a_promise_of_less_than_one_in_a_window_serves_nothing_uncertain() -> None:
    assert ThresholdLedger(PRIOR).threshold(0.0) == pytest.approx(HIGHEST)


def test_what_is_expected_above_the_threshold_keeps_the_promise() -> None:
    """Replayed: in windows of 1,000 further requests of the same traffic, at most 5 % break it."""
    random = np.random.default_rng(5)
    shares = np.array([min(1.0, max(0.005, 3.2 - 3.4 * centre)) for centre in CENTRES])

    def request() -> tuple[float, bool]:
        score = float(random.uniform(0.5, 1.1))
        return score, bool(random.random() < shares[band_of(score)])

    ledger = ThresholdLedger(PRIOR)
    for _ in range(6000):
        ledger.advance(1)
        score, wrong = request()
        ledger.observe(score)
        ledger.label(score, float(wrong))
    threshold = ledger.threshold(0.05)
    broken = 0
    for _ in range(100):
        window = [request() for _ in range(1000)]
        broken += sum(wrong for score, wrong in window if score >= threshold) > 50
    assert threshold < 0.96 and broken <= 5


def test_audits_ask_most_where_least_is_known_and_keep_the_mean() -> None:
    ledger = ThresholdLedger(PRIOR)
    random = np.random.default_rng(3)
    for _ in range(500):
        ledger.advance(1)
        score = float(random.choice([0.95, 1.05]))
        ledger.observe(score)
        if score > 1:
            ledger.label(score, 0.0)
    weights = ledger.audit_weights(0.94)
    assert weights[band_of(0.95)] > weights[band_of(1.05)]
    assert all(MIN_AUDIT_WEIGHT <= weight <= MAX_AUDIT_WEIGHT for weight in weights)
    rates = (ledger.met + 1e-9)[band_of(0.94) :]
    mean = float((rates * np.array(weights)[band_of(0.94) :]).sum() / rates.sum())
    assert 0.8 < mean < 1.25


def test_scores_beyond_the_bands_count_in_the_outer_ones() -> None:
    assert (band_of(-1.0), band_of(9.0)) == (0, BANDS - 1)


def test_a_cache_that_suddenly_holds_more_is_dared_less() -> None:
    ledger = ThresholdLedger(PRIOR)
    for _ in range(100):
        ledger.advance(1)
        ledger.observe(0.9, entries=1000)
    assert ledger.growth(1000) == pytest.approx(1.0)
    assert ledger.growth(3500) == pytest.approx(2.0, rel=0.01)  # what was measured
    assert ledger.growth(100) == ledger.growth(0) == 1.0
    assert ledger.threshold(0.05, ledger.growth(10_000)) > ledger.threshold(0.05)
    for _ in range(5000):
        ledger.advance(1)
        ledger.observe(0.9, entries=10_000)
    assert ledger.growth(10_000) < 1.01  # met and labelled at this size: nothing is left to be guessed
