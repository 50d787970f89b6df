"""Makes vectors with the distribution of real questions, for the benchmarks of the index."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float32]
DIMENSION = 384
LATENT = 96  # dimensions that questions really differ in


class Questions:
    """Topics within domains, many questions of each, and paraphrases of these."""

    def __init__(self, seed: int) -> None:
        self._draw = np.random.default_rng(seed)
        self._basis = np.linalg.qr(self._draw.standard_normal((DIMENSION, LATENT)))[0].T.astype(np.float32)
        domains = self._directions(400)
        self._topics = 0.7 * domains[self._draw.integers(400, size=20_000)] + 0.7 * self._directions(20_000)

    def sample(self, count: int) -> Matrix:
        """Return (count, d) of unit length."""
        made = np.empty((count, DIMENSION), dtype=np.float32)
        for i in range(0, count, 20_000):
            rows = made[i : i + 20_000]
            topics = self._topics[self._draw.integers(len(self._topics), size=len(rows))]
            rows[:] = _unit((topics + self._directions(len(rows))) @ self._basis)
        return made

    def paraphrase(self, vectors: Matrix, apart: float = 0.33) -> Matrix:
        """Return vectors with the cosine of a paraphrase, about 0.95; in general 1 / sqrt(1 + `apart` squared)."""
        noise = self._draw.standard_normal(vectors.shape, dtype=np.float32) / np.float32(np.sqrt(DIMENSION))
        return _unit(vectors + np.float32(apart) * noise)

    def pick(self, count: int, among: int) -> NDArray[np.int64]:
        return self._draw.choice(among, count, replace=False)

    def _directions(self, count: int) -> Matrix:
        return _unit(self._draw.standard_normal((count, LATENT), dtype=np.float32))


def _unit(vectors: Matrix) -> Matrix:
    made: Matrix = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
    return made
