"""The contents of an index: the id of each fingerprint, and the partitions of all scopes. Use from one thread at a
time."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from gateway.adapters.faiss.checkpoint import CheckpointChunk, InvertedLists
from gateway.adapters.faiss.partition import FlatPartition, Ids, IvfPartition, Partition, Slice
from gateway.entries import Neighbour, Vector

# Measured (make bench-index): fingerprint and id in three tables; an empty flat partition with its scope.
ENTRY_BYTES = 300
PARTITION_BYTES = 600


@dataclass(slots=True)
class ShardMap:
    """`ShardMap` keeps tables of strings and numbers, which the garbage collector does not scan. An `OrderedDict` of a
    million entries costs each full collection 60 ms (measured)."""

    ids: dict[str, int] = field(default_factory=dict)  # by fingerprint
    names: dict[int, str] = field(default_factory=dict)
    scopes: dict[int, str] = field(default_factory=dict)
    partitions: dict[str, Partition] = field(default_factory=dict)
    next_id: int = 1  # int64; never reused, so their order is that of age
    partition_bytes: int = 0  # sum over all partitions
    ages: array[int] = field(default_factory=lambda: array("q"))  # ids, oldest first, including removed ones
    head: int = 0  # all ids before this place in `ages` are removed

    @property
    def bytes(self) -> int:
        return len(self.ids) * ENTRY_BYTES + len(self.partitions) * PARTITION_BYTES + self.partition_bytes

    def add(self, fingerprint: str, scope: str, vector: Vector) -> int:
        """Add a fingerprint that is not present. Return its id."""
        partition = self.partitions.get(scope)
        if partition is None:
            partition = self.partitions[scope] = FlatPartition(len(vector))
            self.partition_bytes += partition.bytes
        identifier = self.next_id
        self.next_id += 1
        self.partition_bytes += partition.put(identifier, vector)
        self.ids[fingerprint] = identifier
        self.names[identifier] = fingerprint
        self.scopes[identifier] = scope
        self.ages.append(identifier)
        if len(self.ages) > 2 * len(self.ids) + 1000:
            self.ages, self.head = array("q", self.names), 0
        return identifier

    def oldest(self) -> str:
        """Return the fingerprint that was added first. There must be one."""
        while (name := self.names.get(self.ages[self.head])) is None:
            self.head += 1
        return name

    def remove(self, fingerprints: Iterable[str]) -> dict[str, Ids]:
        """Remove entries. Return the removed ids by scope."""
        gone: dict[str, list[int]] = {}
        for fingerprint in fingerprints:
            identifier = self.ids.pop(fingerprint, None)
            if identifier is not None:
                del self.names[identifier]
                gone.setdefault(self.scopes.pop(identifier), []).append(identifier)
        removed = {scope: np.array(ids, dtype=np.int64) for scope, ids in gone.items()}
        for scope, ids in removed.items():
            self._remove_ids(scope, ids)
        return removed

    def search(self, scope: str, vector: Vector, k: int) -> list[Neighbour]:
        partition = self.partitions.get(scope)
        if partition is None:
            return []
        similarities, ids = partition.search(vector, k)
        return [
            Neighbour(self.names[i], min(1.0, max(0.0, s)))
            for s, i in zip(similarities.tolist(), ids.tolist(), strict=True)
        ]

    def nearest(self, partition: Partition, vector: Vector) -> list[Neighbour]:
        """Return the single nearest neighbour, faster than `search`."""
        neighbour = partition.nearest(vector)
        if neighbour is None:
            return []
        similarity, identifier = neighbour
        clipped = 1.0 if similarity > 1.0 else similarity if similarity > 0.0 else 0.0
        return [Neighbour(self.names[identifier], clipped)]

    def replace(self, scope: str, partition: Partition) -> None:
        """Replace a partition by another form of the same entries."""
        self.partition_bytes += partition.bytes - self.partitions[scope].bytes
        self.partitions[scope] = partition

    def chunk(self, scope: str, partition: Partition, step: int) -> CheckpointChunk:
        """Return a copy of a part of `partition`, without entries that are no longer in the index."""
        part = partition.part(step)
        names = [self.names.get(i) for i in part.ids.tolist()]
        if None in names:
            is_present = np.array([name is not None for name in names])
            part = Slice(
                part.ids[is_present], part.vectors[is_present], None if part.lists is None else part.lists[is_present]
            )
        lists = None
        if isinstance(partition, IvfPartition):
            lists = InvertedLists(partition.centroids, partition.trained_for)
        return CheckpointChunk(scope, [name for name in names if name is not None], part, lists)

    def _remove_ids(self, scope: str, ids: Ids) -> None:
        partition = self.partitions[scope]
        before = partition.bytes
        partition.remove(ids)
        self.partition_bytes += partition.bytes - before
        if len(partition) == 0:
            self.partition_bytes -= partition.bytes
            del self.partitions[scope]


def load_shard_map(pieces: Iterable[CheckpointChunk], dimension: int, probes_for: Callable[[int], int]) -> ShardMap:
    """Build the contents from the chunks of `chunk`. Chunks of one partition must be consecutive. `probes_for` is as in
    `IndexPlan`."""
    contents = ShardMap()
    names: list[str] = []
    scopes: list[str] = []
    ids: list[Ids] = []
    for piece in pieces:
        partition = contents.partitions.get(piece.scope)
        if partition is None:
            partition = contents.partitions[piece.scope] = _empty_partition(piece, dimension, probes_for)
        if isinstance(partition, IvfPartition):
            partition.load(piece.part)
        else:
            partition.add(piece.part.ids, piece.part.vectors)
        names += piece.names
        scopes += [piece.scope] * len(piece.names)
        ids.append(piece.part.ids)
    for partition in contents.partitions.values():
        if isinstance(partition, IvfPartition):
            partition.finish()
    if names:
        _fill_tables(contents, names, scopes, np.concatenate(ids))
    contents.partition_bytes = sum(partition.bytes for partition in contents.partitions.values())
    return contents


def _empty_partition(piece: CheckpointChunk, dimension: int, probes_for: Callable[[int], int]) -> Partition:
    if piece.lists is None:
        return FlatPartition(dimension)
    trained_for = piece.lists.trained_for
    return IvfPartition(piece.lists.centroids, probes=probes_for(trained_for), trained_for=trained_for)


def _fill_tables(contents: ShardMap, names: Sequence[str], scopes: Sequence[str], ids: Ids) -> None:
    """Fill the tables in the order of the ids, which is that of age."""
    order = np.argsort(ids).tolist()
    numbers: list[int] = ids.tolist()
    contents.ids = {names[i]: numbers[i] for i in order}
    contents.names = {numbers[i]: names[i] for i in order}
    contents.scopes = {numbers[i]: scopes[i] for i in order}
    contents.ages = array("q", contents.names)
    contents.next_id = contents.ages[-1] + 1
    if len(contents.ids) < len(contents.names):
        # An entry that changed its scope during the copy occurs twice: keep the younger one.
        stale = [i for i, name in contents.names.items() if contents.ids[name] != i]
        for identifier in stale:
            del contents.names[identifier]
            contents._remove_ids(contents.scopes.pop(identifier), np.array([identifier], dtype=np.int64))


def split_chunk(piece: CheckpointChunk, entries: int) -> Iterator[CheckpointChunk]:
    """Split a chunk into chunks of at most `entries`."""
    for i in range(0, max(1, len(piece.names)), entries):
        part = piece.part
        lists = None if part.lists is None else part.lists[i : i + entries]
        cut = Slice(part.ids[i : i + entries], part.vectors[i : i + entries], lists)
        yield CheckpointChunk(piece.scope, piece.names[i : i + entries], cut, piece.lists)
