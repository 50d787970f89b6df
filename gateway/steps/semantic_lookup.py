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
from gateway.cache.tool_calls import may_serve
from gateway.config.policy.model import AdmissionRules, Semantic
from gateway.context import RequestContext
from gateway.dialects.structured_answers import TOOL_FIELDS
from gateway.errors import StoreUnavailable
from gateway.messages import (
    NO_DIRECTIVES,
    Basis,
    Embedding,
    Entry,
    Lifetime,
    Neighbour,
    Refusal,
    Response,
    Verdict,
)
from gateway.observability.telemetry import Telemetry
from gateway.ports import LINKED, Clock, Judgement, NearbyStore, VectorIndex
from gateway.steps.feedback import FeedbackState
from gateway.text_forms import fold_spaces
from gateway.trust import same_writer

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
    # The nearest fresh neighbours that the client may not have before they are confirmed.
    withheld: list[NeighbourEntry] = field(default_factory=list)


class SemanticLookup:
    """Looks up semantic hits for one route. `embedder`: the fingerprint of the embedding model."""

    def __init__(
        self,
        index: VectorIndex,
        store: NearbyStore,
        scorer: CandidateScorer,
        controls: Controls,
        clock: Clock,
        telemetry: Telemetry,
        rule: Semantic,
        admission: AdmissionRules,
        lifetime: Lifetime,
        memory: FeedbackState,
        *,
        floor: float,
        embedder: str,
    ) -> None:
        self._index = index
        self._store = store
        self._scorer = scorer
        self._controls = controls
        self._clock = clock
        self._telemetry = telemetry
        self._acceptance = rule.acceptance
        self._admission = admission
        self._plain = rule.acceptance.min_similarity is not None
        self._is_loose = (rule.acceptance.max_wrong_hits or 0.0) > MOST_WRONG_OF_PARTS
        self._lifetime = lifetime
        self._memory = memory
        self._floor = floor
        self._embedder = embedder

    def find(
        self, request: RequestContext, question: str, embedding: Embedding
    ) -> Response | Awaitable[Response | None] | None:
        """Return a hit; None: no answer may be served. The result is awaitable if the index, the store or the verifier
        has to be waited for. `embedding` covers the whole question."""
        if not request.scope or request.directives.no_cache:
            return None
        # With a plain threshold the nearest neighbour is the best. The others are searched only for the traffic log,
        # or if the nearest one cannot be used (`_widen`).
        k = 1 if self._plain and request.facts is None else MAX_CANDIDATES
        if request.asker is not None:
            k = MAX_UNTRUSTED
        search = _Search(request, question, embedding, self._clock.monotonic(), k)
        # A plain threshold is the operator's word: nothing is served below it, not even by a link.
        link = None if self._plain else self._link_of(search)
        found = self._start_search(search) if link is None else self._follow(search, link)
        return found if request.asker is None else self._find_unconfirmed(search, found)

    async def _find_unconfirmed(
        self, search: _Search, found: Response | Awaitable[Response | None] | None
    ) -> Response | None:
        """Return what was found. If it is nothing, note the answers that would be hits if they were confirmed."""
        hit = found if found is None or isinstance(found, Response) else await found
        request, withheld = search.request, search.withheld
        if hit is not None or not withheld:
            return hit
        entries = self._index.count(request.scope)
        scores = await self._score_fully(
            request.route,
            request.owner,
            search.question,
            search.embedding,
            withheld,
            entries,
            is_part=self._is_loose and request.is_part,
        )
        unconfirmed = [judged.entry for judged in scores.judged if judged.reason is None and judged.final]
        if unconfirmed:
            self._withhold(request, unconfirmed)
        return None

    def _withhold(self, request: RequestContext, entries: Sequence[Entry]) -> None:
        request.to_confirm = entries
        self._record_refusal(request, Refusal.UNCONFIRMED)

    def _link_of(self, search: _Search) -> Link | None:
        """Return a link of the question whose entry may be fresh; None: there is none, or the question has an answer of
        its own."""
        request = search.request
        links = self._memory.links.find(request.scope, search.question)
        if not links or self._may_be_fresh(request, request.fingerprint):
            return None
        return next((link for link in links if self._is_followed(search, link)), None)

    def _is_followed(self, search: _Search, link: Link) -> bool:
        """Return whether the linked entry may be fresh, and nobody called it wrong for the question."""
        refuted, scope = self._memory.counterexamples.is_refuted, search.request.scope
        questions = {search.question, fold_spaces(search.question)}
        if any(refuted(scope, question, link.fingerprint) for question in questions):
            return False
        return self._index.shared or self._may_be_fresh(search.request, link.fingerprint)

    def _may_be_fresh(self, request: RequestContext, fingerprint: str) -> bool:
        """Return whether an entry in memory is fresh. One that only the index has counts as fresh."""
        entry = self._store.peek(fingerprint)
        if entry is None:
            return self._index.holds(fingerprint)
        return freshness_of(entry, self._lifetime, request.directives, self._clock.wall()).fresh

    def _follow(self, search: _Search, link: Link) -> Response | Awaitable[Response | None] | None:
        """Return the linked answer. If it cannot be served, search."""
        entry = self._store.peek(link.fingerprint)
        if entry is None:
            search.request.require_capacity()
            return self._follow_into_store(search, link)
        hit = self._serve_link(search, link, entry)
        return self._start_search(search) if hit is None else hit

    async def _follow_into_store(self, search: _Search, link: Link) -> Response | None:
        try:
            entry = await self._store.get(link.fingerprint)
        except StoreUnavailable as error:
            self._record_failure(search.request, error)
            return None
        hit = None if entry is None else self._serve_link(search, link, entry)
        if hit is not None:
            return hit
        found = self._start_search(search)
        return found if found is None or isinstance(found, Response) else await found

    def _serve_link(self, search: _Search, link: Link, entry: Entry) -> Response | None:
        """Return the linked answer; None: it may not be served. No score is recorded, as none was asked for."""
        request = search.request
        freshness = freshness_of(entry, self._lifetime, request.directives, self._clock.wall())
        if not _is_own(request, entry) or not freshness.fresh or self._store.banned(entry):
            return None
        if request.asker is not None and not request.asker.may_have(entry):
            self._withhold(request, [entry])
            return None
        if self._is_refused_tool_call(request, entry):
            return None
        control, question = self._controls.of(request.route), fold_spaces(search.question)  # as the link has it
        client = _client(request)
        threshold = control.threshold(self._acceptance, self._index.count(request.scope), client)
        judged = Judgement(link.similarity, LINKED, threshold, 1.0, 1.0, None, entry, question, search.embedding.vector)
        request.since("search", search.started)
        judged.subjects, judged.client = request.subjects, client
        request.considered, request.judged = [judged], judged
        control.hit()
        self._telemetry.link_hits.add(request.route)
        self._memory.served.add(request.tenant, request.id, ServedHit(request.route, judged, self._embedder))
        return response_from_entry(request, entry, freshness, Verdict.SEMANTIC, link.similarity, Basis.LINK)

    def _start_search(self, search: _Search) -> Response | Awaitable[Response | None] | None:
        request = search.request
        neighbours = self._index.search_nowait(request.scope, search.embedding.vector, search.k)
        if neighbours is None:
            request.require_capacity()
            return self._search_guarded(search, None)
        fresh_neighbours: list[FreshNeighbour] = []
        wall, directives, lifetime = self._clock.wall(), request.directives, self._lifetime
        for neighbour in neighbours:  # the most similar first
            if neighbour.similarity < self._floor:
                break
            entry = self._store.peek(neighbour.fingerprint)
            if entry is None or entry.scope != request.scope or entry.question is None:
                request.require_capacity()
                return self._search_guarded(search, self._all_neighbours(search, neighbours))
            freshness = freshness_of(entry, lifetime, directives, wall)
            if freshness.fresh and request.asker is None:
                fresh_neighbours.append((entry, neighbour.similarity, freshness))
            elif freshness.fresh:
                self._add_fresh(search, fresh_neighbours, (entry, neighbour.similarity, freshness))
            elif search.k > 1:
                self._record_refusal(request, Refusal.EXPIRED)
            else:
                return self._widen(search)
        return self._score(search, neighbours, fresh_neighbours)

    def _all_neighbours(self, search: _Search, neighbours: Sequence[Neighbour]) -> Sequence[Neighbour] | None:
        """Return all candidates: if the store has to be waited for anyway, it is asked for all of them at once."""
        if search.k >= MAX_CANDIDATES:
            return neighbours
        search.k = MAX_CANDIDATES
        return self._index.search_nowait(search.request.scope, search.embedding.vector, search.k)

    def _widen(self, search: _Search) -> Response | Awaitable[Response | None] | None:
        """Search again for all candidates: the nearest one cannot be used."""
        search.k = MAX_CANDIDATES
        return self._start_search(search)

    async def similar_inflight(
        self, request: RequestContext, question: str, embedding: Embedding, inflight: Sequence[InflightQuestion]
    ) -> InflightQuestion | None:
        """Return the question in flight, within the scope, whose answer would be served if it were stored now."""
        if request.asker is not None:
            inflight = [candidate for candidate in inflight if request.asker.may_have(candidate.entry)]
        if not inflight:
            return None
        similarities = np.clip(np.stack([candidate.vector for candidate in inflight]) @ embedding.vector, 0.0, 1.0)
        nearest = [int(at) for at in np.argsort(-similarities)[:MAX_CANDIDATES] if similarities[at] >= self._floor]
        if not nearest:
            return None
        nearby = [(inflight[at].entry, float(similarities[at])) for at in nearest]
        with request.timer("verify"):
            entries = self._index.count(request.scope) + len(inflight)
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
        wall, nearby = self._clock.wall(), list[tuple[Entry, float]]()
        for neighbour in await self._index.search(scope, embedding.vector, MAX_CANDIDATES):
            entry = self._store.peek(neighbour.fingerprint) if neighbour.similarity >= self._floor else None
            if entry is None or entry.scope != scope or entry.question is None or entry.created >= before:
                continue
            if freshness_of(entry, self._lifetime, NO_DIRECTIVES, wall).fresh:
                nearby.append((entry, neighbour.similarity))
        if not nearby:
            return False
        scores = await self._score_fully(route, owner, question, embedding, nearby, self._index.count(scope))
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
        control = self._controls.of(route)
        scores = self._scorer.of(question, owner, embedding, nearby, control, entries, client=client, is_part=is_part)
        if self._scorer.needs_second_opinion(scores):
            await self._scorer.apply_second_opinion(scores)
        return scores

    async def _search_guarded(self, search: _Search, neighbours: Sequence[Neighbour] | None) -> Response | None:
        """Search when the index or the store has to be waited for; None if the store fails."""
        try:
            return await self._search_and_score(search, neighbours)
        except StoreUnavailable as error:
            self._record_failure(search.request, error)
            return None

    def _record_failure(self, request: RequestContext, error: StoreUnavailable) -> None:
        self._telemetry.store_errors.add()
        self._telemetry.store_warnings.warn(LOG, "lookup failed", {**request.log_fields, "error": str(error)})

    async def _search_and_score(self, search: _Search, neighbours: Sequence[Neighbour] | None) -> Response | None:
        request = search.request
        try:
            if neighbours is None:
                neighbours = await self._index.search(request.scope, search.embedding.vector, search.k)
            nearby = [neighbour for neighbour in neighbours if neighbour.similarity >= self._floor]
            entries = await self._entries(nearby)
            await self._remove_gone(request, nearby, entries)
        except BaseException:
            request.since("search", search.started)
            raise
        answer = self._score(search, neighbours, self._fresh(search, nearby, entries))
        return answer if answer is None or isinstance(answer, Response) else await answer

    def _fresh(
        self, search: _Search, nearby: Sequence[Neighbour], entries: Sequence[Entry | None]
    ) -> list[FreshNeighbour]:
        """Return the neighbours that are fresh, belong to this scope, and may serve the client."""
        request = search.request
        search.withheld.clear()  # a first pass over the entries in memory may have found some
        fresh_neighbours: list[FreshNeighbour] = []
        wall = self._clock.wall()
        for neighbour, entry in zip(nearby, entries, strict=True):
            if entry is None or not _is_own(request, entry):
                continue
            freshness = freshness_of(entry, self._lifetime, request.directives, wall)
            if freshness.fresh:
                self._add_fresh(search, fresh_neighbours, (entry, neighbour.similarity, freshness))
            else:
                self._record_refusal(request, Refusal.EXPIRED)
        return fresh_neighbours

    def _add_fresh(self, search: _Search, found: list[FreshNeighbour], neighbour: FreshNeighbour) -> None:
        """Add a neighbour to `found`, or to those that the client may not have. Each has room for `MAX_CANDIDATES`, and
        the latter for one of each writer, so that none can take all the room."""
        entry, similarity, _ = neighbour
        asker = search.request.asker
        if asker is not None and not asker.may_have(entry):
            known = any(same_writer(entry, other) for other, _ in search.withheld)
            if len(search.withheld) < MAX_CANDIDATES and not known:
                search.withheld.append((entry, similarity))
        elif len(found) < MAX_CANDIDATES:
            found.append(neighbour)

    async def _entries(self, nearby: Sequence[Neighbour]) -> Sequence[Entry | None]:
        """Return the entries. Those that are not in memory are fetched concurrently, in one round trip."""
        entries = [self._store.peek(neighbour.fingerprint) for neighbour in nearby]
        missing = [at for at, entry in enumerate(entries) if entry is None]
        if missing:
            fetched = await asyncio.gather(*(self._store.get(nearby[at].fingerprint) for at in missing))
            for at, entry in zip(missing, fetched, strict=True):
                entries[at] = entry
        return entries

    async def _remove_gone(
        self, request: RequestContext, nearby: Sequence[Neighbour], entries: Sequence[Entry | None]
    ) -> None:
        """Remove neighbours whose entry is gone from the index, which may lag behind the store."""
        for neighbour, entry in zip(nearby, entries, strict=True):
            if entry is None:
                await self._index.remove([neighbour.fingerprint])
            elif not _is_own(request, entry):
                LOG.error("the index returned a neighbour of another scope", extra={"fields": request.log_fields})
                await self._index.remove([neighbour.fingerprint])
                self._record_refusal(request, Refusal.FOREIGN)

    def _score(
        self, search: _Search, neighbours: Sequence[Neighbour], fresh_neighbours: Sequence[FreshNeighbour]
    ) -> Response | Awaitable[Response | None] | None:
        request = search.request
        started = request.since("search", search.started)
        if not fresh_neighbours:
            if neighbours and neighbours[0].similarity < self._floor:
                self._record_refusal(request, Refusal.SIMILARITY)
            return None
        nearby = [(entry, similarity) for entry, similarity, _ in fresh_neighbours]
        control, entries = self._controls.of(request.route), 0 if self._plain else self._index.count(request.scope)
        client = "" if self._plain else _client(request)
        scores = self._scorer.of(
            search.question,
            request.owner,
            search.embedding,
            nearby,
            control,
            entries,
            client=client,
            is_part=self._is_loose and request.is_part,
        )
        if search.k == 1 and scores.chosen.opinion.veto is not None:
            return self._widen(search)
        if not self._plain and self._scorer.needs_second_opinion(scores):
            return self._score_closely(request, scores, fresh_neighbours, started)
        request.since("verify", started)
        return self._serve(request, scores, fresh_neighbours)

    async def _score_closely(
        self,
        request: RequestContext,
        scores: CandidateScores,
        fresh_neighbours: Sequence[FreshNeighbour],
        started: float,
    ) -> Response | None:
        try:
            await self._scorer.apply_second_opinion(scores)
        finally:
            request.since("verify", started)
        if scores.unread:
            self._telemetry.second_opinions.add(request.route, "none" if scores.second is None else "asked")
        return self._serve(request, scores, fresh_neighbours)

    def _serve(
        self, request: RequestContext, scores: CandidateScores, fresh_neighbours: Sequence[FreshNeighbour]
    ) -> Response | None:
        """Record the judgement and return the hit; None: it may not be served."""
        chosen, control = scores.judged[scores.best_index], scores.control
        if not self._plain and chosen.final and chosen.opinion.veto is None and not chosen.verbatim:
            control.record_neighbour(chosen.score, scores.entries)
        chosen.subjects = request.subjects
        request.considered, request.judged = scores.judged, chosen
        if chosen.reason is not None:
            self._record_refusal(request, chosen.reason)
            return None
        if self._store.banned(chosen.entry):  # removed during the lookup
            return None
        call = request.call  # tested here, since most requests have no tools
        has_tools = call is not None and not TOOL_FIELDS.isdisjoint(call.body)
        if has_tools and self._is_refused_tool_call(request, chosen.entry):
            return None
        control.hit()
        self._memory.served.add(request.tenant, request.id, ServedHit(request.route, chosen, self._embedder))
        return response_from_entry(
            request, chosen.entry, fresh_neighbours[scores.best_index][2], Verdict.SEMANTIC, chosen.similarity
        )

    def _is_refused_tool_call(self, request: RequestContext, entry: Entry) -> bool:
        """Return whether the answer calls a tool in a way that this request or the policy does not allow."""
        if request.call is None or may_serve(self._admission, request.call, entry):
            return False
        self._record_refusal(request, Refusal.TOOL_CALL)
        return True

    def _record_refusal(self, request: RequestContext, reason: Refusal) -> None:
        request.note = reason
        self._telemetry.refusals.add(request.route, reason)


def _is_own(request: RequestContext, entry: Entry) -> bool:
    return entry.scope == request.scope and entry.question is not None


def _client(request: RequestContext) -> str:
    """Return the client whose labels count in full for this request."""
    return client_of(request.tenant, "" if request.permit is None else request.permit.id)
