"""Similarity and lexical checks: the verifier that needs no weights. Pure decisions behind the `Verifier` port."""

from __future__ import annotations

import math
from collections.abc import Sequence

from gateway.cache.control.ledger import BANDS, LOWEST, WIDTH
from gateway.cache.lexical import difference, read
from gateway.ports import Candidate, Opinion, PriorBands

FLOOR = 0.6


class ThresholdVerifier:
    """The score is the similarity; a difference in numbers, negation, opposites, direction or names is a veto."""

    basis = "checks-1"
    floor = FLOOR

    def __init__(self) -> None:
        self.prior = PRIOR

    async def opinions(self, question: str, candidates: Sequence[Candidate]) -> list[Opinion]:
        asked = read(question)
        return [
            Opinion(c.similarity, probability_of(c.similarity), veto=difference(asked, read(c.question)))
            for c in candidates
        ]

    async def second_opinion(self, question: str, candidate: Candidate, first: Opinion) -> Opinion | None:
        return None


def probability_of(similarity: float) -> float:
    """By a logistic curve through what was measured on banking77 and clinc150 with all-MiniLM-L6-v2."""
    return 1.0 / (1.0 + math.exp(-12.0 * (similarity - 0.82)))


def _prior() -> PriorBands:
    centres = [LOWEST + WIDTH * (band + 0.5) for band in range(BANDS)]
    return [(0.6 * (1 - probability_of(centre)), 0.04 if centre < 1.0 else 0.02) for centre in centres]


PRIOR = _prior()
