"""Evict the stored answers that save least, so that others fit.

The algorithm is Greedy-Dual-Size-Frequency (Cherkasova 1998). An entry's value is the saving of its hits per byte, plus
the value of the last evicted entry; so unused entries fall behind. On Zipf replays it saves 75 % of the dollars, least
recently used 62 %, and frequency alone 51 % (`python -m bench.eviction`; docs/performance.md).
"""

from __future__ import annotations

import asyncio
import heapq
import logging
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from gateway.adapters.redis.store import worth_of
from gateway.adapters.system.memory import untrack
from gateway.cache.embedding_spaces import Space, Spaces
from gateway.entries import Entry, Vector
from gateway.errors import StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, NearbyStore, SizedStore


@dataclass(slots=True)
class _LedgerEntry:
    size: int
    worth: float
    uses: int
    value: float
    cycle: int  # the last comparison with the store that saw the entry


class EvictionLedger:
    """Every entry of the store with its size in bytes. The ledger takes about 0.4 kB per entry."""

    def __init__(self) -> None:
        self._records: dict[str, _LedgerEntry] = {}
        self.contains = self._records.__contains__  # like `in`, but without a frame, as every lookup calls it
        # Values only rise, so a queued value may be outdated and too low. It is corrected when its turn comes.
        self._queue: list[tuple[float, str]] = []
        self._floor = 0.0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, fingerprint: str) -> bool:
        return fingerprint in self._records

    def put(self, fingerprint: str, size: int, worth: float, cycle: int) -> None:
        """Add or replace an entry. A replaced entry keeps its uses."""
        record = self._records.get(fingerprint)
        if record is None:
            value = self._floor + worth / size  # inlines `_value`, as every put runs this
            self._records[fingerprint] = added = _LedgerEntry(size, worth, 1, value, cycle)
            untrack(added)
            heapq.heappush(self._queue, (value, fingerprint))
        else:
            self.bytes -= record.size
            record.size, record.worth, record.cycle = size, worth, max(cycle, record.cycle)
            record.value = max(record.value, self._value(record))
        self.bytes += size
        if len(self._queue) > 2 * len(self._records) + 64:  # many entries were dropped and put again
            self._queue = [(record.value, name) for name, record in self._records.items()]
            heapq.heapify(self._queue)

    def used(self, fingerprint: str) -> None:
        """Count a hit. Ignore unknown entries."""
        record = self._records.get(fingerprint)
        if record is not None:
            record.uses += 1
            value = self._floor + record.uses * record.worth / record.size  # inlines `_value`, as every hit runs this
            if value > record.value:
                record.value = value

    def mark_seen(self, fingerprint: str, cycle: int) -> bool:
        """Mark an entry as seen in the store. Return whether it is known."""
        record = self._records.get(fingerprint)
        if record is not None:
            record.cycle = cycle
        return record is not None

    def hits(self, fingerprint: str) -> int:
        """Return the hits since the entry was put or first seen in the store."""
        record = self._records.get(fingerprint)
        return 0 if record is None else record.uses - 1

    def names(self) -> list[str]:
        return list(self._records)

    def is_known_since(self, fingerprint: str, cycle: int) -> bool:
        """Return whether the entry was put or seen since `cycle` began."""
        record = self._records.get(fingerprint)
        return record is not None and record.cycle >= cycle

    def is_unseen_since(self, fingerprint: str, cycle: int) -> bool:
        """Return whether a known entry was neither put nor seen since `cycle` began."""
        record = self._records.get(fingerprint)
        return record is not None and record.cycle < cycle

    def drop(self, fingerprint: str) -> None:
        record = self._records.pop(fingerprint, None)
        if record is not None:
            self.bytes -= record.size

    def exceeded_limit(self, max_entries: int, max_bytes: int | None) -> str | None:
        """Return the exceeded bound, `entries` or `bytes`, or None."""
        if len(self._records) > max_entries:
            return "entries"
        return "bytes" if max_bytes is not None and self.bytes > max_bytes else None

    def pop_surplus(self, max_entries: int, max_bytes: int | None) -> Iterator[tuple[str, str]]:
        """Remove and yield the surplus, least valuable first, as (fingerprint, exceeded bound)."""
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

    def _value(self, record: _LedgerEntry) -> float:
        return self._floor + record.uses * record.worth / record.size


# The evictor keeps the store within its budget and the index consistent with the store.
#
# Puts and hits are reported as they happen. Beyond the budget, the least valuable entries leave store, memory tier and
# index together. Other changes (the server's own eviction, expiry, removals, imports, other gateways) are found by
# comparing with the store's list at intervals, in pages with pauses between them.

LOG = logging.getLogger("nearhit.store")

BATCH = 256

STEP = 10_000

COMPARE_S = 60.0  # seconds between two comparisons with the store

MEMORY_SHARE = 0.75  # share of the embedded server's bound; with the keys' overhead the server rarely evicts on its own

INDEX_SHARE = 0.99  # share of the index's bound, at which the index would drop its oldest entries, whatever they save

PAUSE_S = 0.02  # seconds after each page: a million entries take some minutes and a tenth of a core

UNAVAILABLE_MESSAGE = "the store does not answer: until it does, answers that are not in memory are misses"

RETRY_S = 2.0


class Evictor:
    """`Evictor` evicts entries, and compares ledger and index with the store.

    Without `max_bytes` only the server's own bound applies. With `is_exclusive` only this gateway writes to the store,
    so an entry that the ledger does not know does not exist.
    """

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
        self._pending_removals: list[tuple[str, str]] = []  # removed from the ledger, but not yet from the store
        self.ledger = EvictionLedger()
        self.used = self.ledger.used  # called after a hit
        self.comparisons = 0  # finished comparisons since the last start of the server

    def stored(self, entry: Entry, vector: Vector | None) -> None:
        """Record an entry that store and index now have."""
        size = entry.size + (0 if vector is None else vector.nbytes)
        self.ledger.put(entry.fingerprint, size, worth_of(entry), self._cycle)
        if self.ledger.exceeded_limit(self._max_entries, self._max_bytes):
            self._wake_event.set()

    def on_server_restart(self) -> None:
        """Expect differences after a restart of the server, which may have lost its last writes.

        It may lack recent entries and have removed ones. Until the next comparison every lookup asks the store.
        """
        self._generation += 1
        self.comparisons = 0
        self._wake_event.set()

    def is_absent(self, fingerprint: str) -> bool:
        """Return whether the store is known not to have the entry. Before the first comparison it is always False."""
        if not self._is_exclusive or self.comparisons == 0 or self.ledger.contains(fingerprint):
            return False
        return not self._pending_removals or all(fingerprint != name for name, _ in self._pending_removals)

    async def most_used(self, limit: int) -> list[tuple[str, int]]:
        """Return the fingerprints with the most hits, in descending order, with their hits.

        Entries without hits are left out.
        """
        top: list[tuple[int, str]] = []
        async for batch in _batches(self.ledger.names()):
            hits = ((self.ledger.hits(name), name) for name in batch)
            top = heapq.nlargest(limit, [*top, *(item for item in hits if item[0] > 0)])
        return [(name, hits) for hits, name in top]

    async def run(self) -> None:
        """Run forever: evict when there is a surplus, and compare at intervals."""
        next_compare_at, is_unavailable = self._clock.monotonic(), False
        while True:
            try:
                if self.comparisons == 0 or self._clock.monotonic() >= next_compare_at:
                    await self.compare()
                    next_compare_at = self._clock.monotonic() + COMPARE_S
                await self.evict()
            except StoreUnavailable as error:
                if not is_unavailable:  # log once, as the store is tried every two seconds
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
        """Evict until the budget is kept. Raise `StoreUnavailable`; the rest is then evicted next time."""
        while self._pending_removals or self.ledger.exceeded_limit(self._max_entries, self._max_bytes):
            if not self._pending_removals:
                self._pending_removals = list(
                    islice(self.ledger.pop_surplus(self._max_entries, self._max_bytes), BATCH)
                )
            names = [name for name, _ in self._pending_removals]
            # Index before store: an entry that another gateway stores in between comes back through the log of changes.
            await self._spaces.forget(names)
            await self._front.delete(names)
            for _, reason in self._pending_removals:
                self._telemetry.evictions.add(reason)
            self._pending_removals = []

    async def compare(self) -> None:
        """Read the store's list into the ledger, and remove other entries from the index. Raise `StoreUnavailable`."""
        self._cycle += 1
        cycle, generation = self._cycle, self._generation
        async for page in self._store.weights():
            # Entries put after the page was read are in the ledger already.
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
                # another embedding model took over, and this space is about to be closed
                if space not in self._spaces.all:
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
    """Remove entries from an index that the store did not list.

    The store is read again first: a put may be in progress.
    """
    for at in range(0, len(names), BATCH):
        batch = names[at : at + BATCH]
        stored = {item.fingerprint for item in await space.store.vectors_of(batch)}
        await space.index.remove([name for name in batch if name not in stored])


async def _batches(names: Sequence[str]) -> AsyncIterator[Sequence[str]]:
    """Yield batches and let requests run between them: going through a million names at once takes 30 ms."""
    for at in range(0, len(names), STEP):
        yield names[at : at + STEP]
        await asyncio.sleep(0)
