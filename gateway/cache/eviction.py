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

# Which stored answers make room for others: those whose place saves least. Pure: no I/O, no clock.
#
# Greedy-Dual-Size-Frequency (Cherkasova 1998): an entry is worth what its hits save a byte, on top of the worth of what
# was evicted last, so that what is no longer asked for falls behind. On Zipf replays it saves 75 % of the dollars where
# least-recently-used saves 62 %, and frequency alone 51 % (`python -m bench.eviction`; docs/performance.md).


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
        self._places: dict[str, _Place] = {}
        self.holds = self._places.__contains__  # as `in`, without a frame: every lookup asks
        # A value only rises: the one in here may be an older, lower one, which is looked up when its turn comes.
        self._queue: list[tuple[float, str]] = []
        self._floor = 0.0
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, fingerprint: str) -> bool:
        return fingerprint in self._places

    def put(self, fingerprint: str, size: int, worth: float, cycle: int) -> None:
        """Adds or replaces. What is replaced keeps its uses."""
        place = self._places.get(fingerprint)
        if place is None:
            value = self._floor + worth / size  # as `_value`: every put comes by here
            self._places[fingerprint] = _Place(size, worth, 1, value, cycle)
            heapq.heappush(self._queue, (value, fingerprint))
        else:
            self.bytes -= place.size
            place.size, place.worth, place.cycle = size, worth, max(cycle, place.cycle)
            place.value = max(place.value, self._value(place))
        self.bytes += size
        if len(self._queue) > 2 * len(self._places) + 64:  # dropped and put anew, over and over
            self._queue = [(place.value, name) for name, place in self._places.items()]
            heapq.heapify(self._queue)

    def used(self, fingerprint: str) -> None:
        """A hit. What is not known is none of ours."""
        place = self._places.get(fingerprint)
        if place is not None:
            place.uses += 1
            value = self._floor + place.uses * place.worth / place.size  # as `_value`: every hit comes by here
            if value > place.value:
                place.value = value

    def seen(self, fingerprint: str, cycle: int) -> bool:
        """Notes that the store has it. Whether it is known."""
        place = self._places.get(fingerprint)
        if place is not None:
            place.cycle = cycle
        return place is not None

    def hits(self, fingerprint: str) -> int:
        """Since it was put, or was first seen in the store."""
        place = self._places.get(fingerprint)
        return 0 if place is None else place.uses - 1

    def names(self) -> list[str]:
        return list(self._places)

    def known_since(self, fingerprint: str, cycle: int) -> bool:
        """Whether it was put or seen since `cycle` began."""
        place = self._places.get(fingerprint)
        return place is not None and place.cycle >= cycle

    def unseen(self, fingerprint: str, cycle: int) -> bool:
        """Whether it neither was put nor seen since `cycle` began."""
        place = self._places.get(fingerprint)
        return place is not None and place.cycle < cycle

    def drop(self, fingerprint: str) -> None:
        place = self._places.pop(fingerprint, None)
        if place is not None:
            self.bytes -= place.size

    def exceeded(self, max_entries: int, max_bytes: int | None) -> str | None:
        """Which bound is, `entries` or `bytes`."""
        if len(self._places) > max_entries:
            return "entries"
        return "bytes" if max_bytes is not None and self.bytes > max_bytes else None

    def surplus(self, max_entries: int, max_bytes: int | None) -> Iterator[tuple[str, str]]:
        """Takes out what is too much, least valuable first -> (fingerprint, `entries` or `bytes`: which bound)."""
        while self._places and (reason := self.exceeded(max_entries, max_bytes)) is not None:
            value, name = heapq.heappop(self._queue)
            place = self._places.get(name)
            if place is None:
                continue
            if place.value > value:
                heapq.heappush(self._queue, (place.value, name))
                continue
            self._floor = value
            self.drop(name)
            yield name, reason

    def _value(self, place: _Place) -> float:
        return self._floor + place.uses * place.worth / place.size


# Keeps the store within its budget, and the index to what the store holds.
#
# What is put and hit is told as it happens. Beyond the budget the least valuable entries leave store, front and index
# together. What happens behind our back (the server's own eviction, expiry, removals, imports, other gateways) is found
# by comparing with the store's list from time to time, in pages with pauses between them.

LOG = logging.getLogger("nearhit.store")

BATCH = 256

STEP = 10_000

COMPARE_S = 60.0  # between two comparisons with the store

OF_MEMORY = 0.75  # of the embedded server's bound: with the overhead of its keys it seldom has to evict by itself

OF_INDEX = 0.99  # of the index' bound: at it the index would forget its oldest, whatever that saves

PAUSE_S = 0.02  # after each page: a million entries take some minutes, and a tenth of a core

SILENT = "the store does not answer: until it does, what is not in memory is a miss"

RETRY_S = 2.0


class Evictor:
    """`max_bytes` None: the server's own bound is the only one. `alone`: nobody else writes into the store, so that
    what the ledger does not know is not there."""

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
        alone: bool = False,
    ) -> None:
        self._front = front
        self._store = store
        self._spaces = spaces
        self._telemetry = telemetry
        self._clock = clock
        self._max_entries = max_entries
        self._max_bytes = max_bytes
        self._alone = alone
        self._cycle = 1
        self._lives = 1  # of the server
        self._wanted = asyncio.Event()
        self._unfinished: list[tuple[str, str]] = []  # taken out of the ledger, and not yet out of the store
        self.ledger = EvictionLedger()
        self.used = self.ledger.used  # after a hit
        self.compared = 0  # comparisons that came to their end, with this life of the server

    def stored(self, entry: Entry, vector: Vector | None) -> None:
        """To be told once it can be found, in store and index."""
        size = entry.size + (0 if vector is None else vector.nbytes)
        self.ledger.put(entry.fingerprint, size, worth_of(entry), self._cycle)
        if self.ledger.exceeded(self._max_entries, self._max_bytes):
            self._wanted.set()

    def returned(self) -> None:
        """The server was started again: it may lack what was put last, and have what was removed last. It is asked
        for everything until it has been compared."""
        self._lives += 1
        self.compared = 0
        self._wanted.set()

    def lacks(self, fingerprint: str) -> bool:
        """Whether the store is known not to have it. False: it may have it; so it is until the first comparison."""
        if not self._alone or self.compared == 0 or self.ledger.holds(fingerprint):
            return False
        return not self._unfinished or all(fingerprint != name for name, _ in self._unfinished)

    async def most_used(self, limit: int) -> list[tuple[str, int]]:
        """Fingerprints with their hits, the most first; none without any."""
        most: list[tuple[int, str]] = []
        async for some in _in_steps(self.ledger.names()):
            hits = ((self.ledger.hits(name), name) for name in some)
            most = heapq.nlargest(limit, [*most, *(each for each in hits if each[0] > 0)])
        return [(name, hits) for hits, name in most]

    async def run(self) -> None:
        """For ever: evicts when it is told of too much, compares now and then."""
        due, silent = self._clock.monotonic(), False
        while True:
            try:
                if self.compared == 0 or self._clock.monotonic() >= due:
                    await self.compare()
                    due = self._clock.monotonic() + COMPARE_S
                await self.evict()
            except StoreUnavailable as error:
                if not silent:  # once: it is asked every two seconds, for as long as it is away
                    LOG.warning(f"{SILENT}, and eviction waits", extra={"fields": {"error": str(error)}})
                silent = True
                await asyncio.sleep(RETRY_S)
                continue
            if silent:
                LOG.info("the store answers again")
                silent = False
            try:
                async with asyncio.timeout(max(0.01, due - self._clock.monotonic())):
                    await self._wanted.wait()
            except TimeoutError:
                continue
            self._wanted.clear()

    async def evict(self) -> None:
        """Until the budget is kept. Raises `StoreUnavailable`; what was not done is done the next time."""
        while self._unfinished or self.ledger.exceeded(self._max_entries, self._max_bytes):
            if not self._unfinished:
                self._unfinished = list(islice(self.ledger.surplus(self._max_entries, self._max_bytes), BATCH))
            names = [name for name, _ in self._unfinished]
            # In this order: what another gateway stores anew in between comes back by the log of changes.
            await self._spaces.forget(names)
            await self._front.delete(names)
            for _, reason in self._unfinished:
                self._telemetry.evictions.add(reason)
            self._unfinished = []

    async def compare(self) -> None:
        """Learns what the store holds, and makes the index forget the rest. Raises `StoreUnavailable`."""
        self._cycle += 1
        cycle, life = self._cycle, self._lives
        async for page in self._store.weights():
            # What was put since the page was read is there by now.
            gone = [each for each in page if each.size == 0 and not self.ledger.known_since(each.fingerprint, cycle)]
            for weight in gone:
                self.ledger.drop(weight.fingerprint)
                if not weight.expired:
                    self._telemetry.evictions.add("memory")
            await self._spaces.forget([weight.fingerprint for weight in gone])
            for weight in page:
                if weight.size and not self.ledger.seen(weight.fingerprint, cycle):
                    self.ledger.put(weight.fingerprint, weight.size, weight.worth, cycle)
            await asyncio.sleep(PAUSE_S)
        await self._drop_unseen(cycle)
        for space in self._spaces.followed:
            async for some in _in_steps(await space.index.fingerprints()):
                if space not in self._spaces.all:  # another embedding model has followed, it is about to be closed
                    break
                await _forget(space, [name for name in some if name not in self.ledger])
        if life == self._lives:
            self.compared += 1

    async def _drop_unseen(self, cycle: int) -> None:
        async for some in _in_steps(self.ledger.names()):
            for name in some:
                if self.ledger.unseen(name, cycle):
                    self.ledger.drop(name)


async def _forget(space: Space, names: Sequence[str]) -> None:
    """What the index has and the store did not list; asked for once more, as it may be on its way in."""
    for at in range(0, len(names), BATCH):
        some = names[at : at + BATCH]
        stored = {each.fingerprint for each in await space.store.vectors_of(some)}
        await space.index.remove([name for name in some if name not in stored])


async def _in_steps(names: Sequence[str]) -> AsyncIterator[Sequence[str]]:
    """So that requests get their turn between them: a look at a million at once takes 30 ms."""
    for at in range(0, len(names), STEP):
        yield names[at : at + STEP]
        await asyncio.sleep(0)
