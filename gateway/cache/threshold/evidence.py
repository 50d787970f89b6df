"""What is known near a question: labelled lookups of the same corner of the traffic move a score up or down.

A threshold for all questions cannot know that in one corner everything sounds alike and means something else (ten
towns' solar installers), and in another the wording hardly matters. Labels know, and most of them are free: a miss
brings a fresh answer, which says whether the nearest stored one would have been right.

    score' = score + REACH * sum(K_i r_i) / (PRIOR + sum(K_i))
    r_i = right_i - probability_i            what the label said beyond what the verifier expected
    K_i = max(0, (cos(question, question_i) - FLOOR) / (1 - FLOOR)) ** 2

Kernel regression of the residuals (Nadaraya 1964, Watson 1964) with a prior of no residual. Measured on the development
streams by the share served at an error of 1 % of all requests, over plain similarity: 13.5 % -> 19 %, banking77
19 % -> 29 %, clinc150 37 % -> 43 %; REACH .3 to .5, PRIOR .5 to 1 and FLOOR .3 to .5 differ by a point at most.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from gateway.messages import Vector

REACH, PRIOR, FLOOR = 0.5, 0.5, 0.5
CAPACITY = 2000  # labelled lookups of a route: 3 MB, and 0.1 ms to look through


@dataclass(frozen=True, slots=True)
class Labelled:
    """A lookup whose nearest stored answer turned out right or wrong."""

    vector: Vector  # of the question that was asked
    probability: float  # that the verifier gave
    right: float  # 1 or 0


class Evidence:
    """The last `capacity` labelled lookups of a route."""

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._vectors: Any = None  # (capacity, d) float32; made when the first label tells d
        self._residuals = np.zeros(capacity, np.float32)
        self._next = 0
        self._held = 0

    def __len__(self) -> int:
        return self._held

    def add(self, label: Labelled) -> None:
        if self._vectors is None:
            self._vectors = np.zeros((self._capacity, label.vector.shape[0]), np.float32)
        self._vectors[self._next] = label.vector
        self._residuals[self._next] = label.right - label.probability
        self._next = (self._next + 1) % self._capacity
        self._held = min(self._held + 1, self._capacity)

    def shift(self, vector: Vector) -> float:
        """How far labels near `vector` move a score: in [-REACH, REACH], 0 where nothing is known."""
        if self._held == 0:
            return 0.0
        nearness = (self._vectors[: self._held] @ vector - FLOOR) / (1 - FLOOR)
        weights = np.square(np.maximum(nearness, 0.0))
        return float(REACH * (weights @ self._residuals[: self._held]) / (PRIOR + weights.sum()))

    def rows(self) -> tuple[bytes, bytes, int]:
        """Vectors as float16, residuals as float32, oldest first, and the dimension: to be kept over a restart."""
        if self._vectors is None:
            return b"", b"", 0
        order = (np.arange(self._held) + (self._next if self._held == self._capacity else 0)) % self._capacity
        vectors = self._vectors[order].astype("<f2")
        return vectors.tobytes(), self._residuals[order].astype("<f4").tobytes(), int(vectors.shape[1])

    def restore(self, vectors: bytes, residuals: bytes, dimension: int) -> None:
        """The opposite of `rows`. Raises ValueError where they do not fit together."""
        if dimension == 0:
            return
        kept = np.frombuffer(vectors, "<f2").reshape(-1, dimension).astype(np.float32)
        said = np.frombuffer(residuals, "<f4")
        if len(kept) != len(said) or not (np.isfinite(kept).all() and np.isfinite(said).all()):
            raise ValueError(f"{len(kept)} vectors with {len(said)} residuals")
        kept, said = kept[-self._capacity :], said[-self._capacity :]
        self._vectors = np.zeros((self._capacity, dimension), np.float32)
        self._vectors[: len(kept)] = kept
        self._residuals[: len(said)] = said
        self._held = len(said)
        self._next = self._held % self._capacity
