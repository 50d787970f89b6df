"""What tells a question from another that merely sounds like it. Pure, numpy only.

Cosine similarity is left out on purpose: what is learned from these features is added to it, never mixed with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateway.cache.features.reading import LONGEST, QuestionReading, kept, read
from gateway.cache.features.words import WordFeatures, word_features

__all__ = [
    "LONGEST",
    "NAMES",
    "FeatureVector",
    "FloatArray",
    "QuestionReading",
    "WordFeatures",
    "features",
    "kept",
    "read",
    "vectors",
    "word_features",
]

FloatArray = npt.NDArray[np.floating]

NAMES: tuple[str, ...] = WordFeatures._fields


@dataclass(frozen=True, slots=True)
class FeatureVector:
    """The features of one pair, each with its name: for explanations and tests."""

    values: tuple[float, ...]

    def __getitem__(self, name: str) -> float:
        return self.values[NAMES.index(name)]

    def named(self) -> dict[str, float]:
        return dict(zip(NAMES, self.values, strict=True))


def features(query: str, stored: Sequence[str]) -> FloatArray:
    """(k, len(NAMES)) float64, finite whatever the texts are: one row a stored question."""
    reading = read(query)
    return np.array([word_features(reading, kept(other)) for other in stored], np.float64).reshape(
        len(stored), len(NAMES)
    )


def vectors(query: str, stored: Sequence[str]) -> list[FeatureVector]:
    return [FeatureVector(tuple(map(float, row))) for row in features(query, stored)]
