"""Keep the hottest exact entries in process memory, in front of the store. Bounded in bytes.

All reads of entries pass here, so bans are checked here: a banned entry is neither returned nor kept.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass

from gateway.adapters.system.memory import untrack
from gateway.bounded_cache import BoundedCache
from gateway.cache.bans import LATER, Bans
from gateway.entries import EmbeddedVector, Entry, Vector
from gateway.ports import Clock, ResponseStore, StoredVector, StoreStats

MAX_ITEMS = 2**31  # bytes are the real bound
SWEEP_STEP = 500  # entries per step, between which other tasks run: one millisecond


MAX_ENTRY_FRACTION = 10  # divisor of the size: a single huge answer must not evict all hot entries


@dataclass(slots=True)
class _Resident:
    """An entry in process memory."""

    entry: Entry
    added_at: float  # monotonic clock
    bans: int  # the version of the bans that it was last checked against
    size: int  # bytes


Residents = BoundedCache[str, _Resident]


def _size(resident: _Resident) -> int:
    return resident.size


class TieredStore:
    """The memory tier in front of the store. The least recently used entries make room.

    Entries older than `max_age_s` are read again from the store, where another gateway may have removed them. It is
    None if no other gateway is on the store. `embedder` is the fingerprint of the vectors that pass here.
    """

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
        """Return a tier for vectors of another embedder, with the same memory and bans."""
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
        """Return an entry in memory without reading the store."""
        resident = self._residents.get(fingerprint)
        if resident is None:
            return None
        if self._max_age_s is not None and self._clock.monotonic() - resident.added_at > self._max_age_s:
            self._residents.pop(fingerprint)
            return None
        if resident.bans != self.bans.version:  # once per change of the bans; a hit pays for comparing two numbers
            if self.bans.covers(resident.entry):
                self._residents.pop(fingerprint)
                return None
            resident.bans = self.bans.version
        return resident.entry

    async def get(self, fingerprint: str) -> Entry | None:
        entry = self.peek(fingerprint)
        if entry is None:
            entry = await self._store.get(fingerprint)
            return None if entry is None else self.admit(entry)
        return entry

    def admit(self, entry: Entry) -> Entry | None:
        """Keep an entry that was read from the store, and return it, or None if it may not be served."""
        # before the bans are loaded, nothing from the store may be served
        if not self.bans.loaded or self.bans.covers(entry):
            return None
        self._add_resident(entry)
        return entry

    def banned(self, entry: Entry, vector: Vector | None = None, request_monotonic: float = LATER) -> bool:
        """Return whether a removal covers the entry, also one made since it was read or fetched."""
        if not self.bans.in_force:
            return False
        return self.bans.covers(
            entry, None if vector is None else EmbeddedVector(vector, self._embedder), request_monotonic
        )

    async def put(self, entry: Entry, vector: Vector | None, lease: int = 0) -> bool:
        if self.banned(entry, vector):
            return False
        # memory first: while the store is down, the answer can still be served again
        self._add_resident(entry)
        stored = await self._store.put(entry, vector, lease)
        if not stored:
            self._residents.pop(entry.fingerprint)
        return stored

    async def amend(self, old: Entry, new: Entry) -> bool:
        if self.banned(new) or not await self._store.amend(old, new):
            return False
        resident = self._residents.peek(old.fingerprint)
        if resident is not None and resident.entry == old:
            self._add_resident(new)
        return True

    async def delete(self, fingerprints: Sequence[str]) -> int:
        for fingerprint in fingerprints:
            self._residents.pop(fingerprint)
        return await self._store.delete(fingerprints)

    def forget(self, fingerprint: str) -> None:
        """Drop an entry from memory, as the store has another one now."""
        self._residents.pop(fingerprint)

    async def sweep(self, is_known: Callable[[str], bool] | None = None) -> int:
        """Drop banned entries and return their number. Bans keep them from being served, except after the clock was set
        back.

        `is_known` returns whether an entry was compared with the question of a ban by similarity. Entries that were not
        compared are dropped too.
        """
        swept, now = 0, self._clock.wall()
        for i, name in enumerate(list(self._residents)):
            resident = self._residents.peek(name)
            if resident is not None and (
                _is_unchecked(resident.entry, is_known) or self.bans.sweep(resident.entry, now)
            ):
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
            untrack(entry)
            untrack(resident)
            self._residents.put(entry.fingerprint, resident)


def _is_unchecked(entry: Entry, is_known: Callable[[str], bool] | None) -> bool:
    return is_known is not None and entry.question is not None and not is_known(entry.fingerprint)
