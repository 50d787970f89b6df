"""Has this question been answered in other words? Neighbours within the scope, the verifier's opinion, and the route's
own threshold."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace

import numpy as np

from gateway.cache.control.controls import Controls
from gateway.cache.control.route_control import RouteControl
from gateway.cache.feedback import Relation, digest_of
from gateway.cache.framed import of_what_varies
from gateway.cache.freshness import EXPIRED, Freshness, Lifetime, freshness_of
from gateway.cache.hits import answer_from
from gateway.cache.judged import MAX_CANDIDATES, VERBATIM, Judged, best, judged, same_words
from gateway.cache.served import Served
from gateway.cache.templates import varying
from gateway.errors import EmbedderUnavailable, StoreUnavailable
from gateway.flights.aloft import Question
from gateway.messages import Call, Embedding, Entry, Neighbour, Refusal, Request, Response, Verdict
from gateway.observing.telemetry import Telemetry
from gateway.pipeline import Handler
from gateway.policy.model import Semantic
from gateway.ports import Candidate, Clock, Embedder, NearStore, Opinion, VectorIndex, Verifier
from gateway.stages.feedback import Memory

LOG = logging.getLogger("nearhit.semantic")
Found = tuple[Entry, Neighbour, Freshness]


class SemanticLookup:
    def __init__(
        self,
        index: VectorIndex,
        store: NearStore,
        embedder: Embedder,
        verifier: Verifier,
        controls: Controls,
        clock: Clock,
        telemetry: Telemetry,
        rule: Semantic,
        lifetime: Lifetime,
        memory: Memory,
    ) -> None:
        self._index = index
        self._store = store
        self._embedder = embedder
        self._verifier = verifier
        self._controls = controls
        self._clock = clock
        self._telemetry = telemetry
        self._rule = rule
        self._lifetime = lifetime
        self._memory = memory
        self._floor = floor_of(rule, verifier)

    def __call__(self, request: Request, forward: Handler) -> Awaitable[Response]:
        return forward(request) if request.unlike else self._looked_up(request, forward)

    async def _looked_up(self, request: Request, forward: Handler) -> Response:
        hit = await self.stored(request)
        return await forward(request) if hit is None else hit

    async def stored(self, request: Request) -> Response | None:
        """The answer to the same question in other words; None where there is none that may be served."""
        call, embedding = request.call, request.embedding
        if call is None or embedding is None or embedding.partial or request.directives.no_cache or not request.scope:
            return None
        try:
            hit = await self._find(request, call, embedding)
        except StoreUnavailable as error:
            self._telemetry.store_errors.add()
            self._telemetry.store_warnings.warn(LOG, "lookup failed", {**request.named, "error": str(error)})
            return None
        if hit is None:
            return None
        served, freshness = hit
        return answer_from(request, served.entry, freshness, Verdict.SEMANTIC, served.similarity)

    async def alike(self, request: Request, aloft: Sequence[Question]) -> Question | None:
        """Of questions in flight within the scope the one whose answer would be served, if it were stored now."""
        call, embedding = request.call, request.embedding
        if call is None or embedding is None or not aloft:
            return None
        similarities = np.clip(np.stack([each.vector for each in aloft]) @ embedding.vector, 0.0, 1.0)
        nearest = [int(at) for at in np.argsort(-similarities)[:MAX_CANDIDATES] if similarities[at] >= self._floor]
        if not nearest:
            return None
        found = [
            (aloft[at].entry, Neighbour(aloft[at].entry.fingerprint, float(similarities[at])), EXPIRED)
            for at in nearest
        ]
        with request.trace.span("verify"):
            control = self._controls.of(request.route)
            judgements, best_at = await self._judged(request, call, embedding, found, control)
        chosen = judgements[best_at]
        return next((aloft[at] for at in nearest if aloft[at].entry is chosen.entry and chosen.reason is None), None)

    async def _find(self, request: Request, call: Call, embedding: Embedding) -> tuple[Judged, Freshness] | None:
        with request.trace.span("search"):
            neighbours = await self._index.search(request.scope, embedding.vector, MAX_CANDIDATES)
            near = [n for n in neighbours if n.similarity >= self._floor]
            found = await self._read(request, near) if near else []
        if not found:
            if neighbours and not near:
                self._refused(request, Refusal.SIMILARITY)
            return None
        control = self._controls.of(request.route)
        with request.trace.span("verify"):
            judgements, at = await self._judged(request, call, embedding, found, control)
        chosen = judgements[at]
        if self._rule.acceptance.min_similarity is None and chosen.opinion.veto is None and not chosen.verbatim:
            control.met(chosen.score, self._index.count(request.scope))
        if not self._served(request, judgements, at, control):
            return None
        return chosen, found[at][2]

    def _served(self, request: Request, judgements: Sequence[Judged], at: int, control: RouteControl) -> bool:
        """Notes what was judged. Whether it is served."""
        trace, chosen = request.trace, judgements[at]
        trace.considered, trace.judged = judgements, chosen
        if chosen.reason is not None:
            self._refused(request, chosen.reason)
            return False
        if self._store.banned(chosen.entry):  # removed while it was judged
            return False
        control.hit()
        self._memory.served.add(trace.tenant, request.id, Served(request.route, chosen, self._embedder.fingerprint))
        return True

    async def _judged(
        self, request: Request, call: Call, embedding: Embedding, found: list[Found], control: RouteControl
    ) -> tuple[list[Judged], int]:
        """Each of what was found, and which of them is the best, and whether that may be served."""
        question, plain = call.question or "", self._rule.acceptance.min_similarity is not None
        hold = self._holding(request, question, embedding, control)
        if plain:
            judgements = [hold(each, _by_similarity(each)) for each in found]
            return judgements, best(judgements)
        candidates = [Candidate(entry.question or "", neighbour.similarity) for entry, neighbour, _ in found]
        opinions = await self._verifier.opinions(question, candidates)
        judgements = [
            hold(each, VERBATIM if same_words(question, candidate.question) else opinion)
            for each, candidate, opinion in zip(found, candidates, opinions, strict=True)
        ]
        at = best(judgements)
        if judgements[at].verbatim:
            return judgements, at
        closer = await self._closer(request, question, candidates, at, judgements[at])
        if closer is not None:
            judgements[at] = hold(found[at], closer)
        return judgements, at

    def _holding(
        self, request: Request, question: str, embedding: Embedding, control: RouteControl
    ) -> Callable[[Found, Opinion], Judged]:
        """What holds an opinion on one that was found against the route's threshold."""
        scope, acceptance, asked = request.scope, self._rule.acceptance, digest_of(question)
        entries, shift = 0, 0.0
        if acceptance.min_similarity is None:
            entries, shift = self._index.count(scope), control.shift(embedding.vector)

        def held(found: Found, opinion: Opinion) -> Judged:
            entry, neighbour, _ = found
            relation = Relation(scope, asked, entry.fingerprint)
            if relation in self._memory.counterexamples:
                opinion = Opinion(opinion.score, 0.0, veto=Refusal.COUNTEREXAMPLE)
            similarity, vector = neighbour.similarity, embedding.vector
            return judged(
                entry, relation, vector, similarity, opinion, control, acceptance, shift=shift, entries=entries
            )

        return held

    async def _closer(
        self, request: Request, question: str, candidates: list[Candidate], at: int, chosen: Judged
    ) -> Opinion | None:
        """What a dearer look at the best candidate says; None where the first one stands."""
        opinion: Opinion | None = None
        if chosen.gray:
            opinion = await self._verifier.second_opinion(question, candidates[at], chosen.opinion)
            self._telemetry.second_opinions.add(request.route, "none" if opinion is None else "asked")
        stored = [candidate.question for candidate in candidates]
        parts = varying(question, stored[at], stored)
        if parts is None or parts.same or chosen.opinion.veto is not None:
            return opinion
        whole = opinion or chosen.opinion
        try:
            return await of_what_varies(parts, whole, self._embedder, self._verifier)
        except EmbedderUnavailable:
            return replace(whole, veto=Refusal.TEMPLATE)

    async def _read(self, request: Request, near: Sequence[Neighbour]) -> list[Found]:
        """The records that still live and are this scope's: the index may lag behind the store."""
        found: list[Found] = []
        for neighbour, entry in zip(near, await self._entries(near), strict=True):
            if entry is None:
                await self._index.remove([neighbour.fingerprint])
            elif entry.scope != request.scope or entry.question is None:
                LOG.error("a neighbour of another scope", extra={"fields": request.named})
                await self._index.remove([neighbour.fingerprint])
                self._refused(request, Refusal.FOREIGN)
            else:
                freshness = freshness_of(entry, self._lifetime, request.directives, self._clock.wall())
                if freshness.fresh:
                    found.append((entry, neighbour, freshness))
                else:
                    self._refused(request, Refusal.EXPIRED)
        return found

    async def _entries(self, near: Sequence[Neighbour]) -> Sequence[Entry | None]:
        """Those that are not in memory are asked of the store together: one way there and back, not one for each."""
        entries = [self._store.peek(neighbour.fingerprint) for neighbour in near]
        away = [at for at, entry in enumerate(entries) if entry is None]
        for at, entry in zip(away, await self._fetched([near[at] for at in away]) if away else (), strict=True):
            entries[at] = entry
        return entries

    async def _fetched(self, near: Sequence[Neighbour]) -> Sequence[Entry | None]:
        if len(near) == 1:
            return [await self._store.get(near[0].fingerprint)]
        return await asyncio.gather(*(self._store.get(neighbour.fingerprint) for neighbour in near))

    def _refused(self, request: Request, reason: str | None) -> None:
        if reason is not None:
            request.trace.note = reason
            self._telemetry.refusals.add(request.route, reason)


def _by_similarity(found: Found) -> Opinion:
    """Where the policy has a plain threshold."""
    _, neighbour, _ = found
    return Opinion(neighbour.similarity, neighbour.similarity)


def floor_of(rule: Semantic, verifier: Verifier) -> float:
    """The similarity below which no neighbour is worth reading."""
    plain = rule.acceptance.min_similarity
    return verifier.floor if plain is None else plain
