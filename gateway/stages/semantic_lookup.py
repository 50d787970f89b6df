"""Has this question been answered in other words? Neighbours within the scope, then the verifier's word."""

from __future__ import annotations

import logging

from gateway.cache.feedback import Served, relation_of
from gateway.cache.freshness import Freshness, freshness_of
from gateway.cache.hits import answer_from
from gateway.errors import StoreUnavailable
from gateway.messages import Call, Embedding, Entry, Neighbour, Refusal, Request, Response, Verdict
from gateway.pipeline import Handler
from gateway.policy.model import Semantic
from gateway.ports import Candidate, Clock, ResponseStore, VectorIndex, Verifier
from gateway.stages.feedback import Memory
from gateway.telemetry import Telemetry

LOG = logging.getLogger("nearhit.semantic")
# Of the neighbours that are near enough, so many are read from the store: the right one is nearly always the first.
MAX_CANDIDATES = 4


class SemanticLookup:
    def __init__(
        self,
        index: VectorIndex,
        store: ResponseStore,
        verifier: Verifier,
        clock: Clock,
        telemetry: Telemetry,
        rule: Semantic,
        memory: Memory,
    ) -> None:
        self._index = index
        self._store = store
        self._verifier = verifier
        self._clock = clock
        self._telemetry = telemetry
        self._rule = rule
        self._memory = memory

    async def __call__(self, request: Request, forward: Handler) -> Response:
        call, embedding = request.call, request.embedding
        if call is None or embedding is None or embedding.truncated or request.directives.no_cache or not request.scope:
            return await forward(request)
        try:
            hit = await self._find(request, call, embedding)
        except StoreUnavailable as error:
            self._telemetry.store_errors.add()
            LOG.warning("lookup failed", extra={"fields": {"id": request.id, "error": str(error)}})
            hit = None
        if hit is None:
            return await forward(request)
        entry, freshness, similarity = hit
        return answer_from(entry, freshness, Verdict.SEMANTIC, similarity)

    async def _find(self, request: Request, call: Call, embedding: Embedding) -> tuple[Entry, Freshness, float] | None:
        trace = request.trace
        with trace.span("search"):
            neighbours = await self._index.search(request.scope, embedding.vector, MAX_CANDIDATES)
            near = [n for n in neighbours if n.similarity >= self._verifier.floor(self._rule.acceptance)]
            candidates = [found for n in near if (found := await self._read(request, n)) is not None]
        if not candidates:
            if neighbours and not near:
                self._refused(request, Refusal.SIMILARITY)
            return None
        with trace.span("verify"):
            judgements = await self._verifier.judge(
                call.question or "",
                [Candidate(entry.question or "", neighbour.similarity) for entry, neighbour, _ in candidates],
                self._rule.acceptance,
            )
        reason = judgements[0].reason
        for (entry, neighbour, freshness), judgement in zip(candidates, judgements, strict=True):
            if not judgement.accepted:
                continue
            relation = relation_of(request.scope, call.question or "", entry.fingerprint)
            if relation in self._memory.counterexamples:
                reason = Refusal.COUNTEREXAMPLE
                continue
            self._memory.served.add(request.tenant, request.id, Served(request.route, relation))
            return entry, freshness, neighbour.similarity
        self._refused(request, reason)
        return None

    async def _read(self, request: Request, neighbour: Neighbour) -> tuple[Entry, Neighbour, Freshness] | None:
        """The neighbour's record, if it still lives and is this scope's: the index may lag behind the store."""
        entry = await self._store.get(neighbour.fingerprint)
        if entry is None:
            await self._index.remove([neighbour.fingerprint])
            return None
        if entry.scope != request.scope or entry.question is None:
            LOG.error("a neighbour of another scope", extra={"fields": {"id": request.id}})
            await self._index.remove([neighbour.fingerprint])
            self._refused(request, Refusal.FOREIGN)
            return None
        freshness = freshness_of(entry, self._rule.ttl_s, request.directives, self._clock.wall())
        if freshness.fresh:
            return entry, neighbour, freshness
        self._refused(request, Refusal.EXPIRED)
        return None

    def _refused(self, request: Request, reason: str | None) -> None:
        if reason is not None:
            request.trace.note = reason
            self._telemetry.refusals.add(request.route, reason)
