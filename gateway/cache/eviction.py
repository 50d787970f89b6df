"""Which stored answers make room for others: those whose place saves least. Pure: no I/O, no clock.

Greedy-Dual-Size-Frequency (Cherkasova 1998): an entry is worth what its hits save a byte, on top of the worth of what
was evicted last, so that what is no longer asked for falls behind. On Zipf replays it saves 75 % of the dollars where
least-recently-used saves 62 %, and frequency alone 51 % (`python -m bench.eviction`; docs/performance.md).
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from gateway.adapters.redis.store import worth_of
from gateway.cache.embedding_spaces import Space, Spaces
from gateway.errors import StoreUnavailable
from gateway.messages import Entry, Vector
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, NearbyStore, SizedStore


@dataclass(slots=True)
class _Place:
    size: int
    worth: float
    uses: int
    value: float
    cycle: int  # of the comparisons with the store: the last one that saw it


class EvictionLedger:
    """Every entry of the store with its size in bytes. About 0.4 kB an entry."""

    def __init__(self) -> None:
        self._records: dict[str, _Place] = {}
        self.contains = self._records.__contains__  # as `in`, without a frame: every lookup asks
        # A value only rises: the one in here may be an older, lower one, which is looked up when its turn comes.
        self._queue: list[tuple[float, str]] = []
        self._floor = 0.0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, fingerprint: str) -> bool:
        return fingerprint in self._records

    def put(self, fingerprint: str, size: int, worth: float, cycle: int) -> None:
        """Adds or replaces. What is replaced keeps its uses."""
        record = self._records.get(fingerprint)
        if record is None:
            value = self._floor + worth / size  # as `_value`: every put comes by here
            self._records[fingerprint] = _Place(size, worth, 1, value, cycle)
            heapq.heappush(self._queue, (value, fingerprint))
        else:
            self.bytes -= record.size
            record.size, record.worth, record.cycle = size, worth, max(cycle, record.cycle)
            record.value = max(record.value, self._value(record))
        self.bytes += size
        if len(self._queue) > 2 * len(self._records) + 64:  # dropped and put anew, over and over
            self._queue = [(record.value, name) for name, record in self._records.items()]
            heapq.heapify(self._queue)

    def used(self, fingerprint: str) -> None:
        """A hit. What is not known is none of ours."""
        record = self._records.get(fingerprint)
        if record is not None:
            record.uses += 1
            value = self._floor + record.uses * record.worth / record.size  # as `_value`: every hit comes by here
            if value > record.value:
                record.value = value

    def mark_seen(self, fingerprint: str, cycle: int) -> bool:
        """Notes that the store has it. Whether it is known."""
        record = self._records.get(fingerprint)
        if record is not None:
            record.cycle = cycle
        return record is not None

    def hits(self, fingerprint: str) -> int:
        """Since it was put, or was first seen in the store."""
        record = self._records.get(fingerprint)
        return 0 if record is None else record.uses - 1

    def names(self) -> list[str]:
        return list(self._records)

    def is_known_since(self, fingerprint: str, cycle: int) -> bool:
        """Whether it was put or seen since `cycle` began."""
        record = self._records.get(fingerprint)
        return record is not None and record.cycle >= cycle

    def is_unseen_since(self, fingerprint: str, cycle: int) -> bool:
        """Whether it neither was put nor seen since `cycle` began."""
        record = self._records.get(fingerprint)
        return record is not None and record.cycle < cycle

    def drop(self, fingerprint: str) -> None:
        record = self._records.pop(fingerprint, None)
        if record is not None:
            self.bytes -= record.size

    def exceeded_limit(self, max_entries: int, max_bytes: int | None) -> str | None:
        """Which bound is, `entries` or `bytes`."""
        if len(self._records) > max_entries:
            return "entries"
        return "bytes" if max_bytes is not None and self.bytes > max_bytes else None

    def pop_surplus(self, max_entries: int, max_bytes: int | None) -> Iterator[tuple[str, str]]:
        """Takes out what is too much, least valuable first -> (fingerprint, `entries` or `bytes`: which bound)."""
        while self._records and (reason := self.exceeded_limit(max_entries, max_bytes)) is not None:
            value, name = heapq.heappop(self._queue)
            record = self._records.get(name)
            if record is None:
                continue
            if record.value > value:
                heapq.heappush(self._queue, (record.value, name))
                continue
            self._floor = value
            self.drop(name)
            yield name, reason

    def _value(self, record: _Place) -> float:
        return self._floor + record.uses * record.worth / record.size


# Keeps the store within its budget, and the index to what the store holds.
#
# What is put and hit is told as it happens. Beyond the budget the least valuable entries leave store, front and index
# together. What happens behind our back (the server's own eviction, expiry, removals, imports, other gateways) is found
# by comparing with the store's list from time to time, in pages with pauses between them.

LOG = logging.getLogger("nearhit.store")

BATCH = 256

STEP = 10_000

COMPARE_S = 60.0  # between two comparisons with the store

MEMORY_SHARE = 0.75  # of the embedded server's bound: with the overhead of its keys it seldom has to evict by itself

INDEX_SHARE = 0.99  # of the index' bound: at it the index would forget its oldest, whatever that saves

PAUSE_S = 0.02  # after each page: a million entries take some minutes, and a tenth of a core

UNAVAILABLE_MESSAGE = "the store does not answer: until it does, what is not in memory is a miss"

RETRY_S = 2.0


class Evictor:
    """`max_bytes` None: the server's own bound is the only one. `is_exclusive`: nobody else writes into the store, so
    that what the ledger does not know is not there."""

    def __init__(
        self,
        front: NearbyStore,
        store: SizedStore,
        spaces: Spaces,
        telemetry: Telemetry,
        clock: Clock,
        *,
        max_entries: int,
        max_bytes: int | None,
        is_exclusive: bool = False,
    ) -> None:
        self._front = front
        self._store = store
        self._spaces = spaces
        self._telemetry = telemetry
        self._clock = clock
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._is_exclusive = is_exclusive
        self._cycle = 1
        self._generation = 1  # of the server
        self._wake_event = asyncio.Event()
        self._pending_removals: list[tuple[str, str]] = []  # taken out of the ledger, and not yet out of the store
        self.ledger = EvictionLedger()
        self.used = self.ledger.used  # after a hit
        self.comparisons = 0  # comparisons that came to their end, with this life of the server

    def stored(self, entry: Entry, vector: Vector | None) -> None:
        """To be told once it can be found, in store and index."""
        size = entry.size + (0 if vector is None else vector.nbytes)
        self.ledger.put(entry.fingerprint, size, worth_of(entry), self._cycle)
        if self.ledger.exceeded_limit(self._max_entries, self._max_bytes):
            self._wake_event.set()

    def on_server_restart(self) -> None:
        """The server was started again: it may lack what was put last, and have what was removed last. It is asked
        for everything until it has been compared."""
        self._generation += 1
        self.comparisons = 0
        self._wake_event.set()

    def is_absent(self, fingerprint: str) -> bool:
        """Whether the store is known not to have it. False: it may have it; so it is until the first comparison."""
        if not self._is_exclusive or self.comparisons == 0 or self.ledger.contains(fingerprint):
            return False
        return not self._pending_removals or all(fingerprint != name for name, _ in self._pending_removals)

    async def most_used(self, limit: int) -> list[tuple[str, int]]:
        """Fingerprints with their hits, the most first; none without any."""
        top: list[tuple[int, str]] = []
        async for batch in _batches(self.ledger.names()):
            hits = ((self.ledger.hits(name), name) for name in batch)
            top = heapq.nlargest(limit, [*top, *(item for item in hits if item[0] > 0)])
        return [(name, hits) for hits, name in top]

    async def run(self) -> None:
        """For ever: evicts when it is told of too much, compares now and then."""
        next_compare_at, is_unavailable = self._clock.monotonic(), False
        while True:
            try:
                if self.comparisons == 0 or self._clock.monotonic() >= next_compare_at:
                    await self.compare()
                    next_compare_at = self._clock.monotonic() + COMPARE_S
                await self.evict()
            except StoreUnavailable as error:
                if not is_unavailable:  # once: it is asked every two seconds, for as long as it is away
                    LOG.warning(f"{UNAVAILABLE_MESSAGE}, and eviction waits", extra={"fields": {"error": str(error)}})
                is_unavailable = True
                await asyncio.sleep(RETRY_S)
                continue
            if is_unavailable:
                LOG.info("the store answers again")
                is_unavailable = False
            try:
                async with asyncio.timeout(max(0.01, next_compare_at - self._clock.monotonic())):
                    await self._wake_event.wait()
            except TimeoutError:
                continue
            self._wake_event.clear()

    async def evict(self) -> None:
        """Until the budget is kept. Raises `StoreUnavailable`; what was not done is done the next time."""
        while self._pending_removals or self.ledger.exceeded_limit(self._max_entries, self._max_bytes):
            if not self._pending_removals:
                self._pending_removals = list(
                    islice(self.ledger.pop_surplus(self._max_entries, self._max_bytes), BATCH)
                )
            names = [name for name, _ in self._pending_removals]
            # In this order: what another gateway stores anew in between comes back by the log of changes.
            await self._spaces.forget(names)
            await self._front.delete(names)
            for _, reason in self._pending_removals:
                self._telemetry.evictions.add(reason)
            self._pending_removals = []

    async def compare(self) -> None:
        """Learns what the store holds, and makes the index forget the rest. Raises `StoreUnavailable`."""
        self._cycle += 1
        cycle, generation = self._cycle, self._generation
        async for page in self._store.weights():
            # What was put since the page was read is there by now.
            gone = [item for item in page if item.size == 0 and not self.ledger.is_known_since(item.fingerprint, cycle)]
            for weight in gone:
                self.ledger.drop(weight.fingerprint)
                if not weight.expired:
                    self._telemetry.evictions.add("memory")
            await self._spaces.forget([weight.fingerprint for weight in gone])
            for weight in page:
                if weight.size and not self.ledger.mark_seen(weight.fingerprint, cycle):
                    self.ledger.put(weight.fingerprint, weight.size, weight.worth, cycle)
            await asyncio.sleep(PAUSE_S)
        await self._drop_unseen(cycle)
        for space in self._spaces.with_local_index:
            async for batch in _batches(await space.index.fingerprints()):
                if space not in self._spaces.all:  # another embedding model has followed, it is about to be closed
                    break
                await _forget(space, [name for name in batch if name not in self.ledger])
        if generation == self._generation:
            self.comparisons += 1

    async def _drop_unseen(self, cycle: int) -> None:
        async for batch in _batches(self.ledger.names()):
            for name in batch:
                if self.ledger.is_unseen_since(name, cycle):
                    self.ledger.drop(name)


async def _forget(space: Space, names: Sequence[str]) -> None:
    """What the index has and the store did not list; asked for once more, as it may be on its way in."""
    for at in range(0, len(names), BATCH):
        batch = names[at : at + BATCH]
        stored = {item.fingerprint for item in await space.store.vectors_of(batch)}
        await space.index.remove([name for name in batch if name not in stored])


async def _batches(names: Sequence[str]) -> AsyncIterator[Sequence[str]]:
    """So that requests get their turn between them: a look at a million at once takes 30 ms."""
    for at in range(0, len(names), STEP):
        yield names[at : at + STEP]
        await asyncio.sleep(0)
