"""The numbers of the score: few labels leave them, many move them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from gateway.cache.verifiers import MAX_LOGIT, load_weights
from gateway.features.tuning.numbers import Numbers, ScoreInputs, fit, ridge

WEIGHTS = load_weights()
SHIPPED = Numbers(WEIGHTS.first, WEIGHTS.second, (9.0, -7.0), [(0.2, 0.02)] * 50)


def made(count: int, chance: Callable[..., np.ndarray], seed: int = 0) -> tuple[ScoreInputs, np.ndarray]:
    random = np.random.default_rng(seed)
    similarity, doubt = random.uniform(0.6, 1.0, count), random.uniform(0.0, 1.0, count)
    logit = 3.0 * random.standard_normal(count)
    same = random.random(count) < chance(similarity, doubt, logit)
    words_shared = np.random.default_rng(seed + 100).uniform(0.0, 1.0, count)
    return ScoreInputs(similarity, doubt, logit, words_shared, np.ones(count, np.bool_)), same


def by_logit(similarity: np.ndarray, doubt: np.ndarray, logit: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-2.0 * logit))


def test_few_labels_leave_the_shipped_numbers() -> None:
    rows = np.random.default_rng(1).standard_normal((5, 1))
    _, weight = ridge(rows, np.array([1.0, 0.0, 1.0, 0.0, 1.0]), (0.3, 2.0))
    assert weight == pytest.approx(2.0, abs=0.25)


def test_many_labels_move_them() -> None:
    rows = np.random.default_rng(1).standard_normal((20_000, 1))
    same = np.random.default_rng(2).random(20_000) < 1.0 / (1.0 + np.exp(-(0.5 + 1.5 * rows[:, 0])))
    bias, weight = ridge(rows, same.astype(float), (0.0, 0.2))
    assert weight == pytest.approx(1.5, abs=0.1)
    assert bias == pytest.approx(0.5, abs=0.1)


def test_the_input_that_tells_gets_the_weight() -> None:
    inputs, same = made(4000, by_logit)
    found = fit(SHIPPED, inputs, same, SHIPPED.scores(inputs))
    best = [same[np.argsort(-numbers.scores(inputs))[:1000]].mean() for numbers in (SHIPPED, found)]
    assert best[1] > max(best[0], 0.97)


def test_the_numbers_of_exchanged_words_stay() -> None:
    inputs, same = made(4000, by_logit)
    found, shipped = fit(SHIPPED, inputs, same, SHIPPED.scores(inputs)).second, SHIPPED.second
    assert (found.near_doubt, found.near_refusal) == (shipped.near_doubt, shipped.near_refusal)
    assert found.approval != shipped.approval


def test_anchors_count_for_the_score() -> None:
    """Traffic that says nothing of the logit does not take the say from it that the anchors give."""
    inputs, same = made(1000, lambda *inputs: np.full(len(inputs[0]), 0.5))
    anchors = made(1000, by_logit, seed=1)
    alone, anchored = (fit(SHIPPED, inputs, same, SHIPPED.scores(inputs), each).second for each in (None, anchors))
    said = [second.log_odds(0.8, 0.2, 4.0) - second.log_odds(0.8, 0.2, -4.0) for second in (alone, anchored)]
    assert said[1] > said[0] + 1.0


def test_the_new_prior_has_the_rates_of_the_shipped_traffic() -> None:
    """Every pair counts as often as the best neighbours of its band come. These pairs exchange no words."""
    inputs, same = made(4000, by_logit)
    plain = replace(SHIPPED, second=replace(SHIPPED.second, near_doubt=0.0, near_refusal=0.0))
    found = fit(plain, inputs, same, plain.scores(inputs))
    assert sum(rate for _, rate in found.prior) == pytest.approx(sum(rate for _, rate in SHIPPED.prior))
    shares = [share for share, _ in found.prior]
    assert shares == sorted(shares, reverse=True)
    assert 0.0 < shares[-1] < 0.1 < 0.9 < shares[0] < 1.0


def test_a_higher_logit_never_lowers_the_score() -> None:
    inputs, same = made(2000, lambda *inputs: 1.0 / (1.0 + np.exp(inputs[2])))
    second = fit(SHIPPED, inputs, same, SHIPPED.scores(inputs)).second
    for words_shared in (0.0, 0.9, 1.0):
        odds = [second.log_odds(0.97, 0.5, logit, words_shared) for logit in (-MAX_LOGIT, -1.0, 0.0, 1.0, MAX_LOGIT)]
        assert odds == sorted(odds)


def test_a_pair_with_a_veto_is_never_served() -> None:
    inputs, _ = made(3, by_logit)
    inputs.servable[1] = False
    assert np.isinf(SHIPPED.scores(inputs)).tolist() == [False, True, False]
