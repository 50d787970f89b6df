"""Partitions hold the vectors of one scope: a plain matrix if they are few, otherwise an inverted file.

Neither is safe to use from two threads, because FAISS crashes on concurrent add and search. The holder of a partition
must ensure that. Ids are never reused, so the vector of an id never changes.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import faiss
import numpy as np
from numpy.typing import NDArray

from gateway.entries import Vector

# The vectors of a small scope, as a plain matrix.

# With 384 dimensions, a search or a growing copy of this many takes 36 us. The hop to the owner's thread and back takes
# 21 us of CPU, and more of waiting (docs/decisions/0055).
BRIEF_ENTRIES = 1024

# Up to this size numpy searches row by row, as fast as FAISS including the hop to its thread.
NUMPY_SEARCH_ROWS = 128

# Numbers in a matrix. For a product of this size or more, OpenBLAS wakes a thread. A smaller product takes 1.2 us; row
# by row it takes 2.2 us.
UNTHREADED = 9216


class FlatPartition:
    """`FlatPartition` searches exactly and needs no training. Removals move other rows.

    FAISS's own id maps would be rebuilt at each removal (measured: 13 ms at 50,000). A scan of a column of ids takes 20
    us there.
    """

    trained_for = 0
    steps = 1  # rows move, so only a single copy of everything is consistent

    def __init__(self, dimension: int) -> None:
        self._vectors: Matrix = np.empty((1, dimension), dtype=np.float32)
        self._ids: Ids = np.empty(1, dtype=np.int64)
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def is_small(self) -> bool:
        return self._count <= BRIEF_ENTRIES

    @property
    def free_rows(self) -> int:
        """Rows that it can take without being copied."""
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
        # The last remaining rows move into the holes before them.
        holes = rows[rows < rest]
        movers = np.setdiff1d(np.arange(rest, self._count), rows, assume_unique=True)
        self._ids[holes] = self._ids[movers]
        self._vectors[holes] = self._vectors[movers]
        self._count = rest
        if rest < len(self._ids) // 4:
            self._resize(max(1, rest * 3 // 2))

    def search(self, vector: Vector, k: int) -> tuple[Vector, Ids]:
        if self._count <= NUMPY_SEARCH_ROWS:
            near: Vector = np.vecdot(self._vectors[: self._count], vector)
            order = (-near).argsort()[:k]
            return near[order], self._ids[order]
        similarities, rows = faiss.knn(
            vector[np.newaxis], self._vectors[: self._count], min(k, self._count), metric=faiss.METRIC_INNER_PRODUCT
        )
        return similarities[0], self._ids[rows[0]]

    def nearest(self, vector: Vector) -> tuple[float, int] | None:
        if self._count > NUMPY_SEARCH_ROWS:
            return nearest_by_search(self, vector)
        vectors = self._vectors[: self._count]
        near = vectors.dot(vector) if vectors.size < UNTHREADED else np.vecdot(vectors, vector)
        row = int(near.argmax())
        return near.item(row), self._ids.item(row)

    def part(self, step: int) -> Slice:
        return Slice(self._ids[: self._count].copy(), self._vectors[: self._count].copy())

    def vectors(self, ids: Ids) -> tuple[Ids, Matrix]:
        rows = self._rows(ids)
        return self._ids[rows], self._vectors[rows]

    def _rows(self, ids: Ids) -> NDArray[np.intp]:
        all_ids = self._ids[: self._count]
        return np.flatnonzero(all_ids == ids[0] if len(ids) == 1 else np.isin(all_ids, ids))

    def _resize(self, rows: int) -> None:
        vectors, ids = self._vectors[: self._count], self._ids[: self._count]
        self._vectors = np.empty((rows, vectors.shape[1]), dtype=np.float32)
        self._ids = np.empty(rows, dtype=np.int64)
        self._vectors[: self._count], self._ids[: self._count] = vectors, ids


Ids = NDArray[np.int64]

Matrix = NDArray[np.float32]

# Measured (make bench-index): memory of the hash table per id, and allocated over used memory of the lists.
DIRECT_MAP_BYTES = 64

LIST_SLACK = 1.25

_DIRECT_MAP: Any = faiss.DirectMap  # type: ignore[attr-defined]  # its stubs lack it


@dataclass(frozen=True, slots=True)
class Slice:
    """A copy of some entries of a partition."""

    ids: Ids  # (n,)
    vectors: NDArray[Any]  # (n, d), in the partition's own type: float32 or float16
    lists: NDArray[np.int32] | None = None  # (n,), for an inverted file: the list of each entry


class Partition(Protocol):
    def __len__(self) -> int: ...

    @property
    def bytes(self) -> int: ...

    @property
    def trained_for(self) -> int:
        """Number of entries that its lists were trained for; 0 if it has no lists."""

    @property
    def is_small(self) -> bool:
        """Whether a search or an addition takes microseconds."""

    @property
    def steps(self) -> int:
        """Number of parts that make a copy of everything."""

    def add(self, ids: Ids, vectors: Matrix) -> None:
        """Add ids (n,) that are not present, with unit vectors (n, d)."""

    def put(self, identifier: int, vector: Vector) -> int:
        """Add one entry, as `add`. Return by how many bytes the partition has grown."""

    def remove(self, ids: Ids) -> None:
        """Remove those of `ids` that are present."""

    def search(self, vector: Vector, k: int) -> tuple[Vector, Ids]:
        """Return inner products and ids, (at most k,) each, most similar first."""

    def nearest(self, vector: Vector) -> tuple[float, int] | None:
        """Return inner product and id of the most similar entry, if there is one."""

    def part(self, step: int) -> Slice: ...

    def vectors(self, ids: Ids) -> tuple[Ids, Matrix]:
        """Return those of `ids` that are present, with their vectors."""


class PartitionCopy(Protocol):
    """A copy of an inverted file. It gets every change, and is searched instead of the original."""

    @property
    def failed(self) -> bool:
        """Whether it is no longer usable."""

    @property
    def needs_rebuild(self) -> bool:
        """Whether it should be rebuilt."""

    def add(self, ids: Ids, vectors: Matrix) -> None: ...

    def remove(self, ids: Ids) -> None: ...

    def search(self, vector: Vector, k: int) -> tuple[Vector, Ids] | None:
        """Search like a partition. Return None if the original lists must be searched."""


# Vectors compared in a search of lists, in a scope of some 32,000 entries: 0.1 ms (python -m
# bench.index_list_threshold).
BRIEF_COMPARED = 2200


class IvfPartition:
    """`IvfPartition` searches the lists whose centroids are nearest to the question. A hash table finds an id to
    remove.

    Vectors are half floats, chosen by measurement (docs/decisions/0007). As with float32, every stored question is
    found by its paraphrase. Similarities differ by at most 5e-5, searches are faster, and memory is halved.

    Eight bits halve it again, but change similarities by up to 5e-3 and lose 1 % of the nearest neighbours. They also
    need ranges from a sample, so vectors drift with each training. Half floats are lossless once converted.
    """

    def __init__(self, centroids: Matrix, *, probes: int, trained_for: int) -> None:
        """Create the partition. `centroids` (lists, d) have unit length. A search scans `probes` lists."""
        self.centroids = centroids
        self.trained_for = trained_for
        self.copy: PartitionCopy | None = None
        self._dimension = centroids.shape[1]
        self._probes = min(probes, len(centroids))
        self._index = empty_lists(centroids, probes)
        self._index.set_direct_map_type(_DIRECT_MAP.Hashtable)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def bytes(self) -> int:
        entry = LIST_SLACK * (2 * self._dimension + 8) + DIRECT_MAP_BYTES
        return int(len(self) * entry) + 2 * self.centroids.nbytes

    @property
    def steps(self) -> int:
        return len(self.centroids)

    @property
    def is_small(self) -> bool:
        lists = len(self.centroids)
        return self.copy is None and lists + self._probes * len(self) / lists <= BRIEF_COMPARED

    def add(self, ids: Ids, vectors: Matrix) -> None:
        self._index.add_with_ids(vectors, ids)
        if self.copy is not None:
            self.copy.add(ids, vectors)

    def put(self, identifier: int, vector: Vector) -> int:
        before = self.bytes
        self.add(np.array([identifier], dtype=np.int64), vector[np.newaxis])
        return self.bytes - before

    def remove(self, ids: Ids) -> None:
        self._index.remove_ids(ids)
        if self.copy is not None:
            self.copy.remove(ids)

    def search(self, vector: Vector, k: int) -> tuple[Vector, Ids]:
        if self.copy is not None and (result := self.copy.search(vector, k)) is not None:
            return result
        return search_lists(self._index, vector, k)

    def nearest(self, vector: Vector) -> tuple[float, int] | None:
        return nearest_by_search(self, vector)

    def part(self, step: int) -> Slice:
        """Return a copy of one list."""
        lists = self._index.invlists
        count = lists.list_size(step)
        if count == 0:
            return Slice(np.empty(0, np.int64), np.empty((0, self._dimension), np.float16), np.empty(0, np.int32))
        ids = faiss.rev_swig_ptr(lists.get_ids(step), count).copy()
        codes = faiss.rev_swig_ptr(lists.get_codes(step), count * 2 * self._dimension).copy()
        vectors = codes.view(np.float16).reshape(count, self._dimension)
        return Slice(ids, vectors, np.full(count, step, dtype=np.int32))

    def vectors(self, ids: Ids) -> tuple[Ids, Matrix]:
        candidates = [(i, self._reconstruct(i)) for i in ids.tolist()]
        rows = [(i, vector) for i, vector in candidates if vector is not None]
        if not rows:
            return np.empty(0, np.int64), np.empty((0, self._dimension), np.float32)
        return np.array([i for i, _ in rows], dtype=np.int64), np.stack([vector for _, vector in rows])

    def load(self, part: Slice) -> None:
        """Restore a copy made by `part`, without searching for the nearest centroids again. Call `finish` at the
        end."""
        assert part.lists is not None
        self._index.set_direct_map_type(_DIRECT_MAP.NoMap)  # built in one pass at the end
        order = np.argsort(part.lists, kind="stable")
        lists, ids = part.lists[order], np.ascontiguousarray(part.ids[order])
        codes = np.ascontiguousarray(part.vectors[order], dtype=np.float16).view(np.uint8)
        for begin, end in _runs(lists):
            self._index.invlists.add_entries(
                int(lists[begin]), end - begin, faiss.swig_ptr(ids[begin:end]), faiss.swig_ptr(codes[begin:end])
            )
        self._index.ntotal += len(ids)

    def finish(self) -> None:
        self._index.set_direct_map_type(_DIRECT_MAP.Hashtable)

    def _reconstruct(self, identifier: int) -> Vector | None:
        try:
            vector: Vector = self._index.reconstruct(identifier)
        except RuntimeError:  # not in the direct map
            return None
        return vector


def nearest_by_search(partition: Partition, vector: Vector) -> tuple[float, int] | None:
    """Return the first result of a search."""
    similarities, ids = partition.search(vector, 1)
    return (similarities.item(0), ids.item(0)) if len(ids) else None


def empty_lists(centroids: Matrix, probes: int) -> Any:
    """Return FAISS's inverted file of half floats around `centroids`, (lists, d), without entries."""
    lists, dimension = centroids.shape
    quantizer = faiss.IndexFlatIP(dimension)  # FAISS's Python wrapper keeps it alive as long as the index
    quantizer.add(centroids)
    index: Any = faiss.IndexIVFScalarQuantizer(
        quantizer,
        dimension,
        lists,
        faiss.ScalarQuantizer.QT_fp16,
        faiss.METRIC_INNER_PRODUCT,
        False,  # store the vectors themselves, not their differences from the centroid
    )
    index.is_trained = True  # half floats have no ranges to learn
    index.nprobe = min(probes, lists)
    return index


def search_lists(index: Any, vector: Vector, k: int) -> tuple[Vector, Ids]:
    """Return inner products and ids, (at most k,) each, most similar first, from an inverted file of FAISS."""
    similarities, ids = index.search(vector[np.newaxis], min(k, int(index.ntotal)))
    is_entry = ids[0] >= 0  # the scanned lists may have fewer than k entries
    return similarities[0][is_entry], ids[0][is_entry]


def _runs(values: NDArray[np.int32]) -> list[tuple[int, int]]:
    """Return the ranges of equal values in a sorted array."""
    if len(values) == 0:
        return []
    borders = [0, *(np.flatnonzero(np.diff(values)) + 1).tolist(), len(values)]
    return list(pairwise(borders))
