"""The threshold starts safe, falls where labels allow it, rises where they forbid it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.cache.threshold.ledger import (
    BANDS,
    CENTRES,
    LOWEST,
    MAX_AUDIT_WEIGHT,
    MAX_GROWTH,
    MIN_AUDIT_WEIGHT,
    MIN_GROWTH,
    PRIOR_ENTRIES,
    WIDTH,
    ThresholdLedger,
    band_of,
    growth,
)

HIGHEST = LOWEST + BANDS * WIDTH
# Wrong with 60 % at the bottom, 2 % at the top; every twentieth request meets a neighbour of a band.
PRIOR = [(max(0.02, 0.9 - 1.2 * max(0.0, centre - 0.6)), 0.02) for centre in CENTRES.tolist()]


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


def test_a_promise_of_nothing_serves_nothing_uncertain() -> None:
    assert ThresholdLedger(PRIOR).threshold(0.0) == pytest.approx(HIGHEST)


@given(st.lists(st.tuples(st.floats(0.4, 1.3), st.booleans()), max_size=60), st.floats(0, 0.3), st.integers(1, 30))
@settings(deadline=None, max_examples=30)
def test_wrong_hits_never_lower_it_by_much(labels: list[tuple[float, bool]], above: float, count: int) -> None:
    """A wrong label also says that the wrong ones are there, and so not elsewhere."""
    ledger = ThresholdLedger(PRIOR)
    for score, wrong in labels:
        ledger.label(score, float(wrong))
    before = ledger.threshold(0.05)
    for _ in range(count):
        ledger.label(before + above, 1.0)
    assert ledger.threshold(0.05) >= before - WIDTH - 1e-9


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 3))
@settings(deadline=None, max_examples=20)
def test_more_entries_never_lower_it(a: int, b: int, seed: int) -> None:
    ledger = ThresholdLedger(PRIOR)
    traffic(ledger, np.random.default_rng(seed), 100, wrong_below=0.85)
    assert ledger.threshold(0.05, max(a, b)) >= ledger.threshold(0.05, min(a, b))
    assert ledger.threshold(0.05, 10**9) > ledger.threshold(0.05)


def test_a_restart_does_not_move_it() -> None:
    """The estimate then begins at the calibration, however far that is from the labels."""
    for wrong_below in (0.5, 0.8, 1.1):
        ledger, again = ThresholdLedger(PRIOR), ThresholdLedger(PRIOR)
        for i in range(40):
            traffic(ledger, np.random.default_rng(i), 50, wrong_below)
            ledger.threshold(0.01)
        again.restore(ledger.labels.copy(), ledger.wrong.copy(), ledger.neighbours.copy(), ledger.requests)
        assert again.threshold(0.01) == ledger.threshold(0.01)
        assert again.wrong_shares().mean == pytest.approx(ledger.wrong_shares().mean, abs=1e-3)


def test_what_is_expected_above_the_threshold_keeps_the_promise() -> None:
    """Labels as a gateway gets them: of every miss, and of 5 % of the hits."""
    shares = np.clip(3.2 - 3.4 * CENTRES, 0.002, 1.0)
    met = (CENTRES > 0.5) & (CENTRES < 1.1)
    errors, served = [], []
    for seed in range(6):
        random, ledger = np.random.default_rng(seed), ThresholdLedger(PRIOR)
        threshold = ledger.threshold(0.01)
        for step in range(4000):
            ledger.advance(1)
            score = float(random.uniform(0.5, 1.1))
            ledger.observe(score)
            if score < threshold or random.random() < 0.05:
                ledger.label(score, float(random.random() < shares[band_of(score)]))
            if step % 20 == 0:
                threshold = ledger.threshold(0.01)
        hits = met & (threshold < CENTRES)
        errors.append(float(shares[hits].sum() / met.sum()))
        served.append(float(hits.sum() / met.sum()))
    assert sorted(errors)[-2] <= 0.01  # the margin leaves room for a route in twenty
    assert min(served) > 0.1


def test_audits_ask_most_where_least_is_known_and_keep_the_mean() -> None:
    ledger = ThresholdLedger(PRIOR)
    random = np.random.default_rng(3)
    for _ in range(500):
        ledger.advance(1)
        score = float(random.choice([0.95, 1.25]))
        ledger.observe(score)
        if score > 1:
            ledger.label(score, 0.0)
    state = ledger.state_for(0.05)
    weights = np.array(state.audit_weights())
    assert weights[band_of(0.95)] > weights[band_of(1.25)]
    assert ((weights >= MIN_AUDIT_WEIGHT) & (weights <= MAX_AUDIT_WEIGHT)).all()
    served = slice(band_of(state.threshold), BANDS)
    mean = float((state.rates[served] * weights[served]).sum() / state.rates[served].sum())
    assert 0.8 < mean < 1.25


@given(st.lists(st.tuples(st.floats(-1, 2), st.floats(0, 1)), max_size=80), st.floats(0, 0.2))
@settings(deadline=None, max_examples=30)
def test_audit_weights_are_bounded(labels: list[tuple[float, float]], promise: float) -> None:
    ledger = ThresholdLedger(PRIOR)
    for score, wrong in labels:
        ledger.advance(1)
        ledger.observe(score)
        ledger.label(score, wrong)
    weights = ledger.state_for(promise).audit_weights()
    assert len(weights) == BANDS
    assert all(MIN_AUDIT_WEIGHT <= weight <= MAX_AUDIT_WEIGHT for weight in weights)


def test_scores_beyond_the_bands_count_in_the_outer_ones() -> None:
    assert (band_of(-1.0), band_of(9.0)) == (0, BANDS - 1)


def test_a_cache_that_suddenly_holds_more_is_dared_less() -> None:
    ledger = ThresholdLedger(PRIOR)
    for _ in range(5000):
        ledger.advance(1)
        ledger.observe(0.9, entries=PRIOR_ENTRIES)
    assert ledger.typical_entries == pytest.approx(PRIOR_ENTRIES)
    assert growth(round(3.5 * PRIOR_ENTRIES), ledger.typical_entries) == pytest.approx(2.0, rel=0.01)  # as was measured
    assert growth(10**9, ledger.typical_entries) == MAX_GROWTH
    assert ledger.threshold(0.05, 10 * PRIOR_ENTRIES) > ledger.threshold(0.05)
    for _ in range(10_000):
        ledger.advance(1)
        ledger.observe(0.9, entries=10 * PRIOR_ENTRIES)
    # Met and labelled at this size: little is left to be guessed.
    assert growth(10 * PRIOR_ENTRIES, ledger.typical_entries) < 1.15


def test_a_young_cache_is_dared_more_within_bounds() -> None:
    ledger = ThresholdLedger(PRIOR)
    assert ledger.typical_entries == PRIOR_ENTRIES, "no lookup yet"
    assert growth(0, PRIOR_ENTRIES) == 1.0, "not known"
    assert growth(1, PRIOR_ENTRIES) == MIN_GROWTH
    assert growth(PRIOR_ENTRIES, PRIOR_ENTRIES) == pytest.approx(1.0)
    sizes = [growth(entries, PRIOR_ENTRIES) for entries in (1, 100, 300, 1000, 3000, 10**9)]
    assert sizes == sorted(sizes)
    assert ledger.threshold(0.05, 1) < ledger.threshold(0.05)


def test_lookups_of_a_young_cache_say_nothing_about_the_calibrations_neighbours() -> None:
    """A cache filled by misses has seen small sizes. Its threshold is that of one filled without a lookup."""
    by_misses, without_lookups = ThresholdLedger(PRIOR), ThresholdLedger(PRIOR)
    for entries in range(1, 501):
        for ledger in (by_misses, without_lookups):
            ledger.advance(1)
        by_misses.observe(LOWEST, entries)
    assert by_misses.typical_entries < 250
    for promise in (0.01, 0.05):
        for entries in (1, 100, 500):
            assert by_misses.threshold(promise, entries) == without_lookups.threshold(promise, entries)
