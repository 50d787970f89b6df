"""An embedding model with all that is made of its vectors: what a request gets once, and keeps to its end.

Vectors of different models are never compared, and what was learnt of one model's similarities says nothing of
another's. So the model is not passed around beside its index and its thresholds: they are one object, and where the
model changes, one reference is swapped (gateway/cache/embedding_migration.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.cache.answer_comparison import AnswerComparer
from gateway.cache.audits import HitAudits
from gateway.cache.index_checkpoints import IndexCheckpoints
from gateway.cache.inflight_questions import InflightQuestions
from gateway.cache.labels import Labels
from gateway.cache.learned_state import StateKeeper
from gateway.cache.memory_cache import TieredStore
from gateway.cache.threshold.route_control import Controls
from gateway.ports import ComplexityScorer, Embedder, ResponseStore, VectorIndex, Verifier

MAX_PENDING_EMBEDDINGS = 20_000  # fingerprints: 3 MB


class PendingEmbeddings:
    """What was stored under a model that is to be followed by another one, for that one to embed. Beyond its bound the
    store has to be gone through once more. To be used from one event loop."""

    def __init__(self, limit: int = MAX_PENDING_EMBEDDINGS) -> None:
        self._limit = limit
        self._names: dict[str, None] = {}
        self._available = asyncio.Event()
        self.overflowed = False

    def __len__(self) -> int:
        return len(self._names)

    def add(self, fingerprint: str) -> None:
        if len(self._names) < self._limit:
            self._names[fingerprint] = None
            self._available.set()
        else:
            self.overflowed = True

    def take(self) -> str:
        """The one that has waited longest. Raises `StopIteration` where there is none."""
        fingerprint = next(iter(self._names))
        del self._names[fingerprint]
        if not self._names:
            self._available.clear()
        return fingerprint

    async def wait_available(self) -> None:
        """Returns once there is one."""
        await self._available.wait()


@dataclass(frozen=True, slots=True)
class Space:
    """`store` and `backing_store`, the one behind its front, read and write vectors of this embedder alone."""

    embedder: Embedder
    index: VectorIndex
    checkpoints: IndexCheckpoints | None
    store: TieredStore
    backing_store: ResponseStore
    verifier: Verifier
    controls: Controls
    complexity: ComplexityScorer
    labels: Labels
    comparisons: AnswerComparer
    audits: HitAudits
    learning: StateKeeper
    inflight_questions: InflightQuestions  # the questions in flight, with their vectors


class Spaces:
    """Those that live: the one that lookups go by, and while it is being filled the one that follows."""

    def __init__(self, serving: Space, upcoming: Space | None = None, pending: PendingEmbeddings | None = None) -> None:
        self.serving = serving
        self.upcoming = upcoming
        self.pending = PendingEmbeddings() if pending is None else pending

    @property
    def all(self) -> tuple[Space, ...]:
        return (self.serving,) if self.upcoming is None else (self.serving, self.upcoming)

    @property
    def with_local_index(self) -> tuple[Space, ...]:
        """Those whose index is this process' own, and has to be told what others store."""
        return tuple(space for space in self.all if not space.index.shared)

    @property
    def target(self) -> Space:
        """That of the model in use by the configuration: what is stored is to be found there in the end."""
        return self.upcoming or self.serving

    def of(self, embedder: str) -> Space | None:
        """By its embedder's fingerprint; None: no vector of it can be compared here."""
        return next((space for space in self.all if space.embedder.fingerprint == embedder), None)

    async def forget(self, fingerprints: Sequence[str]) -> None:
        """Out of every index."""
        for space in self.all:
            await space.index.remove(fingerprints)

    def swap(self) -> Space:
        """Lookups go by the one that was coming; returned for its requests to be built on."""
        assert self.upcoming is not None
        self.serving, self.upcoming = self.upcoming, None
        return self.serving
