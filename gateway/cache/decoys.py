"""Decoys: questions for which a stored answer was wrong. They repel similar questions from that entry."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from gateway.bounded_cache import BoundedCache
from gateway.entries import Vector

MAX_DECOYS = 20_000  # in all: 15 MB with 384 dimensions; the entries that were looked up longest ago lose theirs first
MAX_PER_ENTRY = 8  # the oldest are dropped

# A question is repelled if its cosine to the decoy is at least NEAR, and at least MARGIN above its cosine to the entry.
NEAR, MARGIN = 0.8, 0.05

IDENTICAL = 0.9995  # cosine: the same question, after the rounding to float16

SAME = 0.98  # cosine: a decoy this close to another one replaces it

_Group = NDArray[np.float16]
"""The decoys of an entry, oldest first; shape (1 to `MAX_PER_ENTRY`, dimension)."""


def _ignore(*_: object) -> None:
    pass


class Decoys:
    """The decoys of one embedding space, by the fingerprint of the entry.

    A fingerprint belongs to one scope, so a decoy never acts in another one. `embedder` is the fingerprint of the model
    of the vectors. `publish` passes each new decoy to the other gateways.
    """

    def __init__(
        self, embedder: str = "", publish: Callable[[str, str, bytes], None] = _ignore, limit: int = MAX_DECOYS
    ) -> None:
        self._embedder = embedder
        self._publish = publish
        self._groups: BoundedCache[str, _Group] = BoundedCache(limit, max_weight=limit, weigh=len)
        self.in_use = False  # whether there ever was a decoy: most gateways need not look for any

    def __len__(self) -> int:
        return self._groups.weight

    def add(self, fingerprint: str, vector: Vector) -> None:
        """Add the vector of a question that this entry answered wrongly, and publish it."""
        self._add(fingerprint, vector)
        self._publish(self._embedder, fingerprint, vector.astype("<f2").tobytes())

    def apply_event(self, embedder: str, fingerprint: str, data: bytes) -> None:
        """Add a decoy that another gateway published. Raise `ValueError` where it cannot be read."""
        if embedder == self._embedder:
            self._add(fingerprint, np.frombuffer(data, "<f2").astype(np.float32))

    def repel(self, fingerprint: str, vector: Vector, similarity: float) -> bool:
        """Return whether a question is nearer to a decoy of this entry than to its own question.

        `vector` is the question's. `similarity` is its cosine to the entry's question, in [0, 1].
        """
        group = self._groups.get(fingerprint)
        if group is None:
            return False
        return bool(_cosines(group, vector).max() >= max(NEAR, similarity + MARGIN))

    def forget(self, fingerprints: Iterable[str]) -> None:
        """Drop the decoys of entries that were removed."""
        for fingerprint in fingerprints:
            self._groups.pop(fingerprint)

    def forget_questions(self, vectors: Vector) -> int:
        """Drop the decoys that are these vectors, of shape (n, dimension), and return their number."""
        dropped = 0
        for fingerprint in list(self._groups):
            group = self._groups.peek(fingerprint)
            if group is None or vectors.shape[1] != group.shape[1]:
                continue
            same = (group.astype(np.float32) @ vectors.T).max(axis=1) >= IDENTICAL
            if same.any():
                dropped += int(same.sum())
                if same.all():
                    self._groups.pop(fingerprint)
                else:
                    self._groups.put(fingerprint, group[~same])
        return dropped

    def entries_near(self, vector: Vector) -> Sequence[str]:
        """Return the fingerprints of all entries with a decoy near this question. It scans all decoys, so it is for
        explanations and not for requests."""
        groups = zip(self._groups, self._groups.values(), strict=True)
        return [fingerprint for fingerprint, group in groups if _cosines(group, vector).max() >= NEAR]

    def _add(self, fingerprint: str, vector: Vector) -> None:
        added, group = vector.astype(np.float16)[np.newaxis], self._groups.peek(fingerprint)
        if group is not None:
            others = group[_cosines(group, vector) < SAME]
            added = np.concatenate((others, added))[-MAX_PER_ENTRY:]
        self._groups.put(fingerprint, added)
        self.in_use = True


def _cosines(group: _Group, vector: Vector) -> Vector:
    return np.asarray(group.astype(np.float32) @ vector, np.float32)
