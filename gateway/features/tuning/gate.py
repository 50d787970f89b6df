"""The gate: a candidate is put in force only if it serves more of the newest labels at the promise's error. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
LEAST_LABELS = 1000
LEAST_GAIN = 0.01  # share of the pairs
SAMPLES = 1000  # of the bootstrap
CONFIDENCE = 0.95  # one-sided


@dataclass(frozen=True, slots=True)
class OperatingPoint:
    """The best that one threshold can serve within a promise."""

    share: float  # of all pairs
    wrong: float  # share of all pairs
    threshold: float  # inf: nothing is served


def at_promise(
    scores: FloatArray, same: NDArray[np.bool_], promise: float, counts: FloatArray | None = None
) -> OperatingPoint:
    """Return the result of the lowest threshold whose wrong share of all pairs is at most `promise`.

    `counts` says how often each of the n pairs counts. Without it, each counts once.
    """
    return Ranking(scores, same).at_promise(promise, counts)


class Ranking:
    """Pairs in descending order of their scores, for many samples."""

    def __init__(self, scores: FloatArray, same: NDArray[np.bool_]) -> None:
        self._order = np.argsort(-scores, kind="stable")
        self._scores = scores[self._order]
        self._wrong = (~same[self._order]).astype(np.float64)
        # A threshold serves all pairs of one score or none of them.
        self._ends = np.append(self._scores[1:] != self._scores[:-1], True) & np.isfinite(self._scores)

    def at_promise(self, promise: float, counts: FloatArray | None = None) -> OperatingPoint:
        counted = np.ones(len(self._scores)) if counts is None else counts[self._order]
        total = float(counted.sum())
        wrong = np.cumsum(counted * self._wrong)
        allowed = np.flatnonzero(self._ends & (wrong <= promise * total + 1e-9))
        if not len(allowed) or total == 0.0:
            return OperatingPoint(0.0, 0.0, float("inf"))
        last = int(allowed[-1])
        share = float(counted[: last + 1].sum()) / total
        return OperatingPoint(share, float(wrong[last]) / total, float(self._scores[last]))


@dataclass(frozen=True, slots=True)
class GateVerdict:
    """The gate's decision. `why` is plain words."""

    passed: bool
    why: str
    before: OperatingPoint
    after: OperatingPoint
    least_gain: float  # the gain is at least this with `CONFIDENCE`


def judge(
    before: FloatArray,
    after: FloatArray,
    same: NDArray[np.bool_],
    groups: Sequence[int],
    promise: float,
    seed: int = 0,
) -> GateVerdict:
    """Compare two scores of the same held-out pairs.

    The bootstrap draws connected components, because pairs that share a question are not independent.
    """
    old, new = Ranking(before, same), Ranking(after, same)
    was, now = old.at_promise(promise), new.at_promise(promise)
    _, number = np.unique(np.asarray(groups), return_inverse=True)
    random, drawn = np.random.default_rng(seed), int(number.max()) + 1 if len(number) else 0
    gains = np.zeros(SAMPLES)
    for at in range(SAMPLES if drawn else 0):
        counts = random.multinomial(drawn, np.full(drawn, 1.0 / drawn)).astype(np.float64)[number]
        gains[at] = new.at_promise(promise, counts).share - old.at_promise(promise, counts).share
    least = float(np.quantile(gains, 1.0 - CONFIDENCE))
    gain, figures = now.share - was.share, f"{was.share:.1%} before, {now.share:.1%} after"
    if gain < LEAST_GAIN:
        why = f"it would serve {figures}, at {promise:.2%} wrong: a gain of {LEAST_GAIN:.0%} is required"
    elif least <= 0.0:
        why = f"it would serve {figures}, at {promise:.2%} wrong, but the gain may be chance on {len(same)} pairs"
    else:
        why = f"it serves {figures}, at {promise:.2%} wrong, on {len(same)} pairs that it did not learn from"
    return GateVerdict(gain >= LEAST_GAIN and least > 0.0, why, was, now, least)
