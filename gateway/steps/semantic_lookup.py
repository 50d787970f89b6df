"""Finds a stored answer to the same question in other words. It searches neighbours within the scope, scores them, and
applies the threshold of the route."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass, field

import numpy as np

from gateway.cache.feedback import ServedHit
from gateway.cache.freshness import Freshness, freshness_of
from gateway.cache.hits import response_from_entry
from gateway.cache.inflight_questions import InflightQuestion
from gateway.cache.judgement import MAX_CANDIDATES, CandidateScorer, CandidateScores, NeighbourEntry
from gateway.cache.keys import client_of
from gateway.cache.links import Link
from gateway.cache.threshold.route_control import MOST_WRONG_OF_PARTS, Controls
from gateway.cache.tool_calls import ToolCallRule, may_serve
from gateway.config.policy.schema import SemanticRule
from gateway.context import Asker, RequestContext
from gateway.dialects.structured_answers import TOOL_FIELDS
from gateway.entries import NO_DIRECTIVES, Embedding, Entry, Lifetime, Neighbour
from gateway.errors import StoreUnavailable
from gateway.messages import Response
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Basis, Refusal, Verdict
from gateway.ports import LINKED, Clock, Judgement, NearbyStore, VectorIndex
from gateway.steps.feedback import FeedbackState
from gateway.text_forms import fold_spaces

LOG = logging.getLogger("nearhit.semantic")
# Neighbours to search for under a narrower trust. Those of other clients do not count, and there may be many of them.
MAX_UNTRUSTED = 8 * MAX_CANDIDATES
FreshNeighbour = tuple[Entry, float, Freshness]
"""A stored answer that is fresh, and the similarity of its question."""


@dataclass(slots=True)
class _Search:
    """The state of one lookup."""

    request: RequestContext
    question: str
    embedding: Embedding
    started: float  # monotonic clock
    k: int  # number of neighbours to search for
    neighbours: Sequence[Neighbour] | None = None  # the most similar first, or None before the search
    # The nearest fresh neighbours that the client may not have before they are confirmed.
    withheld: list[NeighbourEntry] = field(default_factory=list)

    def widen(self) -> None:
        """Search for all candidates: the nearest one cannot be used."""
        if self.k < MAX_CANDIDATES:
            self.k, self.neighbours = MAX_CANDIDATES, None


@dataclass(slots=True)
class SemanticLookup:
    """Looks up semantic hits for one route.

    `find` is the lookup: neighbours within the scope, their scores, the decision. `_find_later` goes the same way where
    the index, the store or the verifier has to be waited for.
    """

    index: VectorIndex
    store: NearbyStore
    scorer: CandidateScorer
    controls: Controls
    clock: Clock
    telemetry: Telemetry
    rule: SemanticRule
    tools: ToolCallRule | None
    lifetime: Lifetime
    memory: FeedbackState
    floor: float = field(kw_only=True)  # the least similarity of a neighbour that is scored
    embedder: str = field(kw_only=True)  # the fingerprint of the embedding model
    _plain: bool = field(init=False)  # whether a fixed similarity decides
    _is_loose: bool = field(init=False)

    def __post_init__(self) -> None:
        acceptance = self.rule.acceptance
        self._plain = acceptance.min_similarity is not None
        self._is_loose = (acceptance.max_wrong_hits or 0.0) > MOST_WRONG_OF_PARTS

    def find(
        self, request: RequestContext, question: str, embedding: Embedding
    ) -> Response | Awaitable[Response | None] | None:
        """Return a hit, or None if no answer may be served. The result is awaitable if the index, the store or the
        verifier has to be waited for. `embedding` covers the whole question."""
        if not request.keys.scope or request.directives.no_cache:
            return None
        # With a plain threshold the nearest neighbour is the best. The others are searched only for the traffic log,
        # or if the nearest one cannot be used.
        k = 1 if self._plain and request.traffic is None else MAX_CANDIDATES
        if request.asker is not None:
            k = MAX_UNTRUSTED
        search = _Search(request, question, embedding, self.clock.monotonic(), k)
        # A plain threshold is the operator's word: nothing is served below it, not even by a link.
        link = None if self._plain else self._link_of(search)
        if link is not None:
            entry = self.store.peek(link.fingerprint)
            if entry is None:
                request.require_capacity()
                return self._find_later(search, link)
            hit = self._serve_link(search, link, entry)
            if hit is not None:
                return hit
        while (fresh := self._fresh_in_memory(search)) is not None:
            scores = self._score(search, fresh)
            if scores is None:
                return self._decide_later(search, fresh, None) if search.withheld else None
            if search.k > 1 or scores.chosen.opinion.veto is None:
                if search.withheld or (not self._plain and self.scorer.needs_second_opinion(scores)):
                    return self._decide_later(search, fresh, scores)
                request.since("verify", search.started)
                return self._serve(request, scores, fresh)
            search.widen()
        request.require_capacity()
        return self._find_later(search, None)

    async def _find_later(self, search: _Search, link: Link | None) -> Response | None:
        """Find a hit as `find` does, but wait for the index, the store and the verifier. Try the link first."""
        request = search.request
        try:
            if link is not None:
                entry = await self.store.get(link.fingerprint)
                hit = None if entry is None else self._serve_link(search, link, entry)
                if hit is not None:
                    return hit
            while True:
                fresh = await self._fresh(search)
                scores = self._score(search, fresh)
                if scores is None or search.k > 1 or scores.chosen.opinion.veto is None:
                    break
                search.widen()
        except StoreUnavailable as error:
            self.telemetry.store_errors.add()
            self.telemetry.store_warnings.warn(LOG, "lookup failed", {**request.log_fields, "error": str(error)})
            return None
        return await self._decide_later(search, fresh, scores)

    async def _decide_later(
        self, search: _Search, fresh: Sequence[FreshNeighbour], scores: CandidateScores | None
    ) -> Response | None:
        """Read the pairs that the scores leave open, and return the hit. Without one, note the answers that would be
        hits if they were confirmed."""
        hit = None
        if scores is not None:
            await self._read_closely(search, scores)
            hit = self._serve(search.request, scores, fresh)
        if hit is None and search.withheld:
            await self._find_unconfirmed(search)
        return hit

    async def _read_closely(self, search: _Search, scores: CandidateScores) -> None:
        request = search.request
        reads = not self._plain and self.scorer.needs_second_opinion(scores)
        try:
            if reads:
                await self.scorer.apply_second_opinion(scores)
        finally:
            request.since("verify", search.started)
        if reads and scores.unread:
            self.telemetry.second_opinions.add(request.route, "none" if scores.second is None else "asked")

    async def _find_unconfirmed(self, search: _Search) -> None:
        """Note the answers of other clients that would be hits if they were confirmed."""
        request = search.request
        assert request.asker is not None  # else nothing is withheld
        scores = await self._score_fully(
            request.route,
            request.owner,
            search.question,
            search.embedding,
            search.withheld,
            self.index.count(request.keys.scope),
            is_part=self._is_loose and request.is_part,
        )
        unconfirmed = [judged.entry for judged in scores.judged if judged.reason is None and judged.final]
        if unconfirmed:
            self._withhold(request, request.asker, unconfirmed)

    def _withhold(self, request: RequestContext, asker: Asker, entries: Sequence[Entry]) -> None:
        asker.withhold(request, entries)
        self._record_refusal(request, Refusal.UNCONFIRMED)

    def _link_of(self, search: _Search) -> Link | None:
        """Return a link of the question whose entry may be fresh, if there is one. Return None if the question has an
        answer of its own."""
        request = search.request
        links = self.memory.links.find(request.keys.scope, search.question)
        if not links or self._may_be_fresh(request, request.keys.fingerprint):
            return None
        return next((link for link in links if self._is_followed(search, link)), None)

    def _is_followed(self, search: _Search, link: Link) -> bool:
        """Return whether the linked entry may be fresh, and nobody called it wrong for the question."""
        refuted, scope = self.memory.counterexamples.is_refuted, search.request.keys.scope
        questions = {search.question, fold_spaces(search.question)}
        if any(refuted(scope, question, link.fingerprint) for question in questions):
            return False
        return self.index.shared or self._may_be_fresh(search.request, link.fingerprint)

    def _may_be_fresh(self, request: RequestContext, fingerprint: str) -> bool:
        """Return whether an entry in memory is fresh. One that only the index has counts as fresh."""
        entry = self.store.peek(fingerprint)
        if entry is None:
            return self.index.holds(fingerprint)
        return freshness_of(entry, self.lifetime, request.directives, self.clock.wall()).fresh

    def _serve_link(self, search: _Search, link: Link, entry: Entry) -> Response | None:
        """Return the linked answer, or None if it may not be served. No score is recorded, as none was asked for."""
        request = search.request
        freshness = freshness_of(entry, self.lifetime, request.directives, self.clock.wall())
        if not _is_own(request, entry) or not freshness.fresh or self.store.banned(entry):
            return None
        if request.asker is not None and not request.asker.may_have(entry):
            self._withhold(request, request.asker, [entry])
            return None
        if self._is_refused_tool_call(request, entry):
            return None
        control, question = self.controls.of(request.route), fold_spaces(search.question)  # as the link has it
        client = _client(request)
        threshold = control.threshold(self.rule.acceptance, self.index.count(request.keys.scope), client)
        judged = Judgement(link.similarity, LINKED, threshold, 1.0, 1.0, None, entry, question, search.embedding.vector)
        request.since("search", search.started)
        judged.subjects, judged.client = request.subjects, client
        request.judged = judged
        if request.traffic is not None:
            request.traffic.considered = [judged]
        control.hit()
        self.telemetry.link_hits.add(request.route)
        self.memory.served.add(request.client.tenant, request.id, ServedHit(request.route, judged, self.embedder))
        return response_from_entry(request, entry, freshness, Verdict.SEMANTIC, link.similarity, Basis.LINK)

    def _fresh_in_memory(self, search: _Search) -> list[FreshNeighbour] | None:
        """Return the neighbours that are fresh and may serve the client, or None if index or store must be waited
        for."""
        request, wall = search.request, self.clock.wall()
        neighbours = search.neighbours = self.index.search_nowait(request.keys.scope, search.embedding.vector, search.k)
        if neighbours is None:
            return None
        fresh, expired = list[FreshNeighbour](), 0
        for neighbour in neighbours:
            if neighbour.similarity < self.floor:
                break
            entry = self.store.peek(neighbour.fingerprint)
            if entry is None or entry.scope != request.keys.scope or entry.question is None:
                search.widen()  # the store can be asked for all candidates at once
                return None
            freshness = freshness_of(entry, self.lifetime, request.directives, wall)
            if not freshness.fresh:
                expired += 1
            elif request.asker is None:
                fresh.append((entry, neighbour.similarity, freshness))
            else:
                self._add_fresh(search, fresh, (entry, neighbour.similarity, freshness))
        if expired and search.k == 1:
            search.widen()
            return self._fresh_in_memory(search)
        for _ in range(expired):
            self._record_refusal(request, Refusal.EXPIRED)
        return fresh

    async def _fresh(self, search: _Search) -> list[FreshNeighbour]:
        """Return the neighbours that are fresh, belong to this scope, and may serve the client. Remove those that are
        gone from the index. Raise `StoreUnavailable`."""
        request = search.request
        search.withheld.clear()  # the pass over the entries in memory may have found some
        try:
            if search.neighbours is None:
                search.neighbours = await self.index.search(request.keys.scope, search.embedding.vector, search.k)
            nearby = [neighbour for neighbour in search.neighbours if neighbour.similarity >= self.floor]
            entries = await self._entries(nearby)
            await self._remove_gone(request, nearby, entries)
        except BaseException:
            request.since("search", search.started)
            raise
        fresh, expired, wall = list[FreshNeighbour](), 0, self.clock.wall()
        for neighbour, entry in zip(nearby, entries, strict=True):
            if entry is None or not _is_own(request, entry):
                continue
            freshness = freshness_of(entry, self.lifetime, request.directives, wall)
            if freshness.fresh:
                self._add_fresh(search, fresh, (entry, neighbour.similarity, freshness))
            else:
                expired += 1
        if expired and search.k == 1:
            search.widen()
            return await self._fresh(search)
        for _ in range(expired):
            self._record_refusal(request, Refusal.EXPIRED)
        return fresh

    async def similar_inflight(
        self, request: RequestContext, question: str, embedding: Embedding, inflight: Sequence[InflightQuestion]
    ) -> InflightQuestion | None:
        """Return the question in flight, within the scope, whose answer would be served if it were stored now."""
        if request.asker is not None:
            inflight = [candidate for candidate in inflight if request.asker.may_have(candidate.entry)]
        if not inflight:
            return None
        similarities = np.clip(np.stack([candidate.vector for candidate in inflight]) @ embedding.vector, 0.0, 1.0)
        nearest = [int(at) for at in np.argsort(-similarities)[:MAX_CANDIDATES] if similarities[at] >= self.floor]
        if not nearest:
            return None
        nearby = [(inflight[at].entry, float(similarities[at])) for at in nearest]
        with request.timer("verify"):
            entries = self.index.count(request.keys.scope) + len(inflight)
            scores = await self._score_fully(
                request.route,
                request.owner,
                question,
                embedding,
                nearby,
                entries,
                _client(request),
                is_part=self._is_loose and request.is_part,
            )
        return None if scores.chosen.reason is not None else inflight[nearest[scores.best_index]]

    async def would_hit(
        self, route: str, owner: str, scope: str, question: str, embedding: Embedding, before: float
    ) -> bool:
        """Return whether an entry in memory from `before` (wall clock) would be served. Nothing is counted or learned.

        Raise `IndexUnavailable`.
        """
        wall, nearby = self.clock.wall(), list[tuple[Entry, float]]()
        for neighbour in await self.index.search(scope, embedding.vector, MAX_CANDIDATES):
            entry = self.store.peek(neighbour.fingerprint) if neighbour.similarity >= self.floor else None
            if entry is None or entry.scope != scope or entry.question is None or entry.created >= before:
                continue
            if freshness_of(entry, self.lifetime, NO_DIRECTIVES, wall).fresh:
                nearby.append((entry, neighbour.similarity))
        if not nearby:
            return False
        scores = await self._score_fully(route, owner, question, embedding, nearby, self.index.count(scope))
        return scores.chosen.reason is None

    async def _score_fully(
        self,
        route: str,
        owner: str,
        question: str,
        embedding: Embedding,
        nearby: Sequence[NeighbourEntry],
        entries: int,
        client: str = "",
        *,
        is_part: bool = False,
    ) -> CandidateScores:
        control = self.controls.of(route)
        scores = self.scorer.of(question, owner, embedding, nearby, control, entries, client=client, is_part=is_part)
        if self.scorer.needs_second_opinion(scores):
            await self.scorer.apply_second_opinion(scores)
        return scores

    def _add_fresh(self, search: _Search, neighbours: list[FreshNeighbour], neighbour: FreshNeighbour) -> None:
        """Add a neighbour to `neighbours`, or to those that the client may not have. Each has room for
        `MAX_CANDIDATES`, and the latter for one of each writer, so that none can take all the room."""
        entry, similarity, _ = neighbour
        asker = search.request.asker
        if asker is not None and not asker.may_have(entry):
            is_known = any(asker.is_same_writer(entry, other) for other, _ in search.withheld)
            if len(search.withheld) < MAX_CANDIDATES and not is_known:
                search.withheld.append((entry, similarity))
        elif len(neighbours) < MAX_CANDIDATES:
            neighbours.append(neighbour)

    async def _entries(self, nearby: Sequence[Neighbour]) -> Sequence[Entry | None]:
        """Return the entries. Those that are not in memory are fetched concurrently, in one round trip."""
        entries = [self.store.peek(neighbour.fingerprint) for neighbour in nearby]
        missing = [at for at, entry in enumerate(entries) if entry is None]
        if missing:
            fetched = await asyncio.gather(*(self.store.get(nearby[at].fingerprint) for at in missing))
            for at, entry in zip(missing, fetched, strict=True):
                entries[at] = entry
        return entries

    async def _remove_gone(
        self, request: RequestContext, nearby: Sequence[Neighbour], entries: Sequence[Entry | None]
    ) -> None:
        """Remove neighbours whose entry is gone from the index, which may lag behind the store."""
        for neighbour, entry in zip(nearby, entries, strict=True):
            if entry is None:
                await self.index.remove([neighbour.fingerprint])
            elif not _is_own(request, entry):
                LOG.error("the index returned a neighbour of another scope", extra={"fields": request.log_fields})
                await self.index.remove([neighbour.fingerprint])
                self._record_refusal(request, Refusal.FOREIGN)

    def _score(self, search: _Search, fresh: Sequence[FreshNeighbour]) -> CandidateScores | None:
        """Return the scores of the fresh neighbours, or None. The time since the start of the lookup is that of the
        search, and `search.started` is then the start of the verification."""
        request = search.request
        search.started = request.since("search", search.started)
        if not fresh:
            if search.neighbours and search.neighbours[0].similarity < self.floor:
                self._record_refusal(request, Refusal.SIMILARITY)
            return None
        return self.scorer.of(
            search.question,
            request.owner,
            search.embedding,
            [(entry, similarity) for entry, similarity, _ in fresh],
            self.controls.of(request.route),
            0 if self._plain else self.index.count(request.keys.scope),
            client="" if self._plain else _client(request),
            is_part=self._is_loose and request.is_part,
        )

    def _serve(
        self, request: RequestContext, scores: CandidateScores, fresh_neighbours: Sequence[FreshNeighbour]
    ) -> Response | None:
        """Record the judgement and return the hit, or None if it may not be served."""
        chosen, control = scores.judged[scores.best_index], scores.control
        if not self._plain and chosen.final and chosen.opinion.veto is None and not chosen.verbatim:
            control.record_neighbour(chosen.score, scores.entries)
        chosen.subjects = request.subjects
        request.judged = chosen
        if request.traffic is not None:
            request.traffic.considered = scores.judged
        if chosen.reason is not None:
            self._record_refusal(request, chosen.reason)
            return None
        if self.store.banned(chosen.entry):  # removed during the lookup
            return None
        call = request.call  # tested here, since most requests have no tools
        has_tools = call is not None and not TOOL_FIELDS.isdisjoint(call.body)
        if has_tools and self._is_refused_tool_call(request, chosen.entry):
            return None
        control.hit()
        self.memory.served.add(request.client.tenant, request.id, ServedHit(request.route, chosen, self.embedder))
        return response_from_entry(
            request, chosen.entry, fresh_neighbours[scores.best_index][2], Verdict.SEMANTIC, chosen.similarity
        )

    def _is_refused_tool_call(self, request: RequestContext, entry: Entry) -> bool:
        """Return whether the answer calls a tool in a way that this request or the policy does not allow."""
        if request.call is None or may_serve(self.tools, request.call, entry):
            return False
        self._record_refusal(request, Refusal.TOOL_CALL)
        return True

    def _record_refusal(self, request: RequestContext, reason: Refusal) -> None:
        request.note = reason
        self.telemetry.refusals.add(request.route, reason)


def _is_own(request: RequestContext, entry: Entry) -> bool:
    return entry.scope == request.keys.scope and entry.question is not None


def _client(request: RequestContext) -> str:
    """Return the client whose labels count in full for this request."""
    return client_of(request.client.tenant, "" if request.client.permit is None else request.client.permit.id)
