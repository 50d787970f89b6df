"""Gives a partition the form that suits its size, in a thread of its own, while the old form serves.

The thread copies the entries in steps, trains and fills a new partition, and catches up with what was added and removed
meanwhile; the last bit of that, and the swap, is one step of the owner's, so that no search finds less than before. A
large partition gets its copy on a device, where there is one, in the same way.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import faiss
import numpy as np

from gateway.adapters.faiss.exclusive_executor import ExclusiveExecutor, ExecutorClosed
from gateway.adapters.faiss.gpu_partition import Device, GpuReplica
from gateway.adapters.faiss.partition import (
    FlatPartition,
    Ids,
    IvfPartition,
    Matrix,
    Partition,
    PartitionCopy,
    Slice,
    empty_lists,
)
from gateway.adapters.faiss.shard_map import ShardMap
from gateway.adapters.system.memory import trim_heap

# From the entries of a scope to the partition that suits their number: when, into how many lists, and around what.
SEED = 1

ITERATIONS = 6  # measured at 200,000: no recall is gained by more

SAMPLE_PER_LIST = 40  # FAISS asks for 39 to 256

CHUNK = 4096  # vectors at a time: a stop waits for one chunk, some 50 ms

Check = Callable[[], None]
"""Called now and then in long work; raises to end it."""

Train = Callable[[Matrix, int, Check], Matrix]
"""A sample (n, d) and a number of lists -> centroids (lists, d), unit length."""


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """How a partition grows. Measured with make bench-index, d = 384, one thread."""

    flat_up_to: int = 4_000  # entries; a flat search takes 0.2 ms there, one through lists 0.04
    growth: int = 4  # trained again when there are so many times the entries that it was trained for
    small_up_to: int = 32_000  # made for fewer, they are trained again at twice as many already: 1 s of CPU at the most
    probes: int = 8  # lists that a search looks through, at least
    target_scanned: int = 800  # entries that it looks through, about, while there are few: docs/decisions/0007
    # Where there is a device. Not measured: below, a search takes the CPU 0.2 ms, which is what a call to a GPU takes;
    # and a GPU looks through more lists in that time.
    device_from: int = 100_000
    device_probes: int = 32

    def lists(self, entries: int) -> int:
        """What a search compares with, centroids and entries of the lists it looks through, is least for about
        sqrt(8 n) lists; more of them, as the number of entries is the one before it grows."""
        return max(1, min(entries, round(4 * math.sqrt(entries))))

    def probes_for(self, entries: int) -> int:
        """How many lists are looked through of those that are made for so many."""
        return max(self.probes, round(self.target_scanned * self.lists(entries) / max(1, entries)))

    def needs_rebuild_for_size(self, partition: Partition) -> bool:
        """Whether its form no longer suits its size."""
        entries = len(partition)
        if partition.trained_for == 0:
            return entries > self.flat_up_to
        growth = min(2, self.growth) if partition.trained_for < self.small_up_to else self.growth
        return entries > growth * partition.trained_for or entries * self.growth < self.flat_up_to

    def needs_device_copy(self, partition: Partition) -> bool:
        """Whether it belongs on the device, where there is one, and has no copy there, or a worn one."""
        if not isinstance(partition, IvfPartition) or len(partition) < self.device_from:
            return False
        return partition.copy is None or partition.copy.needs_rebuild


def build(parts: list[Slice], dimension: int, plan: IndexPlan, train: Train, check: Check) -> Partition:
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


def _sample(parts: Sequence[Slice], wanted: int) -> Matrix:
    """About `wanted` vectors, evenly from all parts."""
    entries = sum(len(part.ids) for part in parts)
    every = max(1, entries // wanted)
    vectors = [part.vectors[i % every :: every] for i, part in enumerate(parts)]
    return np.concatenate(vectors).astype(np.float32)


def _chunks(parts: list[Slice]) -> Iterator[tuple[Ids, Matrix]]:
    """Everything in pieces of at most `CHUNK`, the last part first."""
    while parts:
        some = [parts.pop()]
        while parts and sum(len(part.ids) for part in some) + len(parts[-1].ids) <= CHUNK:
            some.append(parts.pop())
        ids = np.concatenate([part.ids for part in some])
        vectors = np.concatenate([part.vectors for part in some])
        for i in range(0, len(ids), CHUNK):
            yield ids[i : i + CHUNK], vectors[i : i + CHUNK].astype(np.float32)


LOG = logging.getLogger("nearhit.index")

CATCH_UP_ENTRIES = 1024  # entries a round: a search waits for the copying of so many, 7 ms (measured)

MAX_SWAP_CHANGES = 64  # what is left for the swap, in the owner's thread

NICENESS = 10  # requests first

LARGE = 100_000  # entries; what replaced forms of more have taken is given back (a million: 30 ms for 660 MB)


@dataclass(slots=True)
class _Journal:
    """What became of a partition since the copy of it began."""

    scope: str
    partition: Partition
    first_id: int  # the copy holds nothing from here on
    added: list[int] = field(default_factory=list)
    removed: list[Ids] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Delta:
    ids: Ids  # (n,), added
    vectors: Matrix  # (n, d)
    removed: list[Ids]
    rest: int  # how many more were added

    def apply(self, made: Partition | PartitionCopy) -> None:
        if self.removed:
            made.remove(np.concatenate(self.removed))
        if len(self.ids):
            made.add(self.ids, self.vectors)


class _Superseded(Exception):
    """The partition that is being rebuilt is no longer there."""


class Rebuilder:
    """`schedule_if_needed`, `added` and `removed` belong to whose turn it is at the owner. One partition at a time."""

    def __init__(
        self,
        dimension: int,
        plan: IndexPlan,
        train: Train,
        owner: ExclusiveExecutor,
        contents: Callable[[], ShardMap],
        device: Device | None = None,
    ) -> None:
        self._dimension = dimension
        self._plan = plan
        self._train = train
        self._owner = owner
        self._contents = contents
        self._device = device
        self._journal: _Journal | None = None
        self._pending: dict[str, Future[None]] = {}
        self._failed: dict[str, int] = {}  # scope -> entries that it had: not tried again until there are twice as many
        self._closed = threading.Event()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="nearhit-training", initializer=_lower_priority)

    @property
    def pending(self) -> list[Future[None]]:
        """What is being rebuilt, or will be."""
        return list(self._pending.values())

    def schedule_if_needed(self, scope: str) -> None:
        partition = self._contents().partitions.get(scope)
        if partition is None or scope in self._pending:
            return
        if not self._plan.needs_rebuild_for_size(partition) and (
            self._device is None or not self._plan.needs_device_copy(partition)
        ):
            return
        if len(partition) < 2 * self._failed.get(scope, 0):
            return
        with suppress(RuntimeError):  # closed
            self._pending[scope] = self._thread.submit(self._run, scope)

    def added(self, scope: str, identifier: int) -> None:
        if self._journal is not None and self._journal.scope == scope:
            self._journal.added.append(identifier)

    def removed(self, scope: str, ids: Ids) -> None:
        if self._journal is not None and self._journal.scope == scope:
            self._journal.removed.append(ids)

    def close(self) -> None:
        """What is under way ends at its next check, some tens of milliseconds away."""
        self._closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    # What follows runs in the training thread, and what it hands to `call` in the owner's.

    def _run(self, scope: str) -> None:
        call = self._owner.call
        with suppress(ExecutorClosed):
            try:
                self._rebuild_or_copy(scope)
            except _Superseded:
                pass
            except ExecutorClosed:
                return
            except Exception:  # the old form goes on serving: slower, or less exact, but right
                LOG.exception("a partition could not be rebuilt")
                call(lambda: self._on_failure(scope))
            if call(lambda: self._close_journal(scope)) >= LARGE:
                trim_heap()

    def _rebuild_or_copy(self, scope: str) -> None:
        journal, needs_rebuild_for_size = self._owner.call(lambda: self._start_journal(scope))
        if needs_rebuild_for_size:
            self._rebuild(journal)
        elif self._device is not None and isinstance(journal.partition, IvfPartition):
            self._place(journal, journal.partition, self._device)

    def _rebuild(self, journal: _Journal) -> None:
        call, partition = self._owner.call, journal.partition
        copies = (call(partial(partition.part, step)) for step in range(partition.steps))
        made = build(
            [_without_newer(part, journal.first_id) for part in copies],
            self._dimension,
            self._plan,
            self._train,
            self._check,
        )
        self._catch_up(journal, made)
        call(lambda: self._swap(journal, made))

    def _place(self, journal: _Journal, partition: IvfPartition, device: Device) -> None:
        """List by list: FAISS' own copying to a GPU would read lists that change meanwhile."""
        begun = time.perf_counter()
        try:
            made = GpuReplica(device.place(empty_lists(partition.centroids, self._plan.device_probes)), self._dimension)
            for step in range(partition.steps):
                self._check()
                part = _without_newer(self._owner.call(partial(partition.part, step)), journal.first_id)
                made.put(part.ids, part.vectors)
        except RuntimeError as error:
            LOG.warning(  # there is no room, most likely
                "a partition could not be copied to the device: it is searched on the CPU",
                extra={"fields": {"entries": len(partition), "error": str(error)[:300]}},
            )
            self._owner.call(lambda: self._on_failure(journal.scope))
            return
        self._catch_up(journal, made)
        self._owner.call(lambda: self._swap_copy(journal, partition, made))
        took = round(time.perf_counter() - begun, 3)
        LOG.info("a partition is searched on the device", extra={"fields": {"entries": len(made), "seconds": took}})

    def _catch_up(self, journal: _Journal, made: Partition | PartitionCopy) -> None:
        """Each round takes what came during the one before it. That gets less: what is added here goes in batches, what
        requests add comes one by one."""
        while True:
            self._check()
            news = self._owner.call(lambda: self._take_changes(journal, CATCH_UP_ENTRIES))
            news.apply(made)
            if news.rest == 0 and len(news.ids) <= MAX_SWAP_CHANGES:
                return

    def _check(self) -> None:
        if self._closed.is_set():
            raise ExecutorClosed

    def _start_journal(self, scope: str) -> tuple[_Journal, bool]:
        """Beside the journal, whether the partition is due for another form, or else for a copy."""
        contents = self._contents()
        partition = contents.partitions.get(scope)
        if partition is None:
            raise _Superseded
        self._journal = _Journal(scope, partition, contents.next_id)
        return self._journal, self._plan.needs_rebuild_for_size(partition)

    def _take_changes(self, journal: _Journal, limit: int) -> _Delta:
        if self._contents().partitions.get(journal.scope) is not journal.partition:
            raise _Superseded
        wanted, journal.added = journal.added[:limit], journal.added[limit:]
        removed, journal.removed = journal.removed, []
        ids, vectors = journal.partition.vectors(np.array(wanted, dtype=np.int64))
        return _Delta(ids, vectors, removed, len(journal.added))

    def _swap(self, journal: _Journal, made: Partition) -> None:
        self._take_changes(journal, len(journal.added)).apply(made)
        if len(made) != len(journal.partition):
            raise AssertionError(f"{len(made)} entries were made of {len(journal.partition)}")
        self._contents().replace(journal.scope, made)
        self._failed.pop(journal.scope, None)

    def _swap_copy(self, journal: _Journal, partition: IvfPartition, made: GpuReplica) -> None:
        self._take_changes(journal, len(journal.added)).apply(made)
        if len(made) > len(partition):
            raise AssertionError(f"{len(made)} entries were copied of {len(partition)}")
        partition.copy = made
        self._failed.pop(journal.scope, None)

    def _on_failure(self, scope: str) -> None:
        partition = self._contents().partitions.get(scope)
        self._failed[scope] = 0 if partition is None else len(partition)

    def _close_journal(self, scope: str) -> int:
        """-> how many entries it has."""
        self._journal = None
        del self._pending[scope]
        self.schedule_if_needed(scope)  # it may have outgrown its new form already
        partition = self._contents().partitions.get(scope)
        return 0 if partition is None else len(partition)


def _without_newer(part: Slice, first_id: int) -> Slice:
    """Without what was added after the copy began: the journal has it."""
    old = part.ids < first_id
    return Slice(part.ids[old], part.vectors[old])


def _lower_priority() -> None:
    faiss.omp_set_num_threads(1)
    with suppress(AttributeError, OSError):  # of this thread alone, on Linux; elsewhere it does without
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICENESS)
