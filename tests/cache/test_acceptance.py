"""From an operator's promise to a threshold, and from a threshold to a judgement."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.acceptance import CALIBRATION, ThresholdVerifier, threshold_for
from gateway.messages import Refusal
from gateway.ports import Acceptance, Candidate

VERIFIER = ThresholdVerifier()
PROMISE = Acceptance(max_wrong_hits=0.01)


@given(st.floats(0, 1), st.floats(0, 1))
def test_a_stricter_promise_never_lowers_the_threshold(a: float, b: float) -> None:
    strict, lax = sorted((a, b))
    assert threshold_for(strict) >= threshold_for(lax)


@given(st.floats(0, 1))
def test_a_threshold_lies_between_the_loosest_measured_one_and_1(share: float) -> None:
    assert CALIBRATION[-1][1] <= threshold_for(share) <= 1.0


def test_a_promise_of_no_wrong_hits_asks_for_equality() -> None:
    assert threshold_for(0.0) == 1.0


def test_the_threshold_has_no_jumps() -> None:
    steps = [threshold_for(i / 10_000) for i in range(1, 2000)]
    assert max(abs(a - b) for a, b in itertools.pairwise(steps)) < 0.005


async def judged(
    acceptance: Acceptance, question: str, *candidates: tuple[str, float]
) -> list[tuple[bool, str | None]]:
    judgements = await VERIFIER.judge(question, [Candidate(*candidate) for candidate in candidates], acceptance)
    return [(judgement.accepted, judgement.reason) for judgement in judgements]


async def test_each_candidate_is_judged_in_order() -> None:
    found = await judged(
        PROMISE,
        "How do I turn the alarm on?",
        ("How do I turn the alarm off?", 0.99),
        ("How can I turn the alarm on?", 0.97),
        ("What is an alarm?", 0.5),
    )
    assert found == [(False, Refusal.ANTONYM), (True, None), (False, Refusal.SIMILARITY)]


async def test_no_candidates_no_judgements() -> None:
    assert await judged(PROMISE, "anything") == []


async def test_min_similarity_is_a_plain_threshold() -> None:
    """The operator asked for a number and gets that, with no check behind it that the documentation does not name."""
    plain = Acceptance(min_similarity=0.9)
    found = await judged(plain, "in 2021", ("in 2022", 0.9), ("in 2021", 0.8999))
    assert found == [(True, None), (False, Refusal.SIMILARITY)]
    assert VERIFIER.floor(plain) == 0.9


async def test_the_floor_is_the_similarity_that_judge_demands() -> None:
    floor = VERIFIER.floor(PROMISE)
    below = floor - 1e-6
    assert await judged(PROMISE, "a b", ("a b", floor), ("a b", below)) == [(True, None), (False, Refusal.SIMILARITY)]


@pytest.mark.parametrize("acceptance", [PROMISE, Acceptance(min_similarity=0.5)])
async def test_a_judgement_names_what_it_was_held_against(acceptance: Acceptance) -> None:
    (judgement,) = await VERIFIER.judge("a", [Candidate("a", 1.0)], acceptance)
    assert judgement.threshold == VERIFIER.floor(acceptance)
