"""A space is an embedding model with everything that depends on its vectors. A request keeps one space to its end.

Vectors of different models are never compared, and thresholds learned with one model say nothing about another. So the
model, its index and its thresholds are one object, and a change of model swaps one reference
(gateway/cache/embedding_migration.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # a gateway without a route that compares questions imports none of them
    from gateway.cache.answer_comparer import AnswerComparer
    from gateway.cache.audits import HitAudits
    from gateway.cache.decoys import Decoys
    from gateway.cache.index_checkpoints import IndexCheckpoints
    from gateway.cache.inflight_questions import InflightQuestions
    from gateway.cache.labels import Labels
    from gateway.cache.late_vectors import LateVectors
    from gateway.cache.learned_state import StateKeeper
    from gateway.cache.load_level import EncoderLoad
    from gateway.cache.memory_cache import TieredStore
    from gateway.cache.screening import Screen
    from gateway.cache.threshold.route_control import Controls
    from gateway.cache.vector_backlog import VectorBacklog
    from gateway.ports import ComplexityScorer, LearningEmbedder, VectorIndex, VectorStore, Verifier

MAX_PENDING_EMBEDDINGS = 20_000  # fingerprints: 3 MB


class PendingEmbeddings:
    """Entries stored with a model that will be replaced, queued for embedding with the next one.

    Beyond the bound they are dropped, and the store needs another pass. It serves one event loop.
    """

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
        """Remove and return the oldest fingerprint. Raise `StopIteration` if there is none."""
        fingerprint = next(iter(self._names))
        del self._names[fingerprint]
        if not self._names:
            self._available.clear()
        return fingerprint

    async def wait_available(self) -> None:
        """Wait until there is a fingerprint."""
        await self._available.wait()


@dataclass(frozen=True, slots=True)
class Space:
    """An embedding model with its index, stores and learned state.

    `store` and `backing_store` (the store behind its memory tier) read and write only vectors of this embedder.
    """

    embedder: LearningEmbedder
    load: EncoderLoad  # of the embedder
    index: VectorIndex
    checkpoints: IndexCheckpoints | None
    store: TieredStore
    backing_store: VectorStore
    verifier: Verifier
    controls: Controls
    decoys: Decoys
    open_complexity: Callable[[], ComplexityScorer]  # opened once, by the first route with tiers
    labels: Labels
    comparisons: AnswerComparer
    audits: HitAudits
    learning: StateKeeper
    inflight_questions: InflightQuestions  # the questions in flight, with their vectors
    late: LateVectors
    backlog: VectorBacklog
    screen: Screen | None  # None if the model has no static vectors, or the index is shared

    @property
    def complexity(self) -> ComplexityScorer:
        """The scorer of complexity for this embedder. Raise `StartupError` if its weights are damaged."""
        return self.open_complexity()


class Spaces:
    """The live spaces: the one that lookups use, and the upcoming one while it is being filled.

    There is none until a policy compares questions. `open` then adds them, and they stay.
    """

    def __init__(self) -> None:
        self._serving: Space | None = None
        self.upcoming: Space | None = None
        self.pending = PendingEmbeddings()
        self._followers: list[Callable[[Space], None]] = []

    def open(self, serving: Space, upcoming: Space | None, pending: PendingEmbeddings) -> None:
        """Add the spaces. Called once."""
        self._serving, self.upcoming, self.pending = serving, upcoming, pending
        for space in self.all:
            for follow in self._followers:
                follow(space)

    def follow(self, call: Callable[[Space], None]) -> None:
        """Call a function with each space, now or once it opens."""
        self._followers.append(call)
        for space in self.all:
            call(space)

    @property
    def is_open(self) -> bool:
        """Whether a policy has compared questions since the start."""
        return self._serving is not None

    @property
    def serving(self) -> Space:
        """The space that lookups use. There has to be one."""
        assert self._serving is not None
        return self._serving

    @property
    def all(self) -> tuple[Space, ...]:
        return tuple(space for space in (self._serving, self.upcoming) if space is not None)

    @property
    def with_local_index(self) -> tuple[Space, ...]:
        """The spaces whose index belongs to this process and needs the changes of other gateways."""
        return tuple(space for space in self.all if not space.index.shared)

    @property
    def target(self) -> Space:
        """The space of the configured model. In the end it holds every entry."""
        return self.upcoming or self.serving

    def of(self, embedder: str) -> Space | None:
        """Return the space of an embedder's fingerprint. Return None if its vectors cannot be compared here."""
        return next((space for space in self.all if space.embedder.fingerprint == embedder), None)

    async def forget(self, fingerprints: Sequence[str]) -> None:
        """Remove entries from every index, and their decoys."""
        for space in self.all:
            await space.index.remove(fingerprints)
            space.decoys.forget(fingerprints)

    def swap(self) -> Space:
        """Switch lookups to the upcoming space, and return it so that the stages are built on it."""
        assert self.upcoming is not None
        self._serving, self.upcoming = self.upcoming, None
        return self._serving
