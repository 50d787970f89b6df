"""The hottest exact entries in process memory, in front of the store. Bounded in bytes.

All reads of entries come by here, so that here is where removals are heeded: what a ban covers is neither returned nor
kept, wherever it lies.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from gateway.cache.records import RecordInvalid, decode
from gateway.cache.removal import LATER, Bans
from gateway.errors import StoreUnavailable
from gateway.messages import Entry, Placed, Vector
from gateway.ports import Clock, ResponseStore, StoredVector, StoreStats

SWEEP_STEP = 500  # entries looked at before others get their turn: a millisecond
Record = bytes  # which within `FrontStore` is a number


class Kept:
    """What lies in process: entries with since when, and under which bans they were looked at last."""

    def __init__(self, max_bytes: int) -> None:
        self.entries: OrderedDict[str, tuple[Entry, float, int]] = OrderedDict()
        self.bytes = 0
        self._max_bytes = max_bytes
        # One entry may take a tenth: a single huge answer must not push out everything that is hot.
        self.largest = max_bytes // 10

    def keep(self, entry: Entry, since: float, bans: int) -> None:
        fingerprint, size = entry.fingerprint, entry.size
        if fingerprint in self.entries:
            self.drop(fingerprint)
        if size > self.largest:
            return
        self.entries[fingerprint] = (entry, since, bans)
        self.bytes += size
        while self.bytes > self._max_bytes:
            _, (oldest, *_) = self.entries.popitem(last=False)
            self.bytes -= oldest.size

    def drop(self, fingerprint: str) -> None:
        found = self.entries.pop(fingerprint, None)
        if found is not None:
            self.bytes -= found[0].size


class FrontStore:
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
        kept: Kept | None = None,
    ) -> None:
        self.bans = bans if bans is not None else Bans(loaded=True)
        self._store = store
        self._embedder = embedder
        self._max_bytes = max_bytes
        self._max_age_s = max_age_s
        self._clock = clock
        self._kept = kept or Kept(max_bytes)

    def seen_by(self, embedder: str, store: ResponseStore) -> FrontStore:
        """The same front and bans before `store`, for vectors of another embedder."""
        return FrontStore(
            store,
            max_bytes=self._max_bytes,
            max_age_s=self._max_age_s,
            clock=self._clock,
            bans=self.bans,
            embedder=embedder,
            kept=self._kept,
        )

    def __len__(self) -> int:
        return len(self._kept.entries)

    @property
    def bytes(self) -> int:
        return self._kept.bytes

    def peek(self, fingerprint: str) -> Entry | None:
        """What is here, without asking the store."""
        found = self._kept.entries.get(fingerprint)
        if found is None:
            return None
        entry, since, bans = found
        if self._max_age_s is not None and self._clock.monotonic() - since > self._max_age_s:
            self._kept.drop(fingerprint)
            return None
        if bans != self.bans.version:  # looked at once a change: a hit pays for a comparison of numbers
            if self.bans.cover(entry):
                self._kept.drop(fingerprint)
                return None
            self._kept.entries[fingerprint] = (entry, since, self.bans.version)
        self._kept.entries.move_to_end(fingerprint)
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

    def keeps(self, size: int) -> bool:
        return size <= self._kept.largest

    def seek(self, fingerprint: str) -> asyncio.Future[Any]:
        if not self.bans.loaded:
            raise StoreUnavailable("the removals are not known yet")
        return self._store.seek(fingerprint)

    def sought(self, found: asyncio.Future[Any]) -> Record | None:
        """Whether a ban covers it is for the caller to ask."""
        return self._store.sought(found)

    def entry_in(self, record: Record, fingerprint: str) -> Entry | None:
        try:
            entry = decode(record)
        except RecordInvalid:
            return None
        if entry.fingerprint != fingerprint or self.bans.cover(entry):
            return None
        self._keep(entry)
        return entry

    def banned(self, entry: Entry, vector: Vector | None = None, asked: float = LATER) -> bool:
        """Whether it has been removed since it was read, or while it was fetched."""
        if not self.bans.in_force:
            return False
        return self.bans.cover(entry, None if vector is None else Placed(vector, self._embedder), asked)

    async def put(self, entry: Entry, vector: Vector | None, lease: int = 0) -> bool:
        if self.banned(entry, vector):
            return False
        # First here: while the store is down, what was just answered can still be answered again.
        self._keep(entry)
        stored = await self._store.put(entry, vector, lease)
        if not stored:
            self._kept.drop(entry.fingerprint)
        return stored

    def begin_put(self, entry: Entry, vector: Vector | None) -> asyncio.Future[Any]:
        """Whether a ban covers it is for the caller to ask."""
        self._keep(entry)  # as `put` does
        return self._store.begin_put(entry, vector)

    def was_put(self, entry: Entry, vector: Vector | None, begun: asyncio.Future[Any]) -> bool:
        return self._store.was_put(entry, vector, begun)

    async def delete(self, fingerprints: Sequence[str]) -> int:
        for fingerprint in fingerprints:
            self._kept.drop(fingerprint)
        return await self._store.delete(fingerprints)

    def forget(self, fingerprint: str) -> None:
        """The store has another one now."""
        self._kept.drop(fingerprint)

    async def sweep(self, known: Callable[[str], bool] | None = None) -> int:
        """Lets go of what a ban covers -> how many that were. They are not served anyway, but for those from before the
        clock was set back. `known`: where a removal means what is close to a question, whether it has been held against
        the question of an entry; what has not goes, too."""
        swept, now = 0, self._clock.wall()
        for i, name in enumerate(list(self._kept.entries)):
            found = self._kept.entries.get(name)
            if found is not None and (_unheld(found[0], known) or self.bans.sweep(found[0], now)):
                self._kept.drop(name)
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
        self._kept.keep(entry, self._clock.monotonic(), self.bans.version)


def _unheld(entry: Entry, known: Callable[[str], bool] | None) -> bool:
    return known is not None and entry.question is not None and not known(entry.fingerprint)
