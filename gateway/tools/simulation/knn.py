"""The nearest questions of each question within its context, all at once."""

from __future__ import annotations

from collections.abc import Sequence

import faiss
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Nearest = list[tuple[int, float]]  # (question, similarity), best first

MOST = 32  # of one question: lookups take the best four of those whose answers are there
BLOCK = 1024  # questions compared at once
# Beyond so many questions of one context lists are searched rather than all, as the gateway's own index does later.
EXACT_UP_TO, PROBES = 6_000, 12


def nearest(vectors: Floats, contexts: Sequence[int], floor: float) -> list[Nearest]:
    """Of each row those of its context that are as similar as `floor`, but for itself. `vectors`: of unit length."""
    found: list[Nearest] = [[] for _ in contexts]
    by_context: dict[int, list[int]] = {}
    for row, context in enumerate(contexts):
        by_context.setdefault(context, []).append(row)
    for rows in by_context.values():
        if len(rows) > 1:
            _within(vectors[rows], np.array(rows), floor, found)
    return found


def _within(vectors: Floats, rows: NDArray[np.int_], floor: float, found: list[Nearest]) -> None:
    index = _index(vectors)
    most = min(MOST + 1, len(rows))
    for start in range(0, len(rows), BLOCK):
        similarities, places = index.search(vectors[start : start + BLOCK], most)
        np.clip(similarities, 0.0, 1.0, out=similarities)
        near = (similarities >= floor) & (places >= 0) & (places != np.arange(start, start + len(places))[:, None])
        for at, place in zip(*np.nonzero(near), strict=True):
            found[rows[start + at]].append((int(rows[places[at, place]]), float(similarities[at, place])))


def _index(vectors: Floats) -> faiss.Index:
    dimension = vectors.shape[1]
    flat = faiss.IndexFlatIP(dimension)
    if len(vectors) <= EXACT_UP_TO:
        flat.add(vectors)
        return flat
    lists = int(4 * len(vectors) ** 0.5)
    index = faiss.IndexIVFFlat(flat, dimension, lists, faiss.METRIC_INNER_PRODUCT)
    index.cp.min_points_per_centroid, index.cp.max_points_per_centroid, index.cp.niter = 1, 32, 6
    index.train(vectors)
    index.add(vectors)
    index.nprobe = PROBES
    return index
