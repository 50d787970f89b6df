"""Gives entries their vector that were stored without one: while the encoder was loaded or down, or before a restart.

Only the names of entries wait, as the store has their questions. The encoder gets them while no request's text waits
and no load leaves work out. The work begins once the index is complete. After a start, and after more names than the
bound came, it goes through the whole store once.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from itertools import islice

from gateway.cache.index_additions import add_to_index
from gateway.cache.late_vectors import MAX_BATCH
from gateway.cache.load_level import EncoderLoad, LoadLevel
from gateway.entries import Embedding, Entry, Vector
from gateway.errors import EmbedderUnavailable, StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import LearningEmbedder, NearbyStore, VectorIndex, VectorStore

LOG = logging.getLogger("nearhit.semantic")
MAX_NAMES = 20_000  # 3 MB; a further name has the whole store gone through again
MAX_ATTEMPTS = 3  # for one text that the embedder does not answer
PAUSE_S = 0.25  # between two looks at a loaded encoder
RETRY_S = 2.0  # after the embedder or the store failed
REST_FACTOR = 1.0  # of the time that a batch without a question for the encoder took: a store may have many


@dataclass(slots=True)
class _Failures:
    """The failures of one text. `passes` is the number of successful passes at the last failure."""

    count: int = 0
    passes: int = 0


class VectorBacklog:
    """The backlog of one space. `stored` is called with every entry that got its vector. It serves one event loop.

    `routes` are those whose entries want a vector, by the policy in force.
    """

    def __init__(
        self,
        embedder: LearningEmbedder,
        index: VectorIndex,
        store: NearbyStore,
        backing_store: VectorStore,
        telemetry: Telemetry,
        load: EncoderLoad,
        limit: int = MAX_NAMES,
    ) -> None:
        self._embedder = embedder
        self._index = index
        self._store = store
        self._backing_store = backing_store
        self._telemetry = telemetry
        self._load = load
        self._limit = limit
        self._names: dict[str, None] = {}
        self._failures: dict[str, _Failures] = {}
        self._passes = 0  # that succeeded
        self._pages: AsyncIterator[Sequence[str]] | None = None  # of the store, while it is gone through
        self._is_sweep_due = False
        self._is_open = False
        self._work_available = asyncio.Event()
        self.routes: frozenset[str] = frozenset()
        self.stored: Callable[[Entry, Vector], None] = lambda _entry, _vector: None

    def __len__(self) -> int:
        return len(self._names)

    @property
    def idle(self) -> bool:
        """Whether the work has begun, and nothing is left to do."""
        return self._is_open and not self._work_available.is_set()

    def add(self, fingerprint: str) -> None:
        """Give this entry its vector later."""
        if len(self._names) >= self._limit:
            self._is_sweep_due = True
        else:
            self._names[fingerprint] = None
        self._work_available.set()

    def begin(self) -> None:
        """Begin, with all entries of the store: the index is complete, and the removals are known."""
        self._is_open = self._is_sweep_due = True
        self._work_available.set()

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._work_available.wait()
            if not self._is_open or self._load.level >= LoadLevel.VECTORS_DROPPED:
                await asyncio.sleep(PAUSE_S)
                continue
            try:
                await self._step()
            except (EmbedderUnavailable, StoreUnavailable):
                await asyncio.sleep(RETRY_S)
            except Exception:  # whatever it is, the others must get their vectors
                LOG.exception("giving entries their vectors failed")
                await asyncio.sleep(RETRY_S)

    async def _step(self) -> None:
        """Work on a batch. Raise `EmbedderUnavailable` or `StoreUnavailable`; what is left of it waits again."""
        if not self._names and not await self._next_page():
            self._work_available.clear()
            self._failures.clear()
            return
        loop = asyncio.get_running_loop()
        started, batch = loop.time(), self._take()
        try:
            entries = await self._entries(batch)
            embeddings = await self._embed(entries)
        except (EmbedderUnavailable, StoreUnavailable):
            self._put_back(batch)
            raise
        self._passes += bool(entries)
        for entry, embedding in zip(entries, embeddings, strict=True):
            await self._finish(entry, embedding)
        if not entries:
            await asyncio.sleep(REST_FACTOR * (loop.time() - started))

    def _take(self) -> list[str]:
        """Remove and return the next batch. A text that was in a failed one is alone in its own."""
        names = list(islice(self._names, MAX_BATCH))
        failed = next((at for at, name in enumerate(names) if name in self._failures), len(names))
        batch = names[: failed or 1]
        for name in batch:
            del self._names[name]
        return batch

    async def _next_page(self) -> bool:
        """Take more names from the store. Return False if there are none. Raise `StoreUnavailable`."""
        if self._pages is None:
            if not self._is_sweep_due or not self.routes:
                return False
            self._is_sweep_due, self._pages = False, self._backing_store.without_vector()
        try:
            page = await anext(self._pages, None)
        except StoreUnavailable:
            self._is_sweep_due, self._pages = True, None
            raise
        if page is None:
            self._pages = None
            return self._is_sweep_due
        self._names.update(dict.fromkeys(page))
        return True

    async def _entries(self, names: Sequence[str]) -> list[Entry]:
        """Return those entries that want a vector and have none. Raise `StoreUnavailable`."""
        present = {each.fingerprint for each in await self._backing_store.vectors_of(names)}
        entries = await asyncio.gather(*(self._backing_store.get(name) for name in names if name not in present))
        return [entry for entry in entries if entry is not None and entry.question and entry.route in self.routes]

    async def _embed(self, entries: Sequence[Entry]) -> Sequence[Embedding]:
        """Embed the questions in one pass, as texts of the gateway itself. Raise `EmbedderUnavailable`."""
        return await self._embedder.embed_deferred([("", entry.question or "") for entry in entries]) if entries else []

    def _put_back(self, names: Sequence[str]) -> None:
        """Let names wait again, unless they alone fail: others succeeded between their attempts."""
        for name in names:
            failures = self._failures.setdefault(name, _Failures())
            failures.count += self._passes > failures.passes
            failures.passes = self._passes
            if failures.count < MAX_ATTEMPTS:
                self._names[name] = None

    async def _finish(self, entry: Entry, embedding: Embedding) -> None:
        """Give an entry its vector. A text that the model reads in part only gets none."""
        if embedding.partial:
            return
        try:
            result = await self._attach(entry, embedding.vector)
        except StoreUnavailable:
            self._put_back([entry.fingerprint])
            result = "failed"
        self._telemetry.late_vectors.add(entry.route, result)

    async def _attach(self, entry: Entry, vector: Vector) -> str:
        """Return the result as the metric names it. Raise `StoreUnavailable`."""
        if self._store.banned(entry):  # the removal finds it in the store
            return "gone"
        if self._store.banned(entry, vector):
            await self._store.delete([entry.fingerprint])
            return "gone"
        if not await self._backing_store.add_vector(entry, vector):  # removed, or fetched again
            return "gone"
        if self._store.banned(entry) or not await add_to_index(self._store, self._index, entry, vector):
            return "gone"
        self.stored(entry, vector)
        return "stored"
