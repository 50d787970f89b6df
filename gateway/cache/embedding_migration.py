"""Migrate the semantic cache to another embedding model: embed stored questions again, without emptying the cache.

The migration runs in the background, one question at a time. Each new vector goes to the store, so a restart continues
from there, and to the index of the new model. While lookups still use the former model, its vectors stay in the store
too, and newly stored entries are queued for the migration.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack

from gateway.cache.answer_comparer import REST_FACTOR
from gateway.cache.embedding_spaces import MAX_PENDING_EMBEDDINGS, Spaces
from gateway.cache.recovery import Recovery, retry_until_available
from gateway.entries import Entry, Vector
from gateway.errors import EmbedderUnavailable, StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, MigrationStore

LOG = logging.getLogger("nearhit.migration")

RETRY_S = 2.0

MAX_UNANSWERED = 5  # failed texts in a row; then the embedder is at fault, not the texts

MAX_ATTEMPTS = 3  # for one text that the embedder does not answer, and for passes with such texts


class EmbeddingMigration:
    """The migration of stored questions to the target model.

    It runs after the index holds the store's entries and the bans are loaded.
    """

    def __init__(
        self,
        store: MigrationStore,
        spaces: Spaces,
        telemetry: Telemetry,
        clock: Clock,
    ) -> None:
        self._store = store
        self._spaces = spaces
        self._space = spaces.target
        self._pending = spaces.pending
        self._telemetry = telemetry
        self._clock = clock
        self.done = 0  # found by similarity again
        # Unreadable, or too long for this model. They stay exact hits and are tried again at the next start.
        self.skipped = 0
        self.remaining = 0
        self.complete = False
        self._unanswered = 0  # failed texts in a row
        self._failed = 0  # entries of this pass that failed for reasons that may pass
        self._publish_progress()

    async def run(self) -> None:
        """Embed every foreign entry. Return once each had its turn; retry until the store answers to the end."""
        started, passes, self.complete = self._clock.monotonic(), 0, False
        while not self.complete:
            self._pending.overflowed, self._failed = False, 0
            try:
                await self._pass()
                passes += 1
                self.complete = not self._pending.overflowed and (self._failed == 0 or passes >= MAX_ATTEMPTS)
            except (StoreUnavailable, EmbedderUnavailable) as error:
                if isinstance(error, StoreUnavailable):
                    self._telemetry.store_errors.add()
                await asyncio.sleep(RETRY_S)
        if self.done or self.skipped:
            elapsed_s = round(self._clock.monotonic() - started, 3)
            LOG.info(
                "stored questions have been embedded again",
                extra=_fields(done=self.done, skipped=self.skipped, seconds=elapsed_s),
            )

    async def catch_up(self) -> None:
        """Embed the pending entries, at most as many as may wait. Later ones are handled by `follow`."""
        for _ in range(MAX_PENDING_EMBEDDINGS):
            if not self._pending:
                return
            await self._embed_pending()

    async def follow(self) -> None:
        """Embed forever the entries stored by requests that began with the former model."""
        while True:
            await self._pending.wait_available()
            await self._embed_pending()

    async def settle(self) -> None:
        """Tell the store to keep the vectors of the current model only. Raise `StoreUnavailable`."""
        await self._store.settle()

    async def _embed_pending(self) -> None:
        fingerprint = self._pending.take()
        try:
            await self._process(fingerprint, rest=0.0)
        except (StoreUnavailable, EmbedderUnavailable):
            self._pending.add(fingerprint)
            await asyncio.sleep(RETRY_S)

    async def _pass(self) -> None:
        """Run one pass over the foreign entries. They are counted first, for the progress figures.

        A pass does not see entries that an earlier one migrated, but does see those it skipped. Raise
        `StoreUnavailable`, or `EmbedderUnavailable` where the embedder fails in general.
        """
        self.remaining = self.skipped = 0
        async for page in self._store.foreign():
            self.remaining += len(page)
        self._publish_progress()
        if not self.remaining:
            return
        LOG.info(
            "embedding stored questions again: their vectors come from another model",
            extra=_fields(entries=self.remaining, embedder=self._space.embedder.fingerprint),
        )
        async for page in self._store.foreign():
            for fingerprint in page:
                await self._process(fingerprint)
        self.remaining = 0  # other entries came or went meanwhile
        self._publish_progress()

    async def _process(self, fingerprint: str, rest: float = REST_FACTOR) -> None:
        """Migrate one entry, then rest as long as answer comparisons do."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            await self._migrate(fingerprint)
            self._unanswered = 0
        except StoreUnavailable:
            raise
        # one entry must not stop all others; log the type only, as a message may quote a prompt
        except Exception as error:
            LOG.warning(
                "the migration skipped an entry", extra=_fields(fingerprint=fingerprint, error=type(error).__name__)
            )
            self.skipped += 1
            self._failed += 1
            self._unanswered += isinstance(error, EmbedderUnavailable)
            if self._unanswered == MAX_UNANSWERED:
                self._unanswered = 0
                raise EmbedderUnavailable("the embedder failed on several texts in a row") from None
        self.remaining = max(0, self.remaining - 1)
        self._publish_progress()
        await asyncio.sleep(rest * (loop.time() - started))

    async def _migrate(self, fingerprint: str) -> None:
        foreign_entry = await self._store.read(fingerprint)
        if foreign_entry is None:  # deleted since it was listed
            return
        vector = await self._embed(foreign_entry.entry)
        if foreign_entry.entry is None or vector is None:
            self.skipped += 1
        elif self._space.store.banned(foreign_entry.entry, vector):
            await self._remove(fingerprint)
        elif await self._store.replace(fingerprint, foreign_entry.version, vector, self._retained_embedder()):
            await self._space.index.add(fingerprint, foreign_entry.entry.scope, vector, foreign_entry.entry.expires)
            self.done += await self._verify_added(foreign_entry.entry, vector)

    def _retained_embedder(self) -> str:
        """Return the embedder that lookups still use, as a restart needs its vectors; "" if none."""
        return "" if self._spaces.upcoming is None else self._spaces.serving.embedder.fingerprint

    async def _verify_added(self, entry: Entry, vector: Vector) -> bool:
        """Return False if the entry was removed while it was migrated.

        A concurrent removal may have searched the index before the vector was added, or the store before it had the
        vector.
        """
        if self._space.store.banned(entry, vector):
            await self._remove(entry.fingerprint)
            return False
        if not await self._space.store.vectors_of([entry.fingerprint]):
            await self._space.index.remove([entry.fingerprint])
            return False
        return True

    async def _remove(self, fingerprint: str) -> None:
        await self._space.store.delete([fingerprint])
        await self._spaces.forget([fingerprint])

    async def _embed(self, entry: Entry | None) -> Vector | None:
        """Embed a question. Return None where the vector would not cover all of it. Raise `EmbedderUnavailable`."""
        if entry is None or entry.question is None:
            return None
        for attempts_left in reversed(range(MAX_ATTEMPTS)):
            try:
                embedding = await self._space.embedder.embed(entry.question)
                return None if embedding.partial else embedding.vector
            except EmbedderUnavailable:
                if attempts_left == 0:
                    raise
                await asyncio.sleep(RETRY_S)
        return None

    def _publish_progress(self) -> None:
        gauge = self._telemetry.migration_entries
        for state, count in (("done", self.done), ("left", self.remaining), ("skipped", self.skipped)):
            gauge.set(state, value=count)


def _fields(**fields: object) -> dict[str, object]:
    return {"fields": fields}


# A new embedding model follows: lookups keep the old one until every stored question has a vector of the new one.
#
# Then one reference is swapped. Running requests keep their model. Entries that they store after the swap are embedded
# again on arrival, so nothing is lost.

# Seconds for requests that began with the old model and have not looked up yet. Embedder and index answer within a
# second or not at all. A request that waited longer finds the old index closed, which is a miss.
GRACE_S = 5.0


class EmbedderCutover:
    """`EmbedderCutover` switches lookups to the upcoming model.

    `recovery` fills the index of the upcoming space. `on_swap` is called when lookups switch; it builds the stages that
    use the space. `former` closes the former space.
    """

    def __init__(
        self,
        spaces: Spaces,
        migration: EmbeddingMigration,
        recovery: Recovery,
        on_swap: Callable[[], None],
        former: AsyncExitStack,
        drop_former_file: Callable[[], None],
    ) -> None:
        self._spaces = spaces
        self._migration = migration
        self.recovery = recovery
        self._on_swap = on_swap
        self._former = former
        self._drop_former_file = drop_former_file
        self.done = False  # true once nothing of another model is left to carry over

    async def run(self) -> None:
        """Run forever. Start after the serving index holds the store's entries and the bans are loaded."""
        if self._spaces.upcoming is None:
            await self._migration.run()
            await retry_until_available(self._migration.settle)
            self.done = True
            return
        await self._fill()
        self._swap()
        await retry_until_available(self._spaces.serving.learning.restore)
        await retry_until_available(self._migration.settle)
        await asyncio.sleep(GRACE_S)
        await self._former.aclose()
        self._drop_former_file()
        self.done = True
        await self._migration.follow()

    async def _fill(self) -> None:
        """Fill the upcoming space.

        A separate method, as `run` never ends and must not keep the former space in memory.
        """
        await self.recovery.run()  # entries that an earlier process migrated
        complete = False
        while not complete:
            await self._migration.run()
            await retry_until_available(self.recovery.reconcile)  # entries that other gateways migrated
            await self._spaces.serving.learning.save()
            await self._migration.catch_up()
            complete = not self._spaces.pending.overflowed

    def _swap(self) -> None:
        """Switch lookups in one step without an await: every request comes either before or after it."""
        former = self._spaces.serving
        former.learning.retire()
        if former.checkpoints is not None:
            former.checkpoints.complete = False  # the file is about to be deleted: write no more
        serving = self._spaces.swap()
        self._on_swap()
        LOG.info(
            "lookups now use the new embedding model",
            extra={"fields": {"former": former.embedder.fingerprint, "embedder": serving.embedder.fingerprint}},
        )
