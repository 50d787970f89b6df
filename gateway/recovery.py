"""What a gateway reads from the store at its start: the vectors of the index, and what must not be served again."""

from __future__ import annotations

import asyncio
import logging

from gateway.cache.feedback import Counterexamples
from gateway.errors import StoreUnavailable
from gateway.ports import Clock, CounterexampleStore, ResponseStore, StoredVector, VectorIndex

LOG = logging.getLogger("nearhit")
RETRY_S = 2.0


class Recovery:
    """`ready` once all is read; until then what is not yet known is a semantic miss."""

    def __init__(
        self,
        store: ResponseStore,
        counterexamples: CounterexampleStore,
        index: VectorIndex,
        known: Counterexamples,
        clock: Clock,
    ) -> None:
        self._store = store
        self._counterexamples = counterexamples
        self._index = index
        self._known = known
        self._clock = clock
        self.ready = False

    async def run(self) -> None:
        """Tries again until the store has answered to the end."""
        while not self.ready:
            try:
                # First what must not be served: no vector may be found before it is known what it is wrong for.
                self._known.add(await self._counterexamples.counterexamples())
                async for stored in self._store.vectors():
                    if stored.expires > self._clock.wall():
                        await self._add(stored)
                self.ready = True
            except StoreUnavailable:
                await asyncio.sleep(RETRY_S)

    async def _add(self, stored: StoredVector) -> None:
        try:
            await self._index.add(stored.fingerprint, stored.scope, stored.vector)
        except ValueError as error:  # damaged: one bad vector must not keep the index from all others
            LOG.warning("a vector was skipped", extra={"fields": {"error": str(error)}})
