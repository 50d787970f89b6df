"""A verifier without weights: similarity and lexical checks, behind the `Verifier` port. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from gateway.cache.lexical import Lexical, difference, differences, hard_difference, read, read_stored
from gateway.cache.spelling import SAME, compare_read
from gateway.cache.verifiers import FLOOR, WEIGHTS, load_calibration
from gateway.outcomes import Refusal
from gateway.ports import Opinion, StoredCandidate


def _veto(question: str, stored: str, asked: Lexical, other: Lexical) -> Refusal | None:
    spelling = compare_read(question, asked, stored, other)
    if spelling is SAME:
        return None
    return spelling or difference(asked, other) or hard_difference(asked, other)


class ThresholdVerifier:
    """The score is the similarity. A difference in payload, numbers, negation, opposites, direction or names is a veto.

    The constructor raises `WeightsCorrupt` where the calibration of its scores cannot be read.
    """

    basis = "checks-1"
    floor = FLOOR

    def __init__(self, weights: Path = WEIGHTS) -> None:
        self._calibration = load_calibration("checks", weights)
        self.prior = self._calibration.prior

    def opinions(self, question: str, candidates: Sequence[StoredCandidate]) -> list[Opinion]:
        query = read(question)
        return [
            Opinion(
                c.similarity,
                self.probability(c.similarity),
                veto=_veto(question, c.question, query, read_stored(c.question)),
            )
            for c in candidates
        ]

    async def second_opinion(self, question: str, candidate: StoredCandidate, first: Opinion) -> Opinion | None:
        return None

    def close(self) -> None:
        pass

    def features(self, question: str, candidate: StoredCandidate) -> Mapping[str, float]:
        """Return the checks that found a difference, each as 1."""
        return {str(difference): 1.0 for difference in differences(read(question), read_stored(candidate.question))}

    def probability(self, similarity: float) -> float:
        """Return the probability that an answer without a veto is right."""
        return self._calibration.probability(similarity)
