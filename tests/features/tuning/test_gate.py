"""The gate, on scores whose result is known."""

from __future__ import annotations

import numpy as np
import pytest

from gateway.features.tuning.gate import at_promise, judge


def labels(count: int, seed: int = 1) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    return random.random(count) < 0.4, random.standard_normal(count)


def test_the_served_share_is_that_of_a_worked_example() -> None:
    scores = np.array([0.9, 0.8, 0.7, 0.6, 0.5, 0.4, -np.inf, -np.inf, -np.inf, -np.inf])
    same = np.array([1, 1, 0, 1, 0, 1, 1, 1, 1, 1], np.bool_)
    assert at_promise(scores, same, 0.0).share == 0.2
    found = at_promise(scores, same, 0.1)
    assert (found.share, found.wrong, found.threshold) == (0.4, 0.1, 0.6)
    assert at_promise(scores, same, 0.2).share == 0.6, "pairs that are never served are not served at any promise"


def test_pairs_of_one_score_are_served_together() -> None:
    assert at_promise(np.array([1.0, 1.0, 0.5]), np.array([True, False, True]), 0.0).share == 0.0


def test_a_better_score_passes() -> None:
    same, noise = labels(1000)
    verdict = judge(same + 0.6 * noise, same + 0.3 * noise, same, range(1000), 0.01)
    assert verdict.passed
    assert verdict.after.share - verdict.before.share >= 0.01
    assert verdict.before.wrong <= 0.01 >= verdict.after.wrong
    assert "that it did not learn from" in verdict.why


@pytest.mark.parametrize("seed", range(5))
def test_another_noise_does_not_pass(seed: int) -> None:
    same, noise = labels(200, seed)
    other = np.random.default_rng(100 + seed).standard_normal(200)
    assert not judge(same + 0.5 * noise, same + 0.5 * other, same, range(200), 0.01).passed


def test_a_worse_score_does_not_pass() -> None:
    same, noise = labels(1000)
    verdict = judge(same + 0.3 * noise, same + 0.6 * noise, same, range(1000), 0.01)
    assert not verdict.passed
    assert "a gain of 1% is required" in verdict.why


def test_a_gain_on_one_question_is_chance() -> None:
    """All pairs that gain share a question: one draw of the bootstrap leaves them out together."""
    same = np.ones(200, np.bool_)
    same[150:] = False
    before = np.linspace(1.0, 0.0, 200)
    before[100:150] = -0.5  # right ones, below the wrong ones
    after = np.linspace(1.0, 0.0, 200)
    groups = [*range(100), *[100] * 50, *range(101, 151)]
    verdict = judge(before, after, same, groups, 0.0)
    assert verdict.after.share - verdict.before.share == pytest.approx(0.25)
    assert not verdict.passed
    assert "may be chance" in verdict.why
