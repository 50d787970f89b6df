"""Rebuilds a partition in the form that suits its size, in a separate thread, while the old form serves.

The thread copies the entries in steps, and trains and fills a new partition. Then it catches up with concurrent
additions and removals. The last part of that and the swap are one step in the owner's thread, so no search finds less
than before. If there is a device, a large partition gets its copy there in the same way.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import faiss
import numpy as np

from gateway.adapters.faiss.exclusive_executor import ExclusiveExecutor, ExecutorClosed
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
from gateway.adapters.system.thread_priority import BACKGROUND_NICENESS, lower_priority

if TYPE_CHECKING:  # a feature brings it
    from gateway.adapters.faiss.device import Device, Replica

# Plan and training: when to rebuild, with how many lists, and around which centroids.
SEED = 1

ITERATIONS = 6  # measured at 200,000 entries: more iterations gain no recall

SAMPLE_PER_LIST = 40  # FAISS recommends 39 to 256

CHUNK = 4096  # vectors at a time; a stop waits for one chunk, some 50 ms

Check = Callable[[], None]
"""Called periodically in long work; raises to end it."""

Train = Callable[[Matrix, int, Check], Matrix]
"""Takes a sample (n, d) and a number of lists; returns centroids (lists, d), unit length."""


@dataclass(frozen=True, slots=True)
class IndexPlan:
    """The growth plan of a partition. Measured with make bench-index, d = 384, one thread."""

    flat_up_to: int = 4_000  # entries; there a flat search takes 0.2 ms, one of lists 0.04 ms
    growth: int = 4  # retrain at this multiple of the entries that it was trained for
    small_up_to: int = 32_000  # below this many entries, retrain at twice as many; costs at most 1 s of CPU
    probes: int = 8  # minimum number of lists that a search scans
    target_scanned: int = 800  # approximate entries that it scans while there are few: docs/decisions/0007
    # If there is a device. Not measured. Below this size a search takes the CPU 0.2 ms, about as long as a call to a
    # GPU, which scans more lists in that time.
    device_from: int = 100_000
    device_probes: int = 32

    def lists(self, entries: int) -> int:
        """Return the number of lists for `entries` entries.

        A search compares with all centroids and with the entries of the scanned lists. That is least for about sqrt(8
        n) lists. This returns more, because `entries` is the number before the partition grows.
        """
        return max(1, min(entries, round(4 * math.sqrt(entries))))

    def probes_for(self, entries: int) -> int:
        """Return how many lists a search scans if the lists were made for `entries` entries."""
        return max(self.probes, round(self.target_scanned * self.lists(entries) / max(1, entries)))

    def needs_rebuild_for_size(self, partition: Partition) -> bool:
        """Return whether its form no longer suits its size."""
        entries = len(partition)
        if partition.trained_for == 0:
            return entries > self.flat_up_to
        growth = min(2, self.growth) if partition.trained_for < self.small_up_to else self.growth
        return entries > growth * partition.trained_for or entries * self.growth < self.flat_up_to

    def needs_device_copy(self, partition: Partition) -> bool:
        """Return whether the partition belongs on the device, and has no copy there or an outdated one."""
        if not isinstance(partition, IvfPartition) or len(partition) < self.device_from:
            return False
        return partition.copy is None or partition.copy.needs_rebuild


def build(parts: list[Slice], dimension: int, plan: IndexPlan, train: Train, check: Check) -> Partition:
    """Return a partition of these entries in the form that suits their number. `parts` is emptied, so that memory never
    holds everything twice."""
    entries = sum(len(part.ids) for part in parts)
    partition: Partition
    if entries <= plan.flat_up_to:
        partition = FlatPartition(dimension)
    else:
        sample = _sample(parts, SAMPLE_PER_LIST * plan.lists(entries))
        centroids = train(sample, min(plan.lists(entries), len(sample)), check)
        partition = IvfPartition(centroids, probes=plan.probes_for(entries), trained_for=entries)
    for ids, vectors in _chunks(parts):
        check()
        partition.add(ids, vectors)
    return partition


def train_centroids(sample: Matrix, lists: int, check: Check) -> Matrix:
    """Run spherical k-means (Dhillon and Modha, 2001): the centroid of a list is the direction of the sum of its
    vectors."""
    draw = np.random.default_rng(SEED)
    centroids: Matrix = sample[draw.choice(len(sample), lists, replace=False)]
    for _ in range(ITERATIONS):
        sums = np.zeros_like(centroids)
        for begin in range(0, len(sample), CHUNK):
            check()
            _add_up(sample[begin : begin + CHUNK], centroids, sums)
        lengths = np.linalg.norm(sums, axis=1)
        # A list without vectors, or whose vectors cancel out, restarts at a random vector of the sample.
        lost = np.flatnonzero(lengths < 1e-6)
        centroids = sums / np.maximum(lengths, 1e-6)[:, np.newaxis]
        centroids[lost] = sample[draw.choice(len(sample), len(lost), replace=False)]
    return centroids


def _add_up(chunk: Matrix, centroids: Matrix, sums: Matrix) -> None:
    """Add each vector to the sum of its nearest centroid. Chunks are needed because numpy holds the GIL while it
    gathers rows: 70,000 at once stopped everything else for 0.3 s (measured)."""
    _, found = faiss.knn(chunk, centroids, 1, metric=faiss.METRIC_INNER_PRODUCT)
    nearest = found[:, 0]
    order = np.argsort(nearest, kind="stable")
    used, begins = np.unique(nearest[order], return_index=True)
    sums[used] += np.add.reduceat(chunk[order], begins, axis=0)


def _sample(parts: Sequence[Slice], wanted: int) -> Matrix:
    """Return about `wanted` vectors, evenly from all parts."""
    entries = sum(len(part.ids) for part in parts)
    every = max(1, entries // wanted)
    vectors = [part.vectors[i % every :: every] for i, part in enumerate(parts)]
    return np.concatenate(vectors).astype(np.float32)


def _chunks(parts: list[Slice]) -> Iterator[tuple[Ids, Matrix]]:
    """Yield everything in chunks of at most `CHUNK`, the last part first."""
    while parts:
        some = [parts.pop()]
        while parts and sum(len(part.ids) for part in some) + len(parts[-1].ids) <= CHUNK:
            some.append(parts.pop())
        ids = np.concatenate([part.ids for part in some])
        vectors = np.concatenate([part.vectors for part in some])
        for i in range(0, len(ids), CHUNK):
            yield ids[i : i + CHUNK], vectors[i : i + CHUNK].astype(np.float32)


LOG = logging.getLogger("nearhit.index")

CATCH_UP_ENTRIES = 1024  # entries per round; a search waits while so many are copied, 7 ms (measured)

MAX_SWAP_CHANGES = 64  # changes left for the swap in the owner's thread

# entries; above that the memory of the replaced form is returned to the system (a million: 30 ms for 660 MB)
LARGE = 100_000


@dataclass(slots=True)
class _Journal:
    """Changes to a partition since its copy began."""

    scope: str
    partition: Partition
    first_id: int  # the copy has no id from here on
    added: list[int] = field(default_factory=list)
    removed: list[Ids] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Delta:
    ids: Ids  # (n,), added
    vectors: Matrix  # (n, d)
    removed: list[Ids]
    rest: int  # number of further additions

    def apply(self, target: Partition | PartitionCopy) -> None:
        if self.removed:
            target.remove(np.concatenate(self.removed))
        if len(self.ids):
            target.add(self.ids, self.vectors)


class _PartitionReplaced(Exception):
    """The partition that is being rebuilt no longer exists."""


@dataclass(slots=True, eq=False)
class Rebuilder:
    """`Rebuilder` rebuilds one partition at a time. Call `schedule_if_needed`, `added` and `removed` only with the
    owner's lock held."""

    dimension: int
    plan: IndexPlan
    train: Train
    owner: ExclusiveExecutor
    contents: Callable[[], ShardMap]
    device: Device | None = None
    _journal: _Journal | None = field(init=False, default=None)
    _pending: dict[str, Future[None]] = field(init=False, default_factory=dict)
    # scope -> entries at the failure; it is tried again at twice as many
    _failed: dict[str, int] = field(init=False, default_factory=dict)
    _closed: threading.Event = field(init=False, default_factory=threading.Event)
    _thread: ThreadPoolExecutor = field(
        init=False,
        default_factory=lambda: ThreadPoolExecutor(1, thread_name_prefix="nearhit-training", initializer=_yield_cores),
    )

    @property
    def pending(self) -> list[Future[None]]:
        """Rebuilds in progress or queued."""
        return list(self._pending.values())

    def schedule_if_needed(self, scope: str) -> None:
        partition = self.contents().partitions.get(scope)
        if partition is None or scope in self._pending:
            return
        if not self.plan.needs_rebuild_for_size(partition) and (
            self.device is None or not self.plan.needs_device_copy(partition)
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
        """Stop. Work in progress ends at its next check, after some tens of milliseconds."""
        self._closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    # The following methods run in the training thread; operations passed to `call` run in the owner's thread.

    def _run(self, scope: str) -> None:
        call = self.owner.call
        with suppress(ExecutorClosed):
            try:
                self._rebuild_or_copy(scope)
            except _PartitionReplaced:
                pass
            except ExecutorClosed:
                return
            except Exception:  # the old form continues to serve: slower or less exact, but correct
                LOG.exception("a partition could not be rebuilt")
                call(lambda: self._on_failure(scope))
            if call(lambda: self._close_journal(scope)) >= LARGE:
                trim_heap()

    def _rebuild_or_copy(self, scope: str) -> None:
        journal, needs_rebuild_for_size = self.owner.call(lambda: self._start_journal(scope))
        if needs_rebuild_for_size:
            self._rebuild(journal)
        elif self.device is not None and isinstance(journal.partition, IvfPartition):
            self._place(journal, journal.partition, self.device)

    def _rebuild(self, journal: _Journal) -> None:
        call, partition = self.owner.call, journal.partition
        copies = (call(partial(partition.part, step)) for step in range(partition.steps))
        successor = build(
            [_without_newer(part, journal.first_id) for part in copies],
            self.dimension,
            self.plan,
            self.train,
            self._check,
        )
        self._catch_up(journal, successor)
        call(lambda: self._swap(journal, successor))

    def _place(self, journal: _Journal, partition: IvfPartition, device: Device) -> None:
        """Copy a partition to the device list by list. FAISS's own copy to a GPU would read lists that change
        meanwhile."""
        begun = time.perf_counter()
        try:
            empty = empty_lists(partition.centroids, self.plan.device_probes)
            replica = device.replica(empty, self.dimension)
            for step in range(partition.steps):
                self._check()
                part = _without_newer(self.owner.call(partial(partition.part, step)), journal.first_id)
                replica.put(part.ids, part.vectors)
        except RuntimeError as error:
            LOG.warning(  # most likely there is no room
                "a partition could not be copied to the device: it is searched on the CPU",
                extra={"fields": {"entries": len(partition), "error": str(error)[:300]}},
            )
            self.owner.call(lambda: self._on_failure(journal.scope))
            return
        self._catch_up(journal, replica)
        self.owner.call(lambda: self._swap_copy(journal, partition, replica))
        took = round(time.perf_counter() - begun, 3)
        LOG.info("a partition is searched on the device", extra={"fields": {"entries": len(replica), "seconds": took}})

    def _catch_up(self, journal: _Journal, target: Partition | PartitionCopy) -> None:
        """Apply concurrent changes in rounds. Each round takes the changes of the one before. They shrink, because
        additions here go in batches and those of requests come one by one."""
        while True:
            self._check()
            news = self.owner.call(lambda: self._take_changes(journal, CATCH_UP_ENTRIES))
            news.apply(target)
            if news.rest == 0 and len(news.ids) <= MAX_SWAP_CHANGES:
                return

    def _check(self) -> None:
        if self._closed.is_set():
            raise ExecutorClosed

    def _start_journal(self, scope: str) -> tuple[_Journal, bool]:
        """Return the journal, and whether the partition needs another form; otherwise it needs a copy."""
        contents = self.contents()
        partition = contents.partitions.get(scope)
        if partition is None:
            raise _PartitionReplaced
        self._journal = _Journal(scope, partition, contents.next_id)
        return self._journal, self.plan.needs_rebuild_for_size(partition)

    def _take_changes(self, journal: _Journal, limit: int) -> _Delta:
        if self.contents().partitions.get(journal.scope) is not journal.partition:
            raise _PartitionReplaced
        wanted, journal.added = journal.added[:limit], journal.added[limit:]
        removed, journal.removed = journal.removed, []
        ids, vectors = journal.partition.vectors(np.array(wanted, dtype=np.int64))
        return _Delta(ids, vectors, removed, len(journal.added))

    def _swap(self, journal: _Journal, successor: Partition) -> None:
        self._take_changes(journal, len(journal.added)).apply(successor)
        if len(successor) != len(journal.partition):
            raise AssertionError(f"{len(successor)} entries in the new form, expected {len(journal.partition)}")
        self.contents().replace(journal.scope, successor)
        self._failed.pop(journal.scope, None)

    def _swap_copy(self, journal: _Journal, partition: IvfPartition, replica: Replica) -> None:
        self._take_changes(journal, len(journal.added)).apply(replica)
        if len(replica) > len(partition):
            raise AssertionError(f"{len(replica)} entries in the copy, expected at most {len(partition)}")
        partition.copy = replica
        self._failed.pop(journal.scope, None)

    def _on_failure(self, scope: str) -> None:
        partition = self.contents().partitions.get(scope)
        self._failed[scope] = 0 if partition is None else len(partition)

    def _close_journal(self, scope: str) -> int:
        """End the journal. Return the number of entries in the partition."""
        self._journal = None
        del self._pending[scope]
        self.schedule_if_needed(scope)  # it may already have outgrown its new form
        partition = self.contents().partitions.get(scope)
        return 0 if partition is None else len(partition)


def _without_newer(part: Slice, first_id: int) -> Slice:
    """Return the part without entries added after the copy began: the journal has those."""
    old = part.ids < first_id
    return Slice(part.ids[old], part.vectors[old])


def _yield_cores() -> None:
    faiss.omp_set_num_threads(1)
    lower_priority(BACKGROUND_NICENESS)
