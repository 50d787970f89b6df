"""Compare texts by their letters, for entries that have no vector. Pure.

The likeness is the cosine of two counts of three letters in a row, case and spaces aside. It needs no model, and it
works in each script. Source: Damashek, Gauging similarity with n-grams, Science 267 (1995).
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from itertools import islice

from gateway.cache.bans import SimilarityCondition
from gateway.entries import EmbeddedVector, Entry

SIZE = 3  # letters in a row
MAX_LETTERS = 20_000  # of a text; as long as `like` of a purge may be

LetterCounts = Counter[str]


def letter_counts(text: str) -> LetterCounts:
    """Return how often each `SIZE` letters in a row come."""
    folded = f" {' '.join(text[:MAX_LETTERS].casefold().split())} "
    return Counter(map("".join, zip(*(islice(folded, at, None) for at in range(SIZE)), strict=False)))


def likeness(a: LetterCounts, b: LetterCounts) -> float:
    """Return the likeness of two texts in [0, 1]: 1 for equal words."""
    common = sum(count * b[letters] for letters, count in a.items())
    length = math.sqrt(sum(count * count for count in a.values()) * sum(count * count for count in b.values()))
    return min(1.0, common / length) if length else 0.0


@dataclass(slots=True)
class TextComparison:
    """`TextComparison` stands in for the vectors of entries that have none. `compared` counts these entries."""

    near: SimilarityCondition
    counts: LetterCounts  # of the text that entries are compared with
    compared: int = 0

    def vector_of(self, entry: Entry, own_vector: EmbeddedVector | None) -> EmbeddedVector | None:
        """Return the entry's vector. If it has none and its text is alike, return that of the condition."""
        if own_vector is not None or entry.question is None:
            return own_vector
        self.compared += 1
        if likeness(self.counts, letter_counts(entry.question)) < self.near.similarity:
            return None
        return EmbeddedVector(self.near.vector, self.near.embedder)
