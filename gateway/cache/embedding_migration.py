"""Another embedding model does not empty the semantic cache: what was stored under an older one is embedded anew.

From the stored questions, in the background, one at a time. What has been done is written back to the store, so that a
restart goes on where this process ended, and joins the index of the model in use. Where lookups still go by the model
before (gateway/cache/embedding_migration.py), its vectors stay beside the new ones, and what comes in meanwhile is
told.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from gateway.cache.answer_comparison import REST_FACTOR
from gateway.cache.embedding_spaces import MAX_PENDING_EMBEDDINGS, Spaces
from gateway.cache.recovery import Recovery
from gateway.errors import EmbedderUnavailable, StoreUnavailable
from gateway.messages import Entry, Vector
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, MigrationStore

LOG = logging.getLogger("nearhit.migration")

RETRY_S = 2.0

MAX_UNANSWERED = 5  # texts in a row that are not embedded: it is not them

MAX_ATTEMPTS = 3  # of a text that the embedder does not answer, and of a pass in which there were some


class EmbeddingMigration:
    """To be run once the index holds what the store has for it, and removals are known."""

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
        self.skipped = 0  # unreadable, or not read to its end by this model: exact hits, tried again at the next start
        self.remaining = 0
        self.complete = False
        self._unanswered = 0  # texts in a row
        self._failed = 0  # entries of this pass, for reasons that may be over in the next one
        self._publish_progress()

    async def run(self) -> None:
        """Returns once every entry has had its turn; what fails is tried again until the store answers to the end."""
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
                "stored questions have been embedded anew",
                extra=_fields(done=self.done, skipped=self.skipped, seconds=elapsed_s),
            )

    async def catch_up(self) -> None:
        """Embeds what has come in meanwhile, at most as much as may wait: what is left then is on its way."""
        for _ in range(MAX_PENDING_EMBEDDINGS):
            if not self._pending:
                return
            await self._embed_pending()

    async def follow(self) -> None:
        """For ever: embeds what requests store that met the model before."""
        while True:
            await self._pending.wait_available()
            await self._embed_pending()

    async def settle(self) -> None:
        """Lookups go by the model in use alone: the store need not keep more. Raises `StoreUnavailable`."""
        await self._store.settle()

    async def _embed_pending(self) -> None:
        fingerprint = self._pending.take()
        try:
            await self._process(fingerprint, rest=0.0)
        except (StoreUnavailable, EmbedderUnavailable):
            self._pending.add(fingerprint)
            await asyncio.sleep(RETRY_S)

    async def _pass(self) -> None:
        """Counted first, so that there is a progress to show. What an earlier pass has done is not met again, what it
        skipped is. Raises `StoreUnavailable`; `EmbedderUnavailable` where that is no matter of single texts."""
        self.remaining = self.skipped = 0
        async for page in self._store.foreign():
            self.remaining += len(page)
        self._publish_progress()
        if not self.remaining:
            return
        LOG.info(
            "stored questions are embedded anew: their vectors are another model's",
            extra=_fields(entries=self.remaining, embedder=self._space.embedder.fingerprint),
        )
        async for page in self._store.foreign():
            for fingerprint in page:
                await self._process(fingerprint)
        self.remaining = 0  # what came or went meanwhile
        self._publish_progress()

    async def _process(self, fingerprint: str, rest: float = REST_FACTOR) -> None:
        """Rests as comparisons do, whose texts are embedded one by one like these."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        try:
            await self._migrate(fingerprint)
            self._unanswered = 0
        except StoreUnavailable:
            raise
        except Exception as error:  # one entry must not keep all others; the type alone: a message may quote a prompt
            LOG.warning("an entry was skipped", extra=_fields(fingerprint=fingerprint, error=type(error).__name__))
            self.skipped += 1
            self._failed += 1
            self._unanswered += isinstance(error, EmbedderUnavailable)
            if self._unanswered == MAX_UNANSWERED:
                self._unanswered = 0
                raise EmbedderUnavailable("it has not embedded a number of texts in a row") from None
        self.remaining = max(0, self.remaining - 1)
        self._publish_progress()
        await asyncio.sleep(rest * (loop.time() - started))

    async def _migrate(self, fingerprint: str) -> None:
        foreign_entry = await self._store.read(fingerprint)
        if foreign_entry is None:  # gone since it was listed
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
        """The embedder that lookups still go by: a restart needs its vectors."""
        return "" if self._spaces.upcoming is None else self._spaces.serving.embedder.fingerprint

    async def _verify_added(self, entry: Entry, vector: Vector) -> bool:
        """Who removed it just now may have looked into the index before it was there, or into the store before it had
        a vector to be found by. False: it was removed."""
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
        """None where the vector would not stand for the whole question. Raises `EmbedderUnavailable`."""
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


# One embedding model follows another: lookups stay with the old one until the new one knows every stored question.
#
# Then one reference is swapped. Requests that are under way keep to the model that they met; what they store after the
# swap is embedded anew as it comes, so that nothing is lost.

# For requests that met the old model and have not looked up yet: embedder and index answer within a second or not at
# all. Who comes later, from a wait for another question, finds it closed, which is a miss.
GRACE_S = 5.0


class EmbedderCutover:
    """`recovery` fills the index of the space that is coming; `on_swap` is called once lookups are to go by it, and
    builds what requests pass on it; `former` ends the space before."""

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
        self.done = False  # nothing of another model is left that was to be carried over

    async def run(self) -> None:
        """To be run once the serving index holds what the store has for it, and removals are known. For ever."""
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
        """A method of its own: what runs for ever must not keep the former space in memory."""
        await self.recovery.run()  # what a process before this one has done
        complete = False
        while not complete:
            await self._migration.run()
            await retry_until_available(self.recovery.reconcile)  # what other gateways have done
            await self._spaces.serving.learning.save()
            await self._migration.catch_up()
            complete = not self._spaces.pending.overflowed

    def _swap(self) -> None:
        """Without a pause in it: every request is either before it or after."""
        former = self._spaces.serving
        former.learning.retire()
        if former.checkpoints is not None:
            former.checkpoints.complete = False  # its file goes: nothing more is to be written there
        serving = self._spaces.swap()
        self._on_swap()
        LOG.info(
            "lookups go by the new embedding model from now on",
            extra={"fields": {"former": former.embedder.fingerprint, "embedder": serving.embedder.fingerprint}},
        )


async def retry_until_available(step: Callable[[], Awaitable[None]]) -> None:
    """What needs the store is tried again until it is there."""
    while True:
        try:
            return await step()
        except StoreUnavailable:
            await asyncio.sleep(RETRY_S)
