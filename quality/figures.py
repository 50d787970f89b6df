"""Computes the figures of runs: windows, shares, and the best result of a fixed threshold. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import numpy as np
from numpy.typing import NDArray

WINDOW = 1000  # requests; the dashboard shows the wrong hits of as many
Flags = NDArray[np.bool_]


def windows(wrong: Flags) -> NDArray[np.int64]:
    """Return the wrong hits in each WINDOW consecutive requests; a shorter stream is one window."""
    size = min(WINDOW, len(wrong))
    sums = np.concatenate(([0], np.cumsum(wrong)))
    return np.asarray(sums[size:] - sums[:-size], np.int64) if size else np.zeros(0, np.int64)


def promise_share(wrongs: Sequence[Flags], budget: float) -> float:
    """Return the share of runs whose wrong hits over all requests are at most the promised share."""
    return float(np.mean([wrong.mean() <= budget + 1e-9 for wrong in wrongs]))


def worst(wrongs: Sequence[Flags]) -> int:
    return max(int(windows(wrong).max(initial=0)) for wrong in wrongs)


def hit_rate(served: Flags, wrong: Flags, repeated: Flags) -> float:
    """Return the right hits over the requests that have an answer in the cache."""
    return float((served & ~wrong).sum() / max(1, int(repeated.sum())))


@dataclass(frozen=True, slots=True)
class Point:
    """A fixed threshold over some runs of a stream."""

    threshold: float
    served: float
    error: float  # wrong over all requests
    wrongs: tuple[Flags, ...]
    hit: float = 0.0

    def as_dict(self) -> dict[str, float]:
        return {"threshold": round(self.threshold, 3), "served": self.served, "error": self.error, "hit": self.hit}


def served_share_at(curve: Sequence[Point], error: float) -> float | None:
    """Return what fixed thresholds serve at this error over all requests, between the two nearest points."""
    points = sorted((point.error, point.served) for point in curve)
    if not points or error > points[-1][0]:
        return None
    return float(np.interp(error, [0.0, *(x for x, _ in points)], [0.0, *(y for _, y in points)]))


def precision_area(curve: Sequence[Point]) -> float:
    """Return the area under precision over the cache hit ratio (P-CHR AUC, arXiv 2606.19719), in [0, 1]."""
    points = sorted((point.served, 1 - point.error / point.served) for point in curve if point.served > 0)
    ratios, precisions = [0.0, *(x for x, _ in points)], [1.0, *(y for _, y in points)]
    return float(np.trapezoid(precisions, ratios))


def best_within(curve: Sequence[Point], budget: float) -> Point | None:
    """Return the point that serves the most with an error over all requests of at most the budget."""
    return max((p for p in curve if p.error <= budget), key=lambda point: point.served, default=None)


def mean(values: Sequence[float]) -> float:
    return fmean(values) if values else 0.0


def round_floats(value: Any) -> Any:
    """Round floats to six digits for JSON, through lists and dicts."""
    if isinstance(value, float):
        return round(value, 6)
    if isinstance(value, dict):
        return {key: round_floats(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [round_floats(each) for each in value]
    return value
