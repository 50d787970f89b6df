"""Another embedding model does not empty the semantic cache: what was stored under an older one is embedded anew.

From the stored questions, in the background, one at a time. What has been done is written back to the store, so that a
restart goes on where this process ended, and joins the index at once: the index holds vectors of the model in use
alone, and an entry that has none yet is an exact hit or a miss.
"""

from __future__ import annotations

import asyncio
import logging

from gateway.errors import EmbedderUnavailable, StoreUnavailable
from gateway.messages import Entry, Vector
from gateway.ports import Clock, Embedder, MigrationStore, NearStore, VectorIndex
from gateway.telemetry import Telemetry

LOG = logging.getLogger("nearhit.migration")
# Time left to requests after each entry, as a multiple of what it took; measured for comparisons, whose texts are
# embedded one by one like these (gateway/comparisons.py).
REST = 3.0
RETRY_S = 2.0
TRIES = 3  # of a text that the embedder does not answer: one that it fails on must not hold up all others


class Migration:
    """To be run once the index holds what the store has for it, and removals are known."""

    def __init__(
        self,
        store: MigrationStore,
        front: NearStore,
        index: VectorIndex,
        embedder: Embedder,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._store = store
        self._front = front
        self._index = index
        self._embedder = embedder
        self._telemetry = telemetry
        self._clock = clock
        self.done = 0  # found by similarity again
        self.skipped = 0  # unreadable, or not read to its end by this model: exact hits, tried again at the next start
        self.left = 0
        self.complete = False
        self._tell()

    async def run(self) -> None:
        """Returns once every entry has had its turn; what fails is tried again until the store answers to the end."""
        begun = self._clock.monotonic()
        while not self.complete:
            try:
                await self._pass()
                self.complete = True
            except StoreUnavailable:
                self._telemetry.store_errors.add()
                await asyncio.sleep(RETRY_S)
        if self.done or self.skipped:
            took = round(self._clock.monotonic() - begun, 3)
            LOG.info(
                "stored questions have been embedded anew",
                extra=_fields(done=self.done, skipped=self.skipped, seconds=took),
            )

    async def _pass(self) -> None:
        """Counted first, so that there is a progress to show. What an earlier pass has done is not met again, what it
        skipped is. Raises `StoreUnavailable`."""
        self.left = self.skipped = 0
        async for page in self._store.foreign():
            self.left += len(page)
        self._tell()
        if not self.left:
            return
        LOG.info(
            "stored questions are embedded anew: their vectors are another model's",
            extra=_fields(entries=self.left, embedder=self._embedder.fingerprint),
        )
        async for page in self._store.foreign():
            for fingerprint in page:
                await self._turn(fingerprint)
        self.left = 0  # what came or went meanwhile
        self._tell()

    async def _turn(self, fingerprint: str) -> None:
        loop = asyncio.get_running_loop()
        begun = loop.time()
        try:
            await self._migrate(fingerprint)
        except StoreUnavailable:
            raise
        except Exception as error:  # one entry must not keep all others; the type alone: a message may quote a prompt
            LOG.warning("an entry was skipped", extra=_fields(fingerprint=fingerprint, error=type(error).__name__))
            self.skipped += 1
        self.left = max(0, self.left - 1)
        self._tell()
        await asyncio.sleep(REST * (loop.time() - begun))

    async def _migrate(self, fingerprint: str) -> None:
        found = await self._store.read(fingerprint)
        if found is None:  # gone since it was listed
            return
        vector = await self._embedded(found.entry)
        if found.entry is None or vector is None:
            self.skipped += 1
        elif self._front.banned(found.entry, vector):
            await self._remove(fingerprint)
        elif await self._store.replace(fingerprint, found.version, vector):
            await self._index.add(fingerprint, found.entry.scope, vector)
            self.done += await self._settled(found.entry, vector)

    async def _settled(self, entry: Entry, vector: Vector) -> bool:
        """Who removed it just now may have looked into the index before it was there, or into the store before it had
        a vector to be found by. False: it was removed."""
        if self._front.banned(entry, vector):
            await self._remove(entry.fingerprint)
            return False
        if not await self._front.vectors_of([entry.fingerprint]):
            await self._index.remove([entry.fingerprint])
            return False
        return True

    async def _remove(self, fingerprint: str) -> None:
        await self._front.delete([fingerprint])
        await self._index.remove([fingerprint])

    async def _embedded(self, entry: Entry | None) -> Vector | None:
        """None where the vector would not stand for the whole question. Raises `EmbedderUnavailable`."""
        if entry is None or entry.question is None:
            return None
        for tries_left in reversed(range(TRIES)):
            try:
                embedding = await self._embedder.embed(entry.question)
                return None if embedding.partial else embedding.vector
            except EmbedderUnavailable:
                if tries_left == 0:
                    raise
                await asyncio.sleep(RETRY_S)
        return None

    def _tell(self) -> None:
        gauge = self._telemetry.migration_entries
        for state, count in (("done", self.done), ("left", self.left), ("skipped", self.skipped)):
            gauge.set(state, value=count)


def _fields(**fields: object) -> dict[str, object]:
    return {"fields": fields}
