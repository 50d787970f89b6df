"""What a gateway reads from the store at its start: the vectors of the index, what must not be served again, and
what routes have learnt."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from gateway.cache.feedback import Counterexamples
from gateway.cache.index_checkpoints import IndexCheckpoints
from gateway.cache.learned_state import StateKeeper
from gateway.cache.purge import Purge
from gateway.cache.stream_consumer import StreamConsumer
from gateway.errors import StoreUnavailable
from gateway.ports import Clock, CounterexampleStore, ResponseStore, VectorIndex

LOG = logging.getLogger("nearhit")
# Between two attempts: doubled from the first to the last. A store that is asked for the first time on a busy machine
# is late once, and until it is read nothing is found by similarity.
FIRST_RETRY_S, RETRY_S = 0.1, 2.0
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
        checkpoints: IndexCheckpoints | None = None,
        learning: StateKeeper | None = None,
        removal: Purge | None = None,
        consumer: StreamConsumer | None = None,
    ) -> None:
        """`consumer` follows what others on the store change: from the checkpoint's position on where that is possible,
        or from before the store is compared with the index."""
        self._store = store
        self._counterexamples = counterexamples
        self._index = index
        self._known = known
        self._clock = clock
        self._checkpoints = checkpoints
        self._learning = learning
        self._removal = removal
        self._consumer = consumer
        self.ready = False
        self.complete = asyncio.Event()  # set with `ready`, for who waits

    async def run(self) -> None:
        """Tries again until the store has answered to the end."""
        pause = FIRST_RETRY_S
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
                await self._fill()
                self.ready = True
                self.complete.set()
                if self._checkpoints is not None:
                    self._checkpoints.complete = True
            except StoreUnavailable as error:
                if pause == FIRST_RETRY_S:  # once: it is asked for as long as it is away
                    LOG.warning("the index is not read yet", extra={"fields": {"error": str(error)}})
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_S)

    async def _fill(self) -> None:
        if self._consumer is not None:
            retained = None if self._checkpoints is None else self._checkpoints.loaded_position
            if await self._consumer.resume(retained):
                LOG.info("the index goes on where its checkpoint ends", extra={"fields": {"position": retained}})
                return
            await self._consumer.start_from_end()
        if not self._index.shared:
            await self.reconcile()

    async def reconcile(self) -> None:
        """Raises `StoreUnavailable`."""
        await reconcile(self._store, self._index, self._clock)


@dataclass(frozen=True, slots=True)
class ReconcileResult:
    """Vectors that the index had and the store, too; that it lacked; that it had too much."""

    retained: int
    added: int
    removed: int


async def reconcile(
    store: ResponseStore, index: VectorIndex, clock: Clock, on_progress: Callable[[int], None] = lambda _: None
) -> ReconcileResult:
    """Makes the index hold what the store holds. Only the vectors that the index lacks are read: with a checkpoint
    few, without one all. Until it is done, what the store no longer has is not served either: a lookup reads the
    record from the store. `on_progress`: how many more entries of the store are done. Raises `StoreUnavailable`."""
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
    """Adds those of them that the store has -> which. Raises `StoreUnavailable`."""
    found = [item for item in await store.vectors_of(fingerprints) if item.expires > clock.wall()]
    await index.add_all(found)
    return {item.fingerprint for item in found}


async def _remove(store: ResponseStore, index: VectorIndex, fingerprints: Sequence[str]) -> int:
    """What the store did not list; asked for once more, as a request may have stored it anew meanwhile."""
    removed = 0
    for i in range(0, len(fingerprints), BATCH):
        batch = fingerprints[i : i + BATCH]
        stored = {item.fingerprint for item in await store.vectors_of(batch)}
        removed += await index.remove([fingerprint for fingerprint in batch if fingerprint not in stored])
    return removed
