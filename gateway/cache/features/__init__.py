"""What tells a question from another that merely sounds like it. Pure, numpy only.

Cosine similarity is left out on purpose: what is learned from these features is added to it, never mixed with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gateway.cache.features.alignment import ALIGNMENT_NAMES, NEUTRAL, FloatArray, Tokens, alignment_features
from gateway.cache.features.reading import LONGEST, read
from gateway.cache.features.words import WordFeatures, word_features

__all__ = ["ALIGNMENT_NAMES", "LONGEST", "NAMES", "NEUTRAL", "WORD_NAMES", "FeatureVector", "FloatArray", "Text",
           "Tokens", "WordFeatures", "features", "vectors"]  # fmt: skip

WORD_NAMES: tuple[str, ...] = WordFeatures._fields
NAMES: tuple[str, ...] = WORD_NAMES + ALIGNMENT_NAMES


@dataclass(frozen=True, slots=True)
class Text:
    """A question; `tokens` is None where the entry was stored without token vectors."""

    text: str
    tokens: Tokens | None = None


@dataclass(frozen=True, slots=True)
class FeatureVector:
    """The features of one pair, each with its name: for explanations and tests."""

    values: tuple[float, ...]

    def __getitem__(self, name: str) -> float:
        return self.values[NAMES.index(name)]

    def named(self) -> dict[str, float]:
        return dict(zip(NAMES, self.values, strict=True))


def features(asked: Text, stored: Sequence[Text]) -> FloatArray:
    """(k, len(NAMES)) float64, finite whatever the texts are: one row a stored question."""
    reading = read(asked.text)
    words = [word_features(reading, read(other.text)) for other in stored]
    table = np.array(words, np.float64).reshape(len(stored), len(WORD_NAMES))
    return np.hstack((table, alignment_features(asked.tokens, [other.tokens for other in stored])))


def vectors(asked: Text, stored: Sequence[Text]) -> list[FeatureVector]:
    return [FeatureVector(tuple(map(float, row))) for row in features(asked, stored)]
