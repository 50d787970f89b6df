"""What is made of the candidates that a lookup found."""

from __future__ import annotations

import pytest

from gateway.cache.judgement import best_index, evaluate, is_verbatim
from gateway.cache.threshold.ledger import BANDS
from gateway.cache.threshold.route_control import RouteControl
from gateway.messages import Refusal
from gateway.ports import VERBATIM, Acceptance, Evaluated, Opinion
from tests.fixtures.entries import judged_of

CONTROL = RouteControl([(0.5, 0.02)] * BANDS, "basis")
PROMISE, PLAIN = Acceptance(max_wrong_hits=0.01), Acceptance(min_similarity=0.9)


def of(opinion: Opinion, acceptance: Acceptance, similarity: float = 0.95) -> Evaluated:
    control = CONTROL if acceptance is PROMISE else None
    threshold = CONTROL.threshold(acceptance)
    return Evaluated(similarity, opinion, threshold, *evaluate(similarity, opinion, threshold, control))


def test_below_the_threshold_the_doubt_is_the_reason() -> None:
    assert of(Opinion(0.5, 0.5, doubt=Refusal.NUMBERS), PROMISE).reason is Refusal.NUMBERS
    assert of(Opinion(0.5, 0.5), PROMISE).reason is Refusal.SIMILARITY


def test_a_veto_stands_whatever_the_score() -> None:
    found = of(Opinion(5.0, 1.0, veto=Refusal.PAYLOAD), PROMISE)
    assert (found.reason, found.probability) == (Refusal.PAYLOAD, 0.0)


def test_the_same_words_need_no_threshold() -> None:
    found = of(VERBATIM, PROMISE)
    assert (found.reason, found.verbatim, found.gray) == (None, True, False)


def test_a_plain_threshold_holds_the_similarity_and_heeds_counterexamples() -> None:
    assert of(Opinion(0.0, 0.0), PLAIN, 0.9).reason is None
    assert of(Opinion(0.0, 0.0), PLAIN, 0.89).reason is Refusal.SIMILARITY
    assert of(Opinion(0.0, 0.0, veto=Refusal.COUNTEREXAMPLE), PLAIN).reason is Refusal.COUNTEREXAMPLE


def test_the_best_is_verbatim_then_without_a_veto_then_by_score() -> None:
    vetoed = judged_of(opinion=Opinion(0.99, 0.9, veto=Refusal.PAYLOAD), score=0.99)
    low, high = judged_of(score=0.7), judged_of(score=0.8)
    same = judged_of(opinion=VERBATIM, score=0.1)
    assert best_index([vetoed, low, high, high]) == 2
    assert best_index([vetoed, low, same]) == 2
    assert best_index([vetoed]) == 0


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("how  are you", " how are\tyou ", True),
        ("how are you", "How are you", False),
        ("if x:\n    y()", "if x:\n  y()", False),
        ("if x:\n    y()  ", "if x:  \n    y()\n", True),
        ("", " ", True),
    ],
)
def test_spaces_do_not_matter_except_in_lines_of_code(a: str, b: str, same: bool) -> None:
    assert is_verbatim(a, b) is same is is_verbatim(b, a)
