"""Computes the figures of runs: windows, shares, and the best result of a fixed threshold. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.cache.threshold.ledger import WINDOW

KEPT = 0.95  # of all windows: what a promise is held to
Flags = NDArray[np.bool_]


def windows(wrong: Flags) -> NDArray[np.int64]:
    """Wrong hits in each WINDOW consecutive requests; a shorter stream is one window."""
    size = min(WINDOW, len(wrong))
    sums = np.concatenate(([0], np.cumsum(wrong)))
    return np.asarray(sums[size:] - sums[:-size], np.int64) if size else np.zeros(0, np.int64)


def share_kept(wrongs: Sequence[Flags], budget: float) -> float:
    """Of all windows of all runs, how many hold no more wrong hits than promised."""
    kept = [windows(wrong) <= int(budget * min(WINDOW, len(wrong)) + 1e-9) for wrong in wrongs]
    return float(np.concatenate(kept).mean())


def worst(wrongs: Sequence[Flags]) -> int:
    return max(int(windows(wrong).max(initial=0)) for wrong in wrongs)


def hit_rate(served: Flags, wrong: Flags, repeated: Flags) -> float:
    """Right hits over requests that have an answer in the cache."""
    return float((served & ~wrong).sum() / max(1, int(repeated.sum())))


@dataclass(frozen=True, slots=True)
class Point:
    """A fixed threshold over some runs of a stream."""

    threshold: float
    served: float
    error: float  # wrong over all requests
    wrongs: tuple[Flags, ...]
    hit: float = 0.0

    def shown(self) -> dict[str, float]:
        return {"threshold": round(self.threshold, 3), "served": self.served, "error": self.error, "hit": self.hit}


def keeping(curve: Sequence[Point], budget: float) -> Point | None:
    """Hindsight: the most that is served with the promise kept in KEPT of all windows."""
    good = [point for point in curve if share_kept(point.wrongs, budget) >= KEPT]
    return max(good, key=lambda point: point.served, default=None)


def within(curve: Sequence[Point], budget: float) -> Point | None:
    """The most that is served with an error over all requests of at most the budget."""
    return max((p for p in curve if p.error <= budget), key=lambda point: point.served, default=None)


def mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def rounded(value: Any) -> Any:
    """For JSON: floats to six digits, through lists and dicts."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value
