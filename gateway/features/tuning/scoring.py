"""Computes the inputs of the score for labelled pairs, with the parts that a gateway runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.cache.judgement import is_verbatim
from gateway.cache.verifiers import CrossEncoder, LearnedVerifier, score_of
from gateway.entries import Vector
from gateway.features.tuning.numbers import ScoreInputs
from gateway.features.tuning.pairs import LabelledPair
from gateway.ports import Opinion, StoredCandidate, TextEncoder

Tell = Callable[[int], None]
ROUNDING = 1e-9
CHUNK = 64  # texts of one call of the encoder


@dataclass(frozen=True, slots=True)
class PairReader:
    """`PairReader` reads pairs as a lookup does: `asked` is the client's question, `stored` that of the neighbour."""

    encoder: TextEncoder
    verifier: LearnedVerifier

    def inputs(self, pairs: Sequence[LabelledPair], cross_encoder: CrossEncoder, tell: Tell) -> ScoreInputs:
        """Return the inputs of the pairs. `tell` is called with the number of pairs done since the last call."""
        vectors = self._vectors(pairs)
        rows = []
        for pair in pairs:
            similarity = min(1.0, max(0.0, float(vectors[pair.asked] @ vectors[pair.stored])))
            opinion, servable = self._first(pair, similarity)
            logit = cross_encoder.score(pair.asked, [pair.stored])[0]
            rows.append((similarity, opinion.trees_doubt, logit, opinion.words_shared, servable))
            tell(1)
        table = np.array(rows, np.float64).reshape(-1, 5)
        return ScoreInputs(table[:, 0], table[:, 1], table[:, 2], table[:, 3], table[:, 4] > 0)

    def _first(self, pair: LabelledPair, similarity: float) -> tuple[Opinion, bool]:
        """Return the first opinion, and whether the pair could be served at all."""
        (opinion,) = self.verifier.opinions(pair.asked, [StoredCandidate(pair.stored, similarity)])
        log_odds = self.verifier.weights.first.log_odds(similarity, opinion.trees_doubt)
        # Questions in a language that the models do not read get no second opinion: nothing to tune.
        is_read = opinion.score >= score_of(log_odds) - ROUNDING
        return opinion, is_read and opinion.veto is None and similarity >= self.verifier.floor

    def _vectors(self, pairs: Sequence[LabelledPair]) -> dict[str, Vector]:
        texts = list(dict.fromkeys(text for pair in pairs for text in (pair.asked, pair.stored)))
        vectors: dict[str, Vector] = {}
        for start in range(0, len(texts), CHUNK):
            part = texts[start : start + CHUNK]
            vectors.update(zip(part, (each.vector for each in self.encoder.encode(part)), strict=True))
        return vectors


def logits(pairs: Sequence[LabelledPair], cross_encoder: CrossEncoder, tell: Tell) -> NDArray[np.float64]:
    """Return (n,) logits of the pairs."""
    values = []
    for pair in pairs:
        values.append(cross_encoder.score(pair.asked, [pair.stored])[0])
        tell(1)
    return np.array(values, np.float64)


def teaches(pair: LabelledPair) -> bool:
    """Return whether a pair teaches anything. Equal wordings do not: they need no verifier."""
    return not is_verbatim(pair.asked, pair.stored)
