"""Which token is next."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.generation.asked import Sampling
from gateway.generation.sampling import choose, likeliest, log_probabilities

LOGITS = st.lists(st.floats(-20, 20, width=32), min_size=1, max_size=40).map(lambda v: np.array(v, np.float32))
DRAW = st.floats(0, 1, exclude_max=True)


@given(LOGITS, DRAW)
def test_without_a_temperature_the_likeliest_is_chosen(logits: np.ndarray, draw: float) -> None:
    assert logits[choose(logits, Sampling(), {}, draw)] == logits.max()


@given(LOGITS, DRAW, st.integers(1, 50), st.floats(0, 1))
def test_what_is_drawn_is_among_the_likeliest(logits: np.ndarray, draw: float, top_k: int, top_p: float) -> None:
    chosen = choose(logits, Sampling(1.0, top_p, top_k), {}, draw)
    assert np.count_nonzero(logits > logits[chosen]) < top_k


def test_the_nucleus_is_the_fewest_that_reach_its_share() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.15, 0.05], np.float32))
    draws = np.linspace(0, 1, 200, endpoint=False)
    assert {choose(logits, Sampling(1.0, 0.7), {}, d) for d in draws} == {0, 1}
    assert {choose(logits, Sampling(1.0, 0.0), {}, d) for d in draws} == {0}, "one at least"


def test_draws_follow_the_probabilities() -> None:
    logits = np.log(np.array([0.5, 0.3, 0.2], np.float32))
    draws = np.linspace(0, 1, 1000, endpoint=False)
    counts = Counter(choose(logits, Sampling(1.0), {}, d) for d in draws)
    assert [counts[i] / 1000 for i in range(3)] == pytest.approx([0.5, 0.3, 0.2], abs=0.005)


def test_what_was_said_is_less_likely_by_the_penalties() -> None:
    logits = np.array([2.0, 1.0], np.float32)
    assert choose(logits, Sampling(presence_penalty=1.5), {0: 1}, 0.0) == 1
    assert choose(logits, Sampling(frequency_penalty=0.4), {0: 2}, 0.0) == 0
    assert choose(logits, Sampling(frequency_penalty=0.4), {0: 3}, 0.0) == 1


@given(LOGITS)
def test_log_probabilities_add_up_to_one(logits: np.ndarray) -> None:
    told = log_probabilities(logits)
    assert math.isclose(np.exp(told).sum(), 1.0, rel_tol=1e-9)
    order = likeliest(told, 5)
    assert [told[i] for i in order] == sorted(told, reverse=True)[:5]
