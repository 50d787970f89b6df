"""The reference pairs, and the order of their scores."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.features.tuning.pairs import LabelledPair
from gateway.features.tuning.reference import anchor_pairs, loss, order, reference_pairs


def test_there_are_enough_pairs_of_both_kinds() -> None:
    for pairs in (reference_pairs(), anchor_pairs()):
        assert len(pairs) > 500
        assert 0.2 < np.mean([pair.same for pair in pairs]) < 0.5


def test_what_judges_a_candidate_did_not_train_it() -> None:
    texts = [{text for pair in pairs for text in (pair.asked, pair.stored)} for pairs in _halves()]
    shared = texts[0] & texts[1]
    assert len(shared) <= 15  # at most the group that the cut divides


def _halves() -> tuple[list[LabelledPair], list[LabelledPair]]:
    return reference_pairs(), anchor_pairs()


def test_the_order_is_that_of_a_worked_example() -> None:
    scores = np.array([0.9, 0.5, 0.5, 0.1, -np.inf])
    same = np.array([True, True, False, False, False])
    assert order(scores, same) == pytest.approx((3 + 2.5) / 6)


def test_a_candidate_may_lose_a_little() -> None:
    assert loss(0.9, 0.82) is None
    assert loss(0.8, 0.9) is None
    assert "AUC 0.900 before, 0.750 after" in str(loss(0.9, 0.75))
