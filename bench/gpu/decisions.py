"""The pairs on which two models are compared: does the verifier accept the same ones?"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gateway.cache.verifiers import LearnedVerifier, load_weights
from gateway.ports import StoredCandidate

TRAPS = Path(__file__).parents[2] / "tests" / "cache" / "traps.jsonl"
LIKELY = 0.5  # probability of being right from which a pair counts as accepted here


class Decisions:
    """Pairs of questions that are nearly alike, half of which ask the same, and what the verifier says of them."""

    def __init__(self, limit: int | None = None) -> None:
        rows = [json.loads(line) for line in TRAPS.read_text().splitlines()][:limit]
        self.pairs: list[tuple[str, str]] = [(row["asked"], row["stored"]) for row in rows]
        self._verifier = LearnedVerifier(load_weights())

    @property
    def texts(self) -> list[str]:
        """Each text once."""
        return list(dict.fromkeys(text for pair in self.pairs for text in pair))

    def first(self, similarities: Sequence[float]) -> NDArray[np.bool_]:
        """Return whether the first opinion accepts each pair at its similarity."""
        opinions = [
            self._verifier.opinions(asked, [StoredCandidate(stored, similarity)])[0]
            for (asked, stored), similarity in zip(self.pairs, similarities, strict=True)
        ]
        return np.array([each.veto is None and each.probability >= LIKELY for each in opinions])

    def second(self, similarities: Sequence[float], logits: Sequence[float]) -> NDArray[np.bool_]:
        """Return whether the second opinion accepts each pair, by the logit of the cross-encoder."""
        found = []
        for (asked, stored), similarity, logit in zip(self.pairs, similarities, logits, strict=True):
            (first,) = self._verifier.opinions(asked, [StoredCandidate(stored, similarity)])
            log_odds = self._verifier.weights.second.log_odds(similarity, first.trees_doubt, logit)
            found.append(first.veto is None and self._verifier.opinion(log_odds).probability >= LIKELY)
        return np.array(found)
