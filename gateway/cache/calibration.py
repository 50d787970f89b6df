"""From what a policy promises to the score that a neighbour must reach. Pure; every verifier reads its points so."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from gateway.messages import Refusal
from gateway.ports import Judgement


def minimum_score(points: Sequence[tuple[float, float]], max_wrong_hits: float) -> float:
    """`points`: measured pairs of wrong hits over all requests, ascending, and the score that kept to them.

    Linear between the points; below the first, towards what is all but equal; above the last, no looser.
    """
    if max_wrong_hits <= 0:
        return 1.0
    if max_wrong_hits < points[0][0]:
        return points[0][1] + (1.0 - points[0][1]) * (1 - max_wrong_hits / points[0][0])
    for (low, at_low), (high, at_high) in pairwise(points):
        if max_wrong_hits <= high:
            return at_low + (at_high - at_low) * (max_wrong_hits - low) / (high - low)
    return points[-1][1]


def by_similarity(similarity: float, threshold: float) -> Judgement:
    """A plain threshold, as `min_similarity` asks for."""
    accepted = similarity >= threshold
    return Judgement(accepted, None if accepted else Refusal.SIMILARITY, threshold)
