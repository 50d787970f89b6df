"""The next token, by what a model gives for each: chosen, and how likely it was. Pure."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gateway.generation.asked import Sampling

Logits = NDArray[np.float32]
"""One number a token of the vocabulary, shape (v,): log probabilities but for a constant."""


def choose(logits: Logits, sampling: Sampling, said: Mapping[int, int], draw: float) -> int:
    """`said`: how often each token of the answer stands there already. `draw` in [0, 1): what decides by chance.

    Nucleus sampling (Holtzman et al., ICLR 2020): of the likeliest tokens as many as `top_p` takes, one at least."""
    scores = penalised(logits, sampling, said)
    if sampling.temperature == 0:
        return int(np.argmax(scores))
    order = _likeliest(scores, sampling)
    if order is None:  # among all: no need to sort a vocabulary of 150,000
        return _drawn(_probabilities(scores / np.float32(sampling.temperature)), draw)
    probabilities = _probabilities(scores[order] / np.float32(sampling.temperature))
    if sampling.top_p < 1:
        kept = int(np.searchsorted(np.cumsum(probabilities), sampling.top_p)) + 1
        probabilities = probabilities[:kept]
    return int(order[_drawn(probabilities, draw)])


def penalised(logits: Logits, sampling: Sampling, said: Mapping[int, int]) -> Logits:
    """By OpenAI's formula: so much less for a token that was said at all, and for each time it was."""
    if not said or (sampling.presence_penalty == 0 and sampling.frequency_penalty == 0):
        return logits
    scores = logits.copy()
    for token, times in said.items():
        scores[token] -= sampling.presence_penalty + times * sampling.frequency_penalty
    return scores


def log_probabilities(logits: Logits) -> NDArray[np.float64]:
    """Natural logarithms: of the model itself, whatever the temperature."""
    shifted = logits.astype(np.float64) - float(np.max(logits))
    result: NDArray[np.float64] = shifted - np.log(np.sum(np.exp(shifted)))
    return result


def likeliest(told: NDArray[np.float64], number: int) -> list[int]:
    """The tokens with the highest values, highest first."""
    number = min(number, len(told))
    if number == 0:
        return []
    some = np.argpartition(told, -number)[-number:]
    return [int(token) for token in some[np.argsort(-told[some], kind="stable")]]


def _likeliest(scores: Logits, sampling: Sampling) -> NDArray[np.int64] | None:
    """The tokens that may be chosen, likeliest first; None: all, in no order."""
    if 0 < sampling.top_k < len(scores):
        some = np.argpartition(scores, -sampling.top_k)[-sampling.top_k :]
        return some[np.argsort(-scores[some], kind="stable")]
    return np.argsort(-scores, kind="stable") if sampling.top_p < 1 else None


def _probabilities(scores: Logits) -> NDArray[np.float64]:
    weights = np.exp(scores.astype(np.float64) - float(np.max(scores)))
    result: NDArray[np.float64] = weights / weights.sum()
    return result


def _drawn(probabilities: NDArray[np.float64], draw: float) -> int:
    """They need not add up to 1."""
    reached = np.cumsum(probabilities)
    return min(int(np.searchsorted(reached, draw * reached[-1], side="right")), len(reached) - 1)
