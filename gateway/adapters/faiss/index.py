"""The vector index in process: one partition per scope, and one `ExclusiveExecutor` for all of them.

A partition per scope makes the scope a hard filter by construction. A search costs as much as its scope is large, not
the whole cache. One owner is needed because FAISS crashes on concurrent add and search. A small partition is searched
exactly. A partition that has grown is rebuilt in the background (`adapters.faiss.rebuilder`) in a form that suits its
size.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, ParamSpec, TypeVar

import numpy as np

from gateway.adapters.faiss.checkpoint import CheckpointChunk
from gateway.adapters.faiss.exclusive_executor import ExclusiveExecutor
from gateway.adapters.faiss.partition import FlatPartition, IvfPartition, Partition
from gateway.adapters.faiss.rebuilder import IndexPlan, Rebuilder, Train, train_centroids
from gateway.adapters.faiss.shard_map import ShardMap, load_shard_map, split_chunk
from gateway.entries import Neighbour, Vector
from gateway.errors import IndexUnavailable
from gateway.ports import StoredVector

if TYPE_CHECKING:  # a feature brings it
    from gateway.adapters.faiss.device import Device

LOG = logging.getLogger("nearhit.index")
P = ParamSpec("P")
T = TypeVar("T")
TIMEOUT_S = 1.0  # for a search or an addition: 0.6 ms at a million entries, 28 ms during a rebuild
# Entries copied or removed in one step: a search waits for one such step, a few milliseconds.
STEP = 4096
ADD_STEP = 64  # entries added in one step: 2 ms
FAILURES = (RuntimeError, MemoryError)  # errors that FAISS raises


class FaissIndex:
    """`FaissIndex` implements `VectorIndex` in process. Beyond `max_entries` it drops the entries that were added
    first."""

    shared = False

    def __init__(
        self,
        dimension: int,
        *,
        max_entries: int,
        plan: IndexPlan | None = None,
        train: Train = train_centroids,
        timeout_s: float = TIMEOUT_S,
        device: Device | None = None,
    ) -> None:
        self._dimension = dimension
        self._max_entries = max_entries
        self._timeout_s = timeout_s
        self._plan = plan or IndexPlan()
        self._device = device
        self._contents = ShardMap()
        self._owner = ExclusiveExecutor()
        self._rebuilder = Rebuilder(dimension, self._plan, train, self._owner, lambda: self._contents, device)
        self.changes = 0  # additions and removals so far; a checkpoint is due if there are any since the last one

    @property
    def size(self) -> int:
        return len(self._contents.ids)

    @property
    def bytes(self) -> int:
        return self._contents.bytes

    @property
    def entries_on_device(self) -> int | None:
        if self._device is None:
            return None
        partitions = list(self._contents.partitions.values())  # a copy, because the owner may be adding one
        lists = [each for each in partitions if isinstance(each, IvfPartition)]
        return sum(len(each) for each in lists if each.copy is not None and not each.copy.failed)

    @property
    def rebuilding(self) -> bool:
        """Whether a partition is being rebuilt, or waits to be."""
        return bool(self._rebuilder.pending)

    async def add(self, fingerprint: str, scope: str, vector: Vector, expires: float = math.inf) -> None:
        self._check(vector)
        partition, ids = self._contents.partitions.get(scope), self._contents.ids
        is_small = (
            partition is None
            or partition.is_small
            or (isinstance(partition, FlatPartition) and partition.free_rows > 0)
        )
        if is_small and fingerprint not in ids and len(ids) < self._max_entries and self._owner.enter():
            self._call_owner(self._add, fingerprint, scope, vector)
        else:
            await self._run_in_owner(lambda: self._add(fingerprint, scope, vector))

    async def add_all(self, vectors: Sequence[StoredVector]) -> None:
        fitting = [each for each in vectors if each.vector.shape == (self._dimension,)]
        if len(fitting) < len(vectors):  # damaged; one bad vector must not keep the others out of the index
            LOG.warning("vectors were skipped", extra={"fields": {"count": len(vectors) - len(fitting)}})
        for i in range(0, len(fitting), ADD_STEP):
            some = fitting[i : i + ADD_STEP]
            await self._owner.run(partial(self._add_batch, some))

    def holds(self, fingerprint: str) -> bool:
        return fingerprint in self._contents.ids

    def count(self, scope: str) -> int:
        partition = self._contents.partitions.get(scope)
        return 0 if partition is None else len(partition)

    async def search(self, scope: str, vector: Vector, k: int) -> list[Neighbour]:
        if scope not in self._contents.partitions:  # a dict lookup; a new scope needs no call to the owner
            return []
        self._check(vector)
        if self._is_small(scope) and self._owner.enter():
            return self._call_owner(self._contents.search, scope, vector, k)
        return await self._run_in_owner(lambda: self._contents.search(scope, vector, k))

    def search_nowait(self, scope: str, vector: Vector, k: int) -> list[Neighbour] | None:
        contents = self._contents
        partition = contents.partitions.get(scope)
        if partition is None:
            return []
        if not partition.is_small or not self._owner.enter():
            return None
        try:
            return contents.nearest(partition, vector) if k == 1 else contents.search(scope, vector, k)
        except FAILURES:  # `search` reports the error
            return None
        finally:
            self._owner.leave()

    async def near(self, vector: Vector, similarity: float) -> list[str]:
        self._check(vector)
        return await asyncio.to_thread(self._near, vector, similarity)

    async def remove(self, fingerprints: Sequence[str]) -> int:
        removed = 0
        for i in range(0, len(fingerprints), STEP):
            removed += await self._owner.run(partial(self._remove, fingerprints[i : i + STEP]))
        return removed

    async def fingerprints(self) -> list[str]:
        return await self._owner.run(lambda: list(self._contents.ids))

    async def wait_settled(self) -> None:
        """Wait until no partition is being rebuilt or waits to be."""
        while True:
            await self._owner.run(lambda: None)  # earlier operations may still schedule a rebuild
            pending = self._rebuilder.pending
            if not pending:
                return
            await asyncio.gather(*map(asyncio.wrap_future, pending), return_exceptions=True)

    def chunks(self) -> Iterator[CheckpointChunk]:
        """Yield a copy of everything, in steps while the index is in use. Do not call it on the event loop's thread.

        It is not a snapshot: concurrent additions and removals may or may not be included. Raise `ExecutorClosed`.
        """
        steps_left = self._steps(self._owner.call(lambda: list(self._contents.partitions)))
        while copied := self._owner.call(lambda: self._copy(steps_left)):
            for piece in copied:
                yield from split_chunk(piece, STEP)

    async def load(self, pieces: Iterable[CheckpointChunk]) -> None:
        """Load the chunks that `chunks` yielded. Entries added since the start are newer, and stay."""
        contents = await asyncio.to_thread(load_shard_map, pieces, self._dimension, self._plan.probes_for)
        await self._owner.run(lambda: self._replace_contents(contents))

    def close(self) -> None:
        self._rebuilder.close()
        self._owner.close()

    def _is_small(self, scope: str) -> bool:
        """Return whether a search of the scope takes microseconds."""
        partition = self._contents.partitions.get(scope)
        return partition is None or partition.is_small

    def _call_owner(self, operation: Callable[P, T], *given: P.args, **named: P.kwargs) -> T:
        """Run an operation after `enter` succeeded, and leave. Raise `IndexUnavailable`."""
        try:
            return operation(*given, **named)
        except FAILURES as error:
            raise _index_error(error) from None
        finally:
            self._owner.leave()

    async def _run_in_owner(self, operation: Callable[[], T]) -> T:
        """Run an operation in the owner's thread. Raise `IndexUnavailable`."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._owner.run(operation)
        except TimeoutError:
            raise IndexUnavailable(f"the index has not answered within {self._timeout_s:g} s") from None
        except FAILURES as error:
            raise _index_error(error) from None

    def _near(self, vector: Vector, similarity: float) -> list[str]:
        """Search everything outside the owner's thread, in copies, so that no search has to wait."""
        fingerprints: list[str] = []
        for piece in self.chunks():
            close = piece.part.vectors.astype(np.float32) @ vector >= similarity
            fingerprints += [piece.names[i] for i in np.flatnonzero(close).tolist()]
        return fingerprints

    def _check(self, vector: Vector) -> None:
        if vector.shape != (self._dimension,) or vector.dtype != np.float32:
            raise ValueError(f"a vector of {vector.dtype}{vector.shape}, expected float32({self._dimension},)")

    # The following methods run in the owner's thread, or on the event loop after `enter`.

    def _add(self, fingerprint: str, scope: str, vector: Vector) -> None:
        contents = self._contents
        if fingerprint in contents.ids:
            self._remove([fingerprint])
        while len(contents.ids) >= self._max_entries:
            self._remove([contents.oldest()])
        self._rebuilder.added(scope, contents.add(fingerprint, scope, vector))
        self._rebuilder.schedule_if_needed(scope)
        self.changes += 1

    def _add_batch(self, vectors: Sequence[StoredVector]) -> None:
        for each in vectors:
            self._add(each.fingerprint, each.scope, each.vector)

    def _remove(self, fingerprints: Sequence[str]) -> int:
        gone = self._contents.remove(fingerprints)
        for scope, ids in gone.items():
            self._rebuilder.removed(scope, ids)
            self._rebuilder.schedule_if_needed(scope)
        removed = sum(map(len, gone.values()))
        self.changes += removed
        return removed

    def _steps(self, scopes: Sequence[str]) -> Iterator[tuple[str, Partition, int]]:
        for scope in scopes:
            partition = self._contents.partitions.get(scope)
            if partition is not None:
                for step in range(partition.steps):
                    yield scope, partition, step

    def _copy(self, steps_left: Iterator[tuple[str, Partition, int]]) -> list[CheckpointChunk]:
        """Return the next steps, until they have about `STEP` entries."""
        copied: list[CheckpointChunk] = []
        entries = 0
        for scope, partition, step in steps_left:
            copied.append(self._contents.chunk(scope, partition, step))
            entries += len(copied[-1].names)
            if entries >= STEP:
                break
        return copied

    def _replace_contents(self, contents: ShardMap) -> None:
        before, self._contents = self._contents, contents
        for fingerprint, identifier in before.ids.items():
            scope = before.scopes[identifier]
            _, vectors = before.partitions[scope].vectors(np.array([identifier], dtype=np.int64))
            self._add(fingerprint, scope, vectors[0])
        for scope in contents.partitions:
            self._rebuilder.schedule_if_needed(scope)  # copies on a device are not in the checkpoint


def _index_error(error: Exception) -> IndexUnavailable:
    return IndexUnavailable(f"the index failed: {type(error).__name__}: {error}"[:300])
