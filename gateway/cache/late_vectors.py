"""Embeds questions after their requests: those that the screen let go, and those whose answer was stored without a
vector. The entry then gets its vector, so that other words find it.

No client waits for this work. It takes several texts in one pass, while no text of a waiting client does. A full queue
drops its oldest ones, and a loaded encoder gets none. Stored entries among those get their vector from the backlog
(`gateway.cache.vector_backlog`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from gateway.bounded_cache import BoundedCache
from gateway.cache.index_additions import add_to_index
from gateway.cache.load_level import EncoderLoad, OptionalWork
from gateway.entries import Embedding, Entry, Vector
from gateway.errors import EmbedderUnavailable, StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import LearningEmbedder, NearbyStore, VectorIndex

LOG = logging.getLogger("nearhit.semantic")
MAX_WAITING = 1_000  # questions; of at most 1,000 characters each
MAX_BATCH = 8  # questions in one pass; beyond that the time per text does not fall
DRAIN_S = 1.0  # at the gateway's end

Check = Callable[[Embedding], Awaitable[None]]
"""Called once with the embedding of a question, before its entry gets a vector."""


@dataclass(slots=True)
class _PendingQuestion:
    """A question that waits for its embedding. `stored` is the wall-clock time of its entry, or None before there is
    one."""

    fingerprint: str
    route: str
    owner: str
    question: str
    check: Check | None = None
    stored: float | None = None
    embedding: Embedding | None = None  # made while the answer was being stored


class LateVectors:
    """The queue of one space. `stored` is called with every entry that got its vector. It serves one event loop."""

    def __init__(
        self,
        embedder: LearningEmbedder,
        index: VectorIndex,
        store: NearbyStore,
        telemetry: Telemetry,
        load: EncoderLoad,
        limit: int = MAX_WAITING,
    ) -> None:
        self._embedder = embedder
        self._index = index
        self._store = store
        self._telemetry = telemetry
        self._load = load
        self._limit = limit
        self._waiting: dict[str, _PendingQuestion] = {}  # by fingerprint, the oldest first
        self._working: dict[str, _PendingQuestion] = {}  # those that are being embedded
        # By fingerprint: of questions whose answer is not stored yet. It may never be.
        self._made: BoundedCache[str, Embedding] = BoundedCache(limit)
        self._work_available = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self.stored: Callable[[Entry, Vector], None] = lambda _entry, _vector: None
        self.left: Callable[[str], None] = lambda _fingerprint: None  # called with each stored entry without a vector

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def idle(self) -> bool:
        """Whether no question waits and none is being embedded."""
        return self._idle.is_set()

    def take(self, fingerprint: str) -> Embedding | None:
        """Return the embedding of a question that was begun, if it is there by now. It is forgotten."""
        return self._made.pop(fingerprint)

    def begin(self, fingerprint: str, route: str, owner: str, question: str, check: Check) -> None:
        """Embed a question whose answer is being fetched. `check` gets the embedding."""
        self._enqueue(_PendingQuestion(fingerprint, route, owner, question, check))

    def add(self, entry: Entry, owner: str) -> None:
        """Give an entry its vector that was stored without one. It has a question."""
        assert entry.question is not None
        working = self._working.get(entry.fingerprint)
        late = self._waiting.get(entry.fingerprint) or (working if working and working.stored is None else None)
        if late is not None:
            late.stored = entry.created
        else:
            late = _PendingQuestion(entry.fingerprint, entry.route, owner, entry.question, stored=entry.created)
            late.embedding = self.take(entry.fingerprint)
            self._enqueue(late)

    async def run(self) -> None:
        while True:
            await self._work_available.wait()
            while self._waiting:
                batch = [self._waiting.pop(name) for name in list(islice(self._waiting, MAX_BATCH))]
                self._working = {late.fingerprint: late for late in batch}
                await self._embed(batch)
                while self._working:  # in order, each until its entry has its vector
                    await self._finish(self._working[next(iter(self._working))])
            self._work_available.clear()
            self._idle.set()

    async def drain(self) -> None:
        """Wait until nothing waits, at most `DRAIN_S` seconds. Drop the rest."""
        try:
            async with asyncio.timeout(DRAIN_S):
                await self._idle.wait()
        except TimeoutError:
            for late in (*self._waiting.values(), *self._working.values()):
                self._count(late, "dropped")
            self._waiting.clear()

    def _enqueue(self, late: _PendingQuestion) -> None:
        former = self._waiting.pop(late.fingerprint, None)
        if former is not None:  # an answer that expired or was replaced
            late.stored = late.stored or former.stored
        elif len(self._waiting) >= self._limit:
            self._count(self._waiting.pop(next(iter(self._waiting))), "dropped")
        self._waiting[late.fingerprint] = late
        self._idle.clear()
        self._work_available.set()

    async def _embed(self, batch: Sequence[_PendingQuestion]) -> None:
        """Embed questions in one pass, or drop them if the encoder is loaded.

        It is work of requests, and no part of the budget of learning.
        """
        wanted = [late for late in batch if late.embedding is None]
        if not wanted:
            return
        if self._load.leaves_out(OptionalWork.VECTOR):
            self._give_up(wanted, "dropped")
            return
        try:
            embeddings = await self._embedder.embed_deferred([(late.owner, late.question) for late in wanted])
        except EmbedderUnavailable:
            self._give_up(wanted, "failed")
            return
        except Exception:
            LOG.exception("late vectors failed")
            self._give_up(wanted, "failed")
            return
        for late, embedding in zip(wanted, embeddings, strict=True):
            late.embedding = embedding

    def _give_up(self, batch: Sequence[_PendingQuestion], result: str) -> None:
        for late in batch:
            del self._working[late.fingerprint]
            self._count(late, result)

    async def _finish(self, late: _PendingQuestion) -> None:
        """Give the entry of an embedded question its vector, if it is stored already."""
        embedding = late.embedding
        try:
            if embedding is None or embedding.partial:
                return
            if late.check is not None:
                await late.check(embedding)
            if late.stored is None:
                self._made.put(late.fingerprint, embedding)
            else:
                self._count(late, await self._attach(late.fingerprint, late.stored, embedding.vector))
        except (EmbedderUnavailable, StoreUnavailable):
            self._count(late, "failed")
        except Exception:
            LOG.exception("a late vector failed")
            self._count(late, "failed")
        finally:
            del self._working[late.fingerprint]

    async def _attach(self, fingerprint: str, created: float, vector: Vector) -> str:
        """Store the vector of an entry, and add it to the index. Return the result as the metric names it. Raise
        `StoreUnavailable`."""
        entry = await self._store.get(fingerprint)
        if entry is None or entry.created != created:  # removed, or fetched again
            return "gone"
        if not self._store.banned(entry, vector) and not await self._store.put(entry, vector):
            return "gone"
        if not await add_to_index(self._store, self._index, entry, vector):
            return "gone"
        self.stored(entry, vector)
        return "stored"

    def _count(self, late: _PendingQuestion, result: str) -> None:
        if late.stored is not None and result in ("dropped", "failed"):
            self.left(late.fingerprint)
        self._telemetry.late_vectors.add(late.route, result)
