"""The hottest exact entries in process memory, in front of the store. Bounded in bytes.

All reads of entries come by here, so that here is where removals are heeded: what a ban covers is neither returned nor
kept, wherever it lies.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from gateway.bounded_cache import BoundedCache
from gateway.cache.bans import LATER, Bans
from gateway.messages import EmbeddedVector, Entry, Vector
from gateway.ports import Clock, ResponseStore, StoredVector, StoreStats

MAX_ITEMS = 2**31  # bytes bound it
SWEEP_STEP = 500  # entries looked at before others get their turn: a millisecond


MAX_ENTRY_FRACTION = 10  # one entry may take a tenth: a single huge answer must not push out everything that is hot


@dataclass(slots=True)
class _Resident:
    """An entry in process memory."""

    entry: Entry
    added_at: float  # monotonic clock
    bans: int  # the version of the bans that it was compared with last
    size: int  # bytes


Residents = BoundedCache[str, _Resident]


def _size(resident: _Resident) -> int:
    return resident.size


class TieredStore:
    """Least recently used entries make room. What lies here longer than `max_age_s` is asked of the store again, so
    that another gateway's removal on a shared store takes effect here too; None where the store is ours alone.
    `embedder` is the fingerprint of the vectors that come by here."""

    def __init__(
        self,
        store: ResponseStore,
        *,
        max_bytes: int,
        max_age_s: float | None,
        clock: Clock,
        bans: Bans | None = None,
        embedder: str = "",
        residents: Residents | None = None,
    ) -> None:
        self.bans = bans if bans is not None else Bans(loaded=True)
        self._store = store
        self._embedder = embedder
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._residents: Residents = (
            BoundedCache(MAX_ITEMS, max_weight=max_bytes, weigh=_size) if residents is None else residents
        )

    def for_embedder(self, embedder: str, store: ResponseStore) -> TieredStore:
        """The same front and bans before `store`, for vectors of another embedder."""
        return TieredStore(
            store,
            max_bytes=self._max_bytes,
            max_age_s=self._max_age_s,
            clock=self._clock,
            bans=self.bans,
            embedder=embedder,
            residents=self._residents,
        )

    def __len__(self) -> int:
        return len(self._residents)

    @property
    def bytes(self) -> int:
        return self._residents.weight

    def peek(self, fingerprint: str) -> Entry | None:
        """What is here, without asking the store."""
        resident = self._residents.get(fingerprint)
        if resident is None:
            return None
        if self._max_age_s is not None and self._clock.monotonic() - resident.added_at > self._max_age_s:
            self._residents.pop(fingerprint)
            return None
        if resident.bans != self.bans.version:  # looked at once a change: a hit pays for a comparison of numbers
            if self.bans.covers(resident.entry):
                self._residents.pop(fingerprint)
                return None
            resident.bans = self.bans.version
        return resident.entry

    async def get(self, fingerprint: str) -> Entry | None:
        entry = self.peek(fingerprint)
        if entry is None:
            entry = await self._store.get(fingerprint)
            # A gateway that does not know the removals yet takes nothing from the store.
            if entry is None or not self.bans.loaded or self.bans.covers(entry):
                return None
            self._add_resident(entry)
        return entry

    def banned(self, entry: Entry, vector: Vector | None = None, asked: float = LATER) -> bool:
        """Whether it has been removed since it was read, or while it was fetched."""
        if not self.bans.in_force:
            return False
        return self.bans.covers(entry, None if vector is None else EmbeddedVector(vector, self._embedder), asked)

    async def put(self, entry: Entry, vector: Vector | None, lease: int = 0) -> bool:
        if self.banned(entry, vector):
            return False
        # First here: while the store is down, what was just answered can still be answered again.
        self._add_resident(entry)
        stored = await self._store.put(entry, vector, lease)
        if not stored:
            self._residents.pop(entry.fingerprint)
        return stored

    async def delete(self, fingerprints: Sequence[str]) -> int:
        for fingerprint in fingerprints:
            self._residents.pop(fingerprint)
        return await self._store.delete(fingerprints)

    def forget(self, fingerprint: str) -> None:
        """The store has another one now."""
        self._residents.pop(fingerprint)

    async def sweep(self, known: Callable[[str], bool] | None = None) -> int:
        """Lets go of what a ban covers -> how many that were. They are not served anyway, but for those from before the
        clock was set back. `known`: where a removal means what is close to a question, whether it has been held against
        the question of an entry; what has not goes, too."""
        swept, now = 0, self._clock.wall()
        for i, name in enumerate(list(self._residents)):
            resident = self._residents.peek(name)
            if resident is not None and (_is_unchecked(resident.entry, known) or self.bans.sweep(resident.entry, now)):
                self._residents.pop(name)
                swept += 1
            if i % SWEEP_STEP == SWEEP_STEP - 1:
                await asyncio.sleep(0)
        return swept

    def vectors(self) -> AsyncIterator[StoredVector]:
        return self._store.vectors()

    def fingerprints(self) -> AsyncIterator[tuple[str, float]]:
        return self._store.fingerprints()

    async def vectors_of(self, fingerprints: Sequence[str]) -> Sequence[StoredVector]:
        return await self._store.vectors_of(fingerprints)

    async def stats(self) -> StoreStats:
        return await self._store.stats()

    def _add_resident(self, entry: Entry) -> None:
        size = entry.size
        if size > self._max_bytes // MAX_ENTRY_FRACTION:
            self._residents.pop(entry.fingerprint)
        else:
            resident = _Resident(entry, self._clock.monotonic(), self.bans.version, size)
            self._residents.put(entry.fingerprint, resident)


def _is_unchecked(entry: Entry, known: Callable[[str], bool] | None) -> bool:
    return known is not None and entry.question is not None and not known(entry.fingerprint)
