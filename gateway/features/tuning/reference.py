"""The reference pairs: everyday questions, which a tuned verifier must still tell apart. Pure but for reading.

Labels of another domain, or labels that mean something else, can pass the gate on their own newest fifth. On the
reference pairs they show: the order of the scores falls apart.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.features.tuning.gate import FloatArray
from gateway.features.tuning.pairs import LabelledPair, read_pairs

FILE = Path(__file__).with_name("reference.jsonl")
MOST_LOST = 0.1  # of the area under the curve; 7,200 real duplicates cost the cross-encoder alone 0.06


def reference_pairs() -> list[LabelledPair]:
    """Return some 600 pairs: hand-written wordings that no weights were fitted on (`training.reference`)."""
    pairs = read_pairs(FILE)
    return pairs[len(pairs) // 2 :]


def anchor_pairs() -> list[LabelledPair]:
    """Return some 600 pairs of the same kind and of other wordings, to train on: what they ask for is not forgotten."""
    pairs = read_pairs(FILE)
    return pairs[: len(pairs) // 2]


def order(scores: FloatArray, same: NDArray[np.bool_]) -> float:
    """Return the area under the ROC curve: the chance that a right pair scores above a wrong one. Ties count half."""
    values, number = np.unique(scores, return_inverse=True)
    right = np.bincount(number[same], minlength=len(values))
    wrong = np.bincount(number[~same], minlength=len(values))
    below = np.cumsum(wrong) - wrong
    return float((right * (below + 0.5 * wrong)).sum() / (right.sum() * wrong.sum()))


def loss(before: float, after: float) -> str | None:
    """Return the reason to refuse a candidate, or None if it has not lost too much."""
    if before - after <= MOST_LOST:
        return None
    return (
        f"it tells everyday questions apart worse than before (AUC {before:.3f} before, {after:.3f} after): "
        "the labels may be of another domain, or mean something else by the same question"
    )
