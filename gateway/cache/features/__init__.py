"""Compute features that separate two questions which merely sound alike. Pure; numpy only.

Cosine similarity is deliberately not a feature. The verifier adds it to what the trees learn from these features.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from gateway.cache.features.reading import LONGEST, QuestionReading, read, read_stored
from gateway.cache.features.words import WordFeatures, word_features

__all__ = [
    "LONGEST",
    "NAMES",
    "FeatureVector",
    "FloatArray",
    "QuestionReading",
    "WordFeatures",
    "features",
    "read",
    "read_stored",
    "vectors",
    "word_features",
]

FloatArray = npt.NDArray[np.floating]

NAMES: tuple[str, ...] = WordFeatures._fields


@dataclass(frozen=True, slots=True)
class FeatureVector:
    """The features of one pair of questions, by name. It serves explanations and tests."""

    values: tuple[float, ...]

    def __getitem__(self, name: str) -> float:
        return self.values[NAMES.index(name)]

    def named(self) -> dict[str, float]:
        return dict(zip(NAMES, self.values, strict=True))


def features(query: str, stored: Sequence[str]) -> FloatArray:
    """Return one row per stored question: (k, len(NAMES)) float64, finite for any text."""
    reading = read(query)
    return np.array([word_features(reading, read_stored(other)) for other in stored], np.float64).reshape(
        len(stored), len(NAMES)
    )


def vectors(query: str, stored: Sequence[str]) -> list[FeatureVector]:
    return [FeatureVector(tuple(map(float, row))) for row in features(query, stored)]
