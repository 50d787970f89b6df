"""The same question in other words, where vector, index and record are in memory and a plain threshold judges: nothing
is waited for, and nothing is made that nobody reads (docs/decisions/0047-semantic-hits.md)."""

from __future__ import annotations

from gateway.cache.control.controls import Controls
from gateway.cache.freshness import Lifetime, freshness_of
from gateway.cache.looked import Hit, Missed, Spans
from gateway.cache.served import PlainHit
from gateway.messages import Asked, Embedding, Neighbour, Refusal
from gateway.observing.telemetry import Telemetry
from gateway.policy.model import Semantic
from gateway.ports import Clock, Embedder, NearStore, VectorIndex
from gateway.stages.embed import why_partial
from gateway.stages.feedback import Memory


class Similar:
    """Of the route `route`. `floor`: the similarity below which no neighbour is worth reading."""

    def __init__(
        self,
        route: str,
        embedder: Embedder,
        index: VectorIndex,
        store: NearStore,
        controls: Controls,
        memory: Memory,
        clock: Clock,
        telemetry: Telemetry,
        rule: Semantic,
        lifetime: Lifetime,
        floor: float,
    ) -> None:
        self._route = route
        self._embedder = embedder
        self._index = index
        self._store = store
        self._controls = controls
        self._memory = memory
        self._clock = clock
        self._telemetry = telemetry
        self._threshold = rule.acceptance.min_similarity
        self._lifetime = lifetime
        self._floor = floor

    def find(self, asked: Asked, spans: Spans, *, alone: bool = True) -> Hit | Missed:
        """As `SemanticLookup.stored`, where no verifier has to be asked, and `alone` the nearest is looked at: under a
        plain threshold it is the best. What was not found has counted then only if it is known that nothing is near.
        `spans` are those so far."""
        now, question = self._clock.monotonic, asked.call.question
        if question is None:
            return Missed(spans)
        began = now()
        embedding = self._embedder.at_hand(question)
        if embedding is None:
            return Missed(spans)
        embedded = now()
        spans["embed"] = embedded - began
        if embedding.truncated or embedding.unreadable or not asked.scope:
            return Missed(spans, embedding, note=why_partial(embedding))
        nearest = self._index.at_hand(asked.scope, embedding.vector)
        searched = now()
        spans["search"] = searched - embedded
        if nearest is None:
            return Missed(spans, embedding)
        if not nearest or nearest[0].similarity < self._floor:
            return self._unlike(spans, embedding, nearest)
        if self._threshold is None or not alone:
            return Missed(spans, embedding)
        hit = self._hit(asked, question, embedding, nearest[0], self._threshold, spans)
        if hit is None:
            return Missed(spans, embedding)
        spans["verify"] = now() - searched
        return hit

    def _unlike(self, spans: Spans, embedding: Embedding, nearest: list[Neighbour]) -> Missed:
        if not nearest:
            return Missed(spans, embedding, unlike=True)
        self._telemetry.refusals.add(self._route, Refusal.SIMILARITY)
        return Missed(spans, embedding, unlike=True, note=Refusal.SIMILARITY)

    def _hit(
        self, asked: Asked, question: str, embedding: Embedding, nearest: Neighbour, threshold: float, spans: Spans
    ) -> Hit | None:
        """The nearest entry's answer, if it lies in memory, is this scope's and fresh, and may be served."""
        entry = self._store.peek(nearest.fingerprint)
        if entry is None or entry.scope != asked.scope or entry.question is None:
            return None
        freshness = freshness_of(entry, self._lifetime, asked.directives, self._clock.wall())
        if not freshness.fresh or self._memory.counterexamples.refute(asked.scope, question, entry.fingerprint):
            return None
        alike = PlainHit(
            self._route, entry, question, embedding, nearest.similarity, threshold, self._embedder.fingerprint
        )
        return Hit(entry, freshness, spans, alike)

    def served(self, asked: Asked, alike: PlainHit) -> None:
        """Counts it, and remembers it for as long as feedback may come."""
        self._controls.served_plainly(self._route, alike.threshold)
        self._memory.served.add(asked.tenant, asked.id, alike)
