"""The stated share of wrong hits and its interval."""

from __future__ import annotations

import math

import numpy as np
import pytest

from gateway.cache.threshold.wrong_hits import Label, WrongHits, wilson_interval


def test_without_audits_nothing_is_known_but_how_often_it_could_be() -> None:
    counts = WrongHits()
    assert math.isnan(counts.estimate().of_all)
    assert (counts.estimate().of_all_low, counts.estimate().of_all_high) == (0.0, 1.0)
    counts.advance(100)
    for _ in range(20):
        counts.hit()
    assert counts.estimate().of_all_high == pytest.approx(0.2, rel=0.01)


def test_rare_audits_weigh_more() -> None:
    counts = WrongHits()
    counts.advance(1000)
    for _ in range(400):
        counts.hit()
    for _ in range(20):
        counts.audited(Label.RIGHT, 0.1)
    for _ in range(20):
        counts.audited(Label.WRONG, 0.5)
    estimate = counts.estimate()
    assert estimate.of_served == pytest.approx(40 / 240)
    assert estimate.of_all == pytest.approx(40 / 240 * 0.4, rel=0.05)
    assert estimate.of_all_low < estimate.of_all < estimate.of_all_high


def test_what_an_audit_cannot_tell_widens_the_interval_and_moves_nothing() -> None:
    counts = WrongHits()
    counts.advance(1000)
    for _ in range(100):
        counts.hit()
    for i in range(50):
        counts.audited(Label.WRONG if i < 5 else Label.RIGHT, 0.5)
    sure = counts.estimate()
    for _ in range(50):
        counts.audited(Label.UNDECIDED, 0.5)
    unsure = counts.estimate()
    assert unsure.of_served == sure.of_served
    assert unsure.of_served_low < sure.of_served_low and unsure.of_served_high > 0.5 > sure.of_served_high


def test_complaints_are_known_to_be_wrong() -> None:
    counts = WrongHits()
    counts.advance(100)
    for _ in range(50):
        counts.hit()
    for _ in range(10):
        counts.record_complaint()
    assert counts.estimate().of_served_low == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize("true", [0.02, 0.08, 0.25])
def test_the_interval_contains_the_truth_in_nine_of_ten_runs(true: float) -> None:
    """5 % of the hits audited, more of the doubtful ones, 50 runs."""
    contained = 0
    for seed in range(50):
        random, counts, wrong_hits, requests = np.random.default_rng(seed), WrongHits(), 0, 5000
        for _ in range(requests):
            counts.advance(1)
            if random.random() > 0.3:
                continue
            doubtful = random.random() < 0.3
            wrong = random.random() < (2.0 if doubtful else 4 / 7) * true
            chance = 0.11 if doubtful else 0.025
            counts.hit()
            wrong_hits += wrong
            if random.random() < chance:
                counts.audited(Label.WRONG if wrong else Label.RIGHT, chance)
        estimate = counts.estimate()
        contained += estimate.of_all_low <= wrong_hits / requests <= estimate.of_all_high
    assert contained >= 45


def test_wilson_is_the_textbook_interval() -> None:
    low, high = wilson_interval(0.1, 100)  # Brown, Cai and DasGupta 2001, formula (4), by hand
    assert (low, high) == (pytest.approx(0.0552, abs=2e-4), pytest.approx(0.1744, abs=2e-4))
    assert wilson_interval(0.5, 0) == (0.0, 1.0)


def test_audits_of_answers_that_all_questions_get_say_nothing() -> None:
    counts = WrongHits()
    counts.advance(10_000)
    for _ in range(1_000):
        counts.hit()
        counts.audited(Label.RIGHT, 0.5, equal_chance=1.0)
    estimate = counts.estimate()
    assert math.isnan(estimate.of_all) and math.isnan(estimate.of_served)
    assert (estimate.of_served_low, estimate.of_served_high) == (0.0, 1.0)
    assert estimate.of_all_high == pytest.approx(counts.served / counts.requests)


def test_faults_that_equal_answers_hide_are_added() -> None:
    """Of 100 hits that are wrong by question, "no" is the answer to both in 90."""
    counts = WrongHits()
    counts.advance(10_000)
    for number in range(1_000):
        counts.hit()
        counts.audited(Label.WRONG if number < 10 else Label.RIGHT, 1.0, equal_chance=0.9)
    estimate = counts.estimate()
    assert estimate.of_served == pytest.approx(0.1)
    assert estimate.of_served_low < 0.06 and estimate.of_served_high > 0.17


@pytest.mark.parametrize("equal_chance", [0.0, 0.9, 1.0])
def test_a_fault_is_always_told(equal_chance: float) -> None:
    counts = WrongHits()
    counts.hit(10)
    counts.audited(Label.WRONG, 0.02, equal_chance)
    estimate = counts.estimate()
    assert estimate.of_served == 1.0
    assert 0.0 < estimate.of_served_low < 0.3


def test_sums_of_an_earlier_version_count_every_audit_in_full() -> None:
    old = WrongHits.of_row({"requests": 100.0, "served": 50.0, "weights": 20.0, "squares": 20.0, "wrong": 2.0})
    assert old.information == 20.0
    assert old.estimate().of_served == pytest.approx(0.1)
