"""What labels make of scores, and which threshold keeps a part of the gap."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.routing.share_controller import ScoreWindow
from gateway.routing.tier_controller import (
    MAX_SHIFT,
    MAX_SLOPE,
    MEMORY,
    MIN_SLOPE,
    BandCounts,
    PlattScaling,
    TierCalibration,
    threshold_for,
)

labels_ = st.lists(st.tuples(st.floats(0, 1), st.booleans(), st.floats(0.05, 1)), max_size=300)


def p_of(fit: PlattScaling, score: float) -> float:
    return float(fit(np.array([score]))[0])


def taught(shift: float, slope: float, count: int, seed: int = 1) -> TierCalibration:
    """Labels of a route where scores are off by this much."""
    r, calibration, truth = random.Random(seed), TierCalibration(), PlattScaling(shift, slope)
    for _ in range(count):
        score = r.random()
        calibration.observe(score, r.random() < p_of(truth, score), 1.0)
    return calibration


def test_without_labels_a_score_is_what_it_says() -> None:
    fit = TierCalibration().fit
    assert [p_of(fit, score) for score in (0.1, 0.5, 0.9)] == pytest.approx([0.1, 0.5, 0.9])


@pytest.mark.parametrize(("shift", "slope"), [(-1.2, 1.0), (1.0, 1.0), (0.0, 1.6), (0.5, 0.7)])
def test_labels_find_how_far_scores_are_off(shift: float, slope: float) -> None:
    fit = taught(shift, slope, 3000).fit
    assert fit.shift == pytest.approx(shift, abs=0.15)
    assert fit.slope == pytest.approx(slope, abs=0.2)


def test_a_few_labels_move_little() -> None:
    calibration = TierCalibration()
    for _ in range(3):
        calibration.observe(0.5, True, 1.0)
    assert 0.5 < p_of(calibration.fit, 0.5) < 0.7


@settings(max_examples=100, deadline=None)
@given(labels_)
def test_whatever_the_labels_say_the_map_rises_and_stays_within_its_bounds(
    labels: list[tuple[float, bool, float]],
) -> None:
    calibration = TierCalibration()
    for label in labels:
        calibration.observe(*label)
    fit = calibration.fit
    assert abs(fit.shift) <= MAX_SHIFT and MIN_SLOPE <= fit.slope <= MAX_SLOPE
    mapped = fit(np.linspace(0, 1, 50))
    assert (np.diff(mapped) >= 0).all() and (mapped > 0).all() and (mapped < 1).all()
    assert math.isfinite(fit.root[3]) and fit.root[0] > 0 < fit.root[3]


def test_ten_thousand_complaints_move_a_score_no_further_than_the_bound() -> None:
    calibration = TierCalibration()
    for _ in range(10_000):
        calibration.observe(0.5, True, 0.5)
    assert p_of(calibration.fit, 0.5) <= 1 / (1 + math.exp(-MAX_SHIFT)) + 1e-9


def test_labels_fade_with_the_requests_that_come_after_them() -> None:
    calibration = taught(1.5, 1.0, 200)
    moved = calibration.fit.shift
    calibration.advance(5 * MEMORY)
    assert 0 <= calibration.fit.shift < 0.3 * moved


def scores_of(values: list[float]) -> ScoreWindow:
    return ScoreWindow(values, capacity=len(values))


@settings(max_examples=150, deadline=None)
@given(st.floats(0, 1), st.lists(st.floats(0.001, 0.999), min_size=30, max_size=200), st.floats(-2, 2))
def test_the_threshold_keeps_at_least_the_part_asked_for_and_the_next_higher_one_would_not(
    quality: float, values: list[float], shift: float
) -> None:
    scores, fit = scores_of(values), PlattScaling(shift)
    threshold = threshold_for(quality, scores, fit)
    ordered = np.array(scores.ordered)
    worse = fit(ordered)
    kept = worse[ordered > threshold].sum() / worse.sum()
    assert kept >= quality - 1e-9
    above = ordered[ordered > threshold]
    if len(above):
        fewer = worse[ordered > above.min()].sum() / worse.sum()
        assert fewer < quality + 1e-9


def test_even_traffic_has_the_threshold_that_the_formula_gives() -> None:
    """p even over [0, 1]: kept(t) = 1 - t^2."""
    values = [(k + 0.5) / 400 for k in range(400)]
    assert threshold_for(0.95, scores_of(values), PlattScaling()) == pytest.approx(math.sqrt(0.05), abs=0.01)
    assert threshold_for(1.0, scores_of(values), PlattScaling()) < 0.002
    assert threshold_for(0.0, scores_of(values), PlattScaling()) == 1.0


def test_where_the_light_model_is_better_than_thought_fewer_go_to_the_large_one() -> None:
    """Labels that say so steepen or shift the map: the same part of the gap lies higher up."""
    values = [(k + 0.5) / 400 for k in range(400)]
    better = taught(-1.5, 1.5, 1000).fit
    assert threshold_for(0.9, scores_of(values), better) > threshold_for(0.9, scores_of(values), PlattScaling()) + 0.05


def test_what_is_stated_is_what_was_kept() -> None:
    """Labels of a route whose scores are off; the truth lies in the interval in 9 of 10 streams at least."""
    within = 0
    for seed in range(40):
        r, truth, routed = random.Random(seed), PlattScaling(-0.8, 1.3), BandCounts()
        values = [r.random() for _ in range(1500)]
        for score in values:
            routed.add(score, large=score > 0.4)
        worse = truth(np.array(values))
        true = worse[np.array(values) > 0.4].sum() / worse.sum()
        kept = routed.retention(taught(-0.8, 1.3, 120, seed).fit)
        assert kept.low <= kept.part <= kept.high
        within += kept.low <= true <= kept.high
    assert within >= 36


def test_nothing_is_stated_before_the_first_request() -> None:
    kept = BandCounts().retention(PlattScaling())
    assert math.isnan(kept.part) and (kept.low, kept.high) == (0.0, 1.0)
