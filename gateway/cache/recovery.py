"""Read the store at a start: bans, counterexamples, links, learned state and the vectors of the index."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from gateway.cache.feedback import Counterexamples
from gateway.cache.learned_state import StateKeeper
from gateway.cache.links import Links
from gateway.cache.purge import Purge
from gateway.errors import StoreUnavailable
from gateway.ports import Clock, RelationStore, ResponseStore, VectorIndex

if TYPE_CHECKING:  # imported with the first route that compares questions
    from gateway.cache.index_checkpoints import IndexCheckpoints

LOG = logging.getLogger("nearhit")
# Seconds between two attempts, doubled from the first to the last. On a busy machine only the first query may be late,
# and until the store is read no semantic hit is found.
FIRST_RETRY_S, RETRY_S = 0.1, 2.0
BATCH = 500  # vectors per read


class ChangeConsumer(Protocol):
    """The reader of the changes that other gateways make."""

    async def resume(self, position: str | None) -> bool:
        """Go on from a position. Return False if changes after it are lost. Raise `StoreUnavailable`."""

    async def start_from_end(self) -> None:
        """Begin with the next change. Raise `StoreUnavailable`."""


class Recovery:
    """The reading of the store at a start.

    `ready` is set when all is read; before that, missing vectors are semantic misses.
    """

    def __init__(
        self,
        store: ResponseStore,
        relations: RelationStore,
        index: VectorIndex | None,
        counterexamples: Counterexamples,
        links: Links,
        clock: Clock,
        checkpoints: IndexCheckpoints | None = None,
        learning: StateKeeper | None = None,
        removal: Purge | None = None,
        consumer: ChangeConsumer | None = None,
    ) -> None:
        """Set up the recovery.

        Without `index`, no route compares questions yet, and no vector is read.
        `consumer` follows the changes of other gateways: from the checkpoint's position if possible, else from before
        the store is compared with the index.
        """
        self._store = store
        self._relations = relations
        self._index = index
        self._counterexamples = counterexamples
        self._links = links
        self._clock = clock
        self._checkpoints = checkpoints
        self._learning = learning
        self._removal = removal
        self._consumer = consumer
        self.ready = False
        self.complete = asyncio.Event()  # set with `ready`, to wait for

    async def run(self) -> None:
        """Read everything; retry until the store has answered to the end.

        Log one warning if semantic hits were missed meanwhile: there was something to read, or it takes long.
        """
        pause, failure, is_logged = FIRST_RETRY_S, None, False
        while not self.ready:
            try:
                if self._removal is not None:  # before the bans are known, nothing from the store is served
                    await self._removal.load()
                # Counterexamples come first: no vector may be found before its wrong relations are known.
                self._counterexamples.add(await self._relations.counterexamples())
                self._links.add(await self._relations.links())
                if self._learning is not None:  # before the vectors, so that no hit is judged by an outdated threshold
                    await self._learning.restore()
                if self._checkpoints is not None:
                    await self._checkpoints.load()
                await self._fill()
                self.ready = True
                self.complete.set()
                if self._checkpoints is not None:
                    self._checkpoints.complete = True
                if (
                    failure is not None
                    and not is_logged
                    and self._index is not None
                    and await self._index.fingerprints()
                ):
                    _warn("the index could not be read from the store at once", failure)
            except StoreUnavailable as error:
                failure = error
                if pause >= RETRY_S and not is_logged:
                    _warn("the index could not be read from the store yet", error)
                    is_logged = True
                if not self.ready:
                    await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_S)

    async def _fill(self) -> None:
        if self._consumer is not None:
            retained = None if self._checkpoints is None else self._checkpoints.loaded_position
            if await self._consumer.resume(retained):
                LOG.info("the index continues from its checkpoint", extra={"fields": {"position": retained}})
                return
            await self._consumer.start_from_end()
        await self.reconcile()

    async def reconcile(self) -> None:
        """Compare the index with the store, if it is this gateway's own. Raise `StoreUnavailable`."""
        if self._index is not None and not self._index.shared:
            await reconcile(self._store, self._index, self._clock)


async def retry_until_available(step: Callable[[], Awaitable[None]]) -> None:
    """Repeat a step until the store answers."""
    while True:
        try:
            return await step()
        except StoreUnavailable:
            await asyncio.sleep(RETRY_S)


def _warn(text: str, failure: StoreUnavailable) -> None:
    LOG.warning(text, extra={"fields": {"error": str(failure)}})


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """Numbers of vectors that index and store shared, that the index lacked, and that it had too many."""

    retained: int
    added: int
    removed: int


async def reconcile(
    store: ResponseStore, index: VectorIndex, clock: Clock, on_progress: Callable[[int], None] = lambda _: None
) -> ReconcileResult:
    """Make the index hold exactly the entries of the store. Raise `StoreUnavailable`.

    Only missing vectors are read: few with a checkpoint, all without one. Meanwhile entries that left the store are not
    served either, as a lookup reads the record from the store. `on_progress` gets the number of further entries done.
    """
    listed = dict.fromkeys(await index.fingerprints(), False)
    lacking: list[str] = []
    added = 0
    async for fingerprint, expires in store.fingerprints():
        if expires <= clock.wall():
            continue
        if fingerprint in listed:
            listed[fingerprint] = True
            on_progress(1)
            continue
        lacking.append(fingerprint)
        if len(lacking) == BATCH:
            added += len(await update(store, index, clock, lacking))
            on_progress(len(lacking))
            lacking = []
    added += len(await update(store, index, clock, lacking))
    on_progress(len(lacking))
    unlisted = [fingerprint for fingerprint, there in listed.items() if not there]
    removed = await _remove(store, index, unlisted)
    return ReconcileResult(len(listed) - removed, added, removed)


async def update(store: ResponseStore, index: VectorIndex, clock: Clock, fingerprints: Sequence[str]) -> set[str]:
    """Add those entries that the store has, and return them. Raise `StoreUnavailable`."""
    items = [item for item in await store.vectors_of(fingerprints) if item.expires > clock.wall()]
    await index.add_all(items)
    return {item.fingerprint for item in items}


async def _remove(store: ResponseStore, index: VectorIndex, fingerprints: Sequence[str]) -> int:
    """Remove entries that the store did not list. It is read again first: a request may have stored them meanwhile."""
    removed = 0
    for i in range(0, len(fingerprints), BATCH):
        batch = fingerprints[i : i + BATCH]
        stored = {item.fingerprint for item in await store.vectors_of(batch)}
        removed += await index.remove([fingerprint for fingerprint in batch if fingerprint not in stored])
    return removed
