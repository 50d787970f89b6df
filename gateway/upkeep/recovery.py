"""What a gateway reads from the store at its start: the vectors of the index, what must not be served again, and
what routes have learnt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

from gateway.cache.feedback import Counterexamples
from gateway.errors import StoreUnavailable
from gateway.ports import Clock, CounterexampleStore, ResponseStore, StoredVector, VectorIndex
from gateway.quality.learning import Learning
from gateway.upkeep.checkpoints import Checkpoints
from gateway.upkeep.removal import Removal

LOG = logging.getLogger("nearhit")
RETRY_S = 2.0
BATCH = 500  # vectors read at a time


class Recovery:
    """`ready` once all is read; until then what is not yet known is a semantic miss."""

    def __init__(
        self,
        store: ResponseStore,
        counterexamples: CounterexampleStore,
        index: VectorIndex,
        known: Counterexamples,
        clock: Clock,
        checkpoints: Checkpoints | None = None,
        learning: Learning | None = None,
        removal: Removal | None = None,
    ) -> None:
        self._store = store
        self._counterexamples = counterexamples
        self._index = index
        self._known = known
        self._clock = clock
        self._checkpoints = checkpoints
        self._learning = learning
        self._removal = removal
        self.ready = False

    async def run(self) -> None:
        """Tries again until the store has answered to the end."""
        while not self.ready:
            try:
                if self._removal is not None:  # before it is known, nothing of the store is served
                    await self._removal.load()
                # First what must not be served: no vector may be found before it is known what it is wrong for.
                self._known.add(await self._counterexamples.counterexamples())
                if self._learning is not None:  # likewise: no hit may be judged by an older threshold
                    await self._learning.restore()
                if self._checkpoints is not None:
                    await self._checkpoints.load()
                await self.reconcile()
                self.ready = True
                if self._checkpoints is not None:
                    self._checkpoints.complete = True
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)

    async def reconcile(self) -> None:
        """Makes the index hold what the store holds. Only the vectors that the index lacks are read: with a checkpoint
        few, without one all. Until it is done, what the store no longer has is not served either: a lookup reads the
        record from the store. Raises `StoreUnavailable`."""
        listed = dict.fromkeys(await self._index.fingerprints(), False)
        lacking: list[str] = []
        async for fingerprint, expires in self._store.fingerprints():
            if expires <= self._clock.wall():
                continue
            if fingerprint in listed:
                listed[fingerprint] = True
                continue
            lacking.append(fingerprint)
            if len(lacking) == BATCH:
                await self._add(lacking)
                lacking = []
        await self._add(lacking)
        await self._remove([fingerprint for fingerprint, there in listed.items() if not there])

    async def _add(self, fingerprints: Sequence[str]) -> None:
        for stored in await self._store.vectors_of(fingerprints):
            if stored.expires > self._clock.wall():
                await self._add_one(stored)

    async def _add_one(self, stored: StoredVector) -> None:
        try:
            await self._index.add(stored.fingerprint, stored.scope, stored.vector)
        except ValueError as error:  # damaged: one bad vector must not keep the index from all others
            LOG.warning("a vector was skipped", extra={"fields": {"error": str(error)}})

    async def _remove(self, fingerprints: Sequence[str]) -> None:
        """What the store did not list; asked for once more, as a request may have stored it anew meanwhile."""
        for i in range(0, len(fingerprints), BATCH):
            some = fingerprints[i : i + BATCH]
            stored = {each.fingerprint for each in await self._store.vectors_of(some)}
            await self._index.remove([fingerprint for fingerprint in some if fingerprint not in stored])
