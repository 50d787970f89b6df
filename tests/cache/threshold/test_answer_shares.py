"""How much an equal answer says depends on how often unlike questions get it."""

from __future__ import annotations

import random

import pytest

from gateway.cache.threshold.answer_shares import MAX_ANSWERS, AnswerShares, right_after_equal
from gateway.cache.threshold.ledger import BANDS
from gateway.cache.threshold.route_control import Observation, RouteControl
from gateway.cache.threshold.wrong_hits import Label
from gateway.ports import Acceptance
from tests.fixtures.entries import vector_of

SENTENCE = "the parcel leaves oslo on monday and arrives two days later in bergen"


def shares_of(*answers: str) -> AnswerShares:
    shares = AnswerShares()
    for answer in answers:
        shares.observe(answer)
    return shares


def test_an_answer_that_all_questions_get_proves_nothing() -> None:
    chance = shares_of(*["no"] * 200).chance("no")
    assert chance > 0.95
    assert right_after_equal(0.5, chance) == pytest.approx(0.5, abs=0.02)


def test_a_rare_answer_proves_that_questions_ask_the_same() -> None:
    chance = shares_of(*["no"] * 100, *map(str, range(100)), "fraud").chance("fraud")
    assert chance < 0.05
    assert right_after_equal(0.5, chance) > 0.95


def test_before_other_answers_are_known_a_word_says_less_than_a_sentence() -> None:
    assert AnswerShares().chance("yes") > 0.5
    assert AnswerShares().chance(SENTENCE) < 0.05


def test_the_answer_that_is_compared_does_not_count_against_itself() -> None:
    assert shares_of(SENTENCE).chance(SENTENCE) <= AnswerShares().chance(SENTENCE)


def test_answers_in_other_words_count_as_the_same() -> None:
    shares, sorry = AnswerShares(), vector_of(1)
    for number in range(50):
        shares.observe(f"sorry, no, {number}", sorry)
    assert shares.chance("sorry, no", sorry) > 0.9
    assert shares.chance("sorry, no", vector_of(2)) < 0.5


def test_the_answers_of_a_route_are_bounded_and_the_frequent_ones_stay() -> None:
    shares = shares_of(*["no"] * 50, *map(str, range(3 * MAX_ANSWERS)))
    assert len(shares._answers) <= MAX_ANSWERS
    assert "no" in shares._answers


@pytest.mark.parametrize("rare", [0.01, 0.1, 0.5])
def test_equal_answers_of_two_classes_do_not_teach_that_unlike_questions_are_alike(rare: float) -> None:
    """Unlike questions before a classifier of two labels, whose shares are `rare` and the rest."""
    control, shares, rng = RouteControl([(0.3, 0.02)] * BANDS, "basis"), AnswerShares(), random.Random(7)
    cold = control.threshold(Acceptance(max_wrong_hits=0.01))
    for number in range(1_000):
        stored, fresh = ("yes" if rng.random() < rare else "no" for _ in range(2))
        label = Label.RIGHT if stored == fresh else Label.WRONG
        chance = shares.chance(fresh)
        control.learn(Observation(vector_of(number), 0.9, 0.7, label, chance=chance))
        shares.observe(fresh)
    control._forget_thresholds()
    assert control.threshold(Acceptance(max_wrong_hits=0.01)) >= cold
    assert control.shift(vector_of(5_000)) < 0.05
