"""The hottest exact entries in process memory, in front of the store. Bounded in bytes.

All reads of entries come by here, so that here is where removals are heeded: what a ban covers is neither returned nor
kept, wherever it lies.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Sequence

from gateway.cache.removal import Bans
from gateway.messages import Entry, Vector
from gateway.ports import Clock, ResponseStore, StoredVector, StoreStats

SWEEP_STEP = 500  # entries looked at before others get their turn: a millisecond


class FrontStore:
    """Least recently used entries make room. What lies here longer than `max_age_s` is asked of the store again, so
    that another gateway's removal on a shared store takes effect here too; None where the store is ours alone."""

    def __init__(
        self,
        store: ResponseStore,
        *,
        max_bytes: int,
        max_age_s: float | None,
        clock: Clock,
        bans: Bans | None = None,
    ) -> None:
        self.bans = bans if bans is not None else Bans(loaded=True)
        self._store = store
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._entries: OrderedDict[str, tuple[Entry, float, int]] = OrderedDict()  # since when, and under which bans
        self.bytes = 0

    def __len__(self) -> int:
        return len(self._entries)

    def peek(self, fingerprint: str) -> Entry | None:
        """What is here, without asking the store."""
        found = self._entries.get(fingerprint)
        if found is None:
            return None
        entry, since, bans = found
        if self._max_age_s is not None and self._clock.monotonic() - since > self._max_age_s:
            self._drop(fingerprint)
            return None
        if bans != self.bans.version:  # looked at once a change: a hit pays for a comparison of numbers
            if self.bans.cover(entry):
                self._drop(fingerprint)
                return None
            self._entries[fingerprint] = (entry, since, self.bans.version)
        self._entries.move_to_end(fingerprint)
        return entry

    async def get(self, fingerprint: str) -> Entry | None:
        entry = self.peek(fingerprint)
        if entry is None:
            entry = await self._store.get(fingerprint)
            # A gateway that does not know the removals yet takes nothing from the store.
            if entry is None or not self.bans.loaded or self.bans.cover(entry):
                return None
            self._keep(entry)
        return entry

    def banned(self, entry: Entry, vector: Vector | None = None) -> bool:
        """Whether it has been removed since it was read, or while it was fetched."""
        return self.bans.cover(entry, vector)

    async def put(self, entry: Entry, vector: Vector | None, lease: int = 0) -> bool:
        if self.bans.cover(entry, vector):
            return False
        # First here: while the store is down, what was just answered can still be answered again.
        self._keep(entry)
        stored = await self._store.put(entry, vector, lease)
        if not stored:
            self._drop(entry.fingerprint)
        return stored

    async def delete(self, fingerprints: Sequence[str]) -> int:
        for fingerprint in fingerprints:
            self._drop(fingerprint)
        return await self._store.delete(fingerprints)

    def forget(self, fingerprint: str) -> None:
        """The store has another one now."""
        self._drop(fingerprint)

    async def sweep(self) -> int:
        """Lets go of what a ban covers -> how many that were. They are not served anyway: this frees their memory."""
        swept = 0
        for i, name in enumerate(list(self._entries)):
            found = self._entries.get(name)
            if found is not None and self.bans.cover(found[0]):
                self._drop(name)
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

    def _keep(self, entry: Entry) -> None:
        self._drop(entry.fingerprint)
        # One entry may take a tenth: a single huge answer must not push out everything that is hot.
        if entry.size * 10 > self._max_bytes:
            return
        self._entries[entry.fingerprint] = (entry, self._clock.monotonic(), self.bans.version)
        self.bytes += entry.size
        while self.bytes > self._max_bytes:
            _, (oldest, *_) = self._entries.popitem(last=False)
            self.bytes -= oldest.size

    def _drop(self, fingerprint: str) -> None:
        found = self._entries.pop(fingerprint, None)
        if found is not None:
            self.bytes -= found[0].size
