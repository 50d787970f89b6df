"""The reference pairs, and the order of their scores."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.tools.tuning.reference import loss, order, reference_pairs


def test_there_are_enough_pairs_of_both_kinds() -> None:
    pairs = reference_pairs()
    assert len(pairs) > 1000
    assert 0.25 < np.mean([pair.same for pair in pairs]) < 0.5


def test_the_order_is_that_of_a_worked_example() -> None:
    scores = np.array([0.9, 0.5, 0.5, 0.1, -np.inf])
    same = np.array([True, True, False, False, False])
    assert order(scores, same) == pytest.approx((3 + 2.5) / 6)


def test_a_candidate_may_lose_a_little() -> None:
    assert loss(0.9, 0.82) is None
    assert loss(0.8, 0.9) is None
    assert "AUC 0.900 before, 0.750 after" in str(loss(0.9, 0.75))
