"""From the entries of a scope to the partition that suits their number: when, into how many lists, and around what."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import faiss
import numpy as np

from gateway.adapters.faiss.flat import FlatPartition
from gateway.adapters.faiss.partition import Ids, IvfPartition, Matrix, Part, Partition

SEED = 1
ITERATIONS = 6  # measured at 200,000: no recall is gained by more
SAMPLE_PER_LIST = 40  # FAISS asks for 39 to 256
CHUNK = 4096  # vectors at a time: a stop waits for one chunk, some 50 ms

Check = Callable[[], None]
"""Called now and then in long work; raises to end it."""

Train = Callable[[Matrix, int, Check], Matrix]
"""A sample (n, d) and a number of lists -> centroids (lists, d), unit length."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How a partition grows. Measured with make bench-index, d = 384, one thread."""

    flat_up_to: int = 4_000  # entries; a flat search takes 0.2 ms there, one through lists 0.04
    growth: int = 4  # trained again when there are so many times the entries that it was trained for
    few: int = 32_000  # made for fewer, they are trained again at twice as many already: 1 s of CPU at the most
    probes: int = 8  # lists that a search looks through, at least
    look_through: int = 800  # entries that it looks through, about, while there are few: docs/decisions/0007
    # Where there is a device. Not measured: below, a search takes the CPU 0.2 ms, which is what a call to a GPU takes;
    # and a GPU looks through more lists in that time.
    place_from: int = 100_000
    device_probes: int = 32

    def lists(self, entries: int) -> int:
        """What a search compares with, centroids and entries of the lists it looks through, is least for about
        sqrt(8 n) lists; more of them, as the number of entries is the one before it grows."""
        return max(1, min(entries, round(4 * math.sqrt(entries))))

    def probes_for(self, entries: int) -> int:
        """How many lists are looked through of those that are made for so many."""
        return max(self.probes, round(self.look_through * self.lists(entries) / max(1, entries)))

    def due(self, partition: Partition) -> bool:
        """Whether its form no longer suits its size."""
        entries = len(partition)
        if partition.trained_for == 0:
            return entries > self.flat_up_to
        growth = min(2, self.growth) if partition.trained_for < self.few else self.growth
        return entries > growth * partition.trained_for or entries * self.growth < self.flat_up_to

    def to_place(self, partition: Partition) -> bool:
        """Whether it belongs on the device, where there is one, and has no copy there, or a worn one."""
        if not isinstance(partition, IvfPartition) or len(partition) < self.place_from:
            return False
        return partition.copy is None or partition.copy.worn


def build(parts: list[Part], dimension: int, plan: Plan, train: Train, check: Check) -> Partition:
    """A partition of these entries, made to suit their number. Empties `parts`: at no time is all there twice."""
    entries = sum(len(part.ids) for part in parts)
    made: Partition
    if entries <= plan.flat_up_to:
        made = FlatPartition(dimension)
    else:
        sample = _sample(parts, SAMPLE_PER_LIST * plan.lists(entries))
        centroids = train(sample, min(plan.lists(entries), len(sample)), check)
        made = IvfPartition(centroids, probes=plan.probes_for(entries), trained_for=entries)
    for ids, vectors in _chunks(parts):
        check()
        made.add(ids, vectors)
    return made


def train_centroids(sample: Matrix, lists: int, check: Check) -> Matrix:
    """Spherical k-means (Dhillon and Modha, 2001): a list's centroid is the direction of the sum of its vectors."""
    draw = np.random.default_rng(SEED)
    centroids: Matrix = sample[draw.choice(len(sample), lists, replace=False)]
    for _ in range(ITERATIONS):
        sums = np.zeros_like(centroids)
        for begin in range(0, len(sample), CHUNK):
            check()
            _add_up(sample[begin : begin + CHUNK], centroids, sums)
        lengths = np.linalg.norm(sums, axis=1)
        # A list that got nothing, or whose vectors add up to nothing, begins anew at some vector of the sample.
        lost = np.flatnonzero(lengths < 1e-6)
        centroids = sums / np.maximum(lengths, 1e-6)[:, np.newaxis]
        centroids[lost] = sample[draw.choice(len(sample), len(lost), replace=False)]
    return centroids


def _add_up(chunk: Matrix, centroids: Matrix, sums: Matrix) -> None:
    """Adds each vector to the sum of its nearest centroid. By the chunk: numpy holds the interpreter while it gathers
    rows, and for 70,000 at once everything else stood still for 0.3 s (measured)."""
    _, found = faiss.knn(chunk, centroids, 1, metric=faiss.METRIC_INNER_PRODUCT)
    nearest = found[:, 0]
    order = np.argsort(nearest, kind="stable")
    used, begins = np.unique(nearest[order], return_index=True)
    sums[used] += np.add.reduceat(chunk[order], begins, axis=0)


def _sample(parts: Sequence[Part], wanted: int) -> Matrix:
    """About `wanted` vectors, evenly from all parts."""
    entries = sum(len(part.ids) for part in parts)
    every = max(1, entries // wanted)
    vectors = [part.vectors[i % every :: every] for i, part in enumerate(parts)]
    return np.concatenate(vectors).astype(np.float32)


def _chunks(parts: list[Part]) -> Iterator[tuple[Ids, Matrix]]:
    """Everything in pieces of at most `CHUNK`, the last part first."""
    while parts:
        some = [parts.pop()]
        while parts and sum(len(part.ids) for part in some) + len(parts[-1].ids) <= CHUNK:
            some.append(parts.pop())
        ids = np.concatenate([part.ids for part in some])
        vectors = np.concatenate([part.vectors for part in some])
        for i in range(0, len(ids), CHUNK):
            yield ids[i : i + CHUNK], vectors[i : i + CHUNK].astype(np.float32)
