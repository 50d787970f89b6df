"""The same question in other words, where vector, index and record are in memory and a plain threshold judges: nothing
is waited for, and nothing is made that nobody reads (docs/decisions/0047-semantic-hits.md)."""

from __future__ import annotations

from gateway.cache.control.controls import Controls
from gateway.cache.freshness import Lifetime, freshness_of
from gateway.cache.looked import Sought
from gateway.cache.served import PlainHit
from gateway.messages import Asked, Refusal
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

    def find(self, sought: Sought, *, alone: bool) -> None:
        """As `SemanticLookup.stored`, where no verifier has to be asked, and `alone` the nearest is looked at: under a
        plain threshold it is the best. What was not found has counted then only if it is known that nothing is near."""
        at = self.embed(sought, self._clock.monotonic())
        if not sought.over:
            at = self.search(sought, at)
        if not sought.over and alone:
            self.judge(sought, at)

    def embed(self, sought: Sought, began: float) -> float:
        question = sought.asked.call.question
        embedding = None if question is None else self._embedder.at_hand(question)
        if embedding is None:
            sought.over = True
            return began
        sought.embedding, embedded = embedding, self._clock.monotonic()
        sought.spans["embed"] = embedded - began
        if embedding.truncated or embedding.unreadable or not sought.asked.scope:
            sought.over, sought.note = True, why_partial(embedding)
        return embedded

    def search(self, sought: Sought, began: float) -> float:
        assert sought.embedding is not None
        nearest = self._index.at_hand(sought.asked.scope, sought.embedding.vector)
        searched = self._clock.monotonic()
        sought.spans["search"] = searched - began
        if not nearest:
            sought.over, sought.unlike = True, nearest is not None
        elif nearest[0].similarity < self._floor:
            sought.over, sought.unlike, sought.note = True, True, Refusal.SIMILARITY
            self._telemetry.refusals.add(self._route, Refusal.SIMILARITY)
        else:
            sought.over, sought.nearest = self._threshold is None, nearest[0]
        return searched

    def judge(self, sought: Sought, began: float) -> float:
        """Whether the nearest entry's answer lies in memory, is this scope's and fresh, and may be served."""
        sought.over = True
        asked, embedding, nearest, threshold = sought.asked, sought.embedding, sought.nearest, self._threshold
        entry, question = self._store.peek(nearest.fingerprint), asked.call.question
        if entry is None or entry.scope != asked.scope or entry.question is None:
            return began
        freshness = freshness_of(entry, self._lifetime, asked.directives, self._clock.wall())
        assert embedding is not None and question is not None and threshold is not None
        if not freshness.fresh or self._memory.counterexamples.refute(asked.scope, question, entry.fingerprint):
            return began
        sought.alike = PlainHit(
            self._route, entry, question, embedding, nearest.similarity, threshold, self._embedder.fingerprint
        )
        sought.hit, sought.entry, sought.freshness = True, entry, freshness
        verified = self._clock.monotonic()
        sought.spans["verify"] = verified - began
        return verified

    def served(self, asked: Asked, alike: PlainHit) -> None:
        """Counts it, and remembers it for as long as feedback may come."""
        self._controls.served_plainly(self._route, alike.threshold)
        self._memory.served.add(asked.tenant, asked.id, alike)
