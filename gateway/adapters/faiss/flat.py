"""The vectors of a scope with few entries, as a plain matrix. One thread at a time, as any partition."""

from __future__ import annotations

import faiss
import numpy as np
from numpy.typing import NDArray

from gateway.adapters.faiss.partition import Ids, Matrix, Part, nearest_of
from gateway.messages import Vector

# Of 384 dimensions: searched, and copied to grow, in 36 us. The way to the owner's thread and back takes 21 of CPU, and
# more of waiting (docs/decisions/0032).
BRIEF_ENTRIES = 1024
# Searched by numpy, row by row: so many take it no longer than FAISS, the way there included.
FEW = 128
# Numbers in a matrix: for the product of as many OpenBLAS wakes a thread; that of fewer takes 1.2 us, row by row 2.2.
UNTHREADED = 9216


class FlatPartition:
    """Exact, and nothing to train. Rows move when others go: FAISS' own maps of ids would be rebuilt at each removal
    (measured: 13 ms at 50,000), a look through a column of ids takes 20 us there."""

    trained_for = 0
    steps = 1  # rows move, so that only one copy of everything is consistent

    def __init__(self, dimension: int) -> None:
        self._vectors: Matrix = np.empty((1, dimension), dtype=np.float32)
        self._ids: Ids = np.empty(1, dtype=np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def brief(self) -> bool:
        return self._count <= BRIEF_ENTRIES

    @property
    def room(self) -> int:
        """How many more it takes without being copied."""
        return len(self._ids) - self._count

    @property
    def bytes(self) -> int:
        return self._vectors.nbytes + self._ids.nbytes

    def add(self, ids: Ids, vectors: Matrix) -> None:
        count = self._count + len(ids)
        if count > len(self._ids):
            self._resize(max(count, len(self._ids) * 3 // 2))
        self._ids[self._count : count] = ids
        self._vectors[self._count : count] = vectors
        self._count = count

    def put(self, identifier: int, vector: Vector) -> int:
        row, grown = self._count, 0
        if row == len(self._ids):
            before = self.bytes
            self._resize(max(row + 1, row * 3 // 2))
            grown = self.bytes - before
        self._ids[row] = identifier
        self._vectors[row] = vector
        self._count = row + 1
        return grown

    def remove(self, ids: Ids) -> None:
        rows = self._rows(ids)
        rest = self._count - len(rows)
        # The last rows that stay move into the holes before them.
        holes = rows[rows < rest]
        movers = np.setdiff1d(np.arange(rest, self._count), rows, assume_unique=True)
        self._ids[holes] = self._ids[movers]
        self._vectors[holes] = self._vectors[movers]
        self._count = rest
        if rest < len(self._ids) // 4:
            self._resize(max(1, rest * 3 // 2))

    def search(self, vector: Vector, k: int) -> tuple[Vector, Ids]:
        if self._count <= FEW:
            near: Vector = np.vecdot(self._vectors[: self._count], vector)
            order = (-near).argsort()[:k]
            return near[order], self._ids[order]
        similarities, rows = faiss.knn(
            vector[np.newaxis], self._vectors[: self._count], min(k, self._count), metric=faiss.METRIC_INNER_PRODUCT
        )
        return similarities[0], self._ids[rows[0]]

    def nearest(self, vector: Vector) -> tuple[float, int] | None:
        if self._count > FEW:
            return nearest_of(self, vector)
        held = self._vectors[: self._count]
        near = held.dot(vector) if held.size < UNTHREADED else np.vecdot(held, vector)
        row = int(near.argmax())
        return near.item(row), self._ids.item(row)

    def part(self, step: int) -> Part:
        return Part(self._ids[: self._count].copy(), self._vectors[: self._count].copy())

    def vectors(self, ids: Ids) -> tuple[Ids, Matrix]:
        rows = self._rows(ids)
        return self._ids[rows], self._vectors[rows]

    def _rows(self, ids: Ids) -> NDArray[np.intp]:
        held = self._ids[: self._count]
        return np.flatnonzero(held == ids[0] if len(ids) == 1 else np.isin(held, ids))

    def _resize(self, rows: int) -> None:
        vectors, ids = self._vectors[: self._count], self._ids[: self._count]
        self._vectors = np.empty((rows, vectors.shape[1]), dtype=np.float32)
        self._ids = np.empty(rows, dtype=np.int64)
        self._vectors[: self._count], self._ids[: self._count] = vectors, ids
