"""Lets questions go to their backend at once that nothing stored resembles. Their embedding is made behind them."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial

from gateway.cache.late_vectors import LateVectors
from gateway.cache.links import Links
from gateway.cache.screen import Screen, Screening
from gateway.context import RequestContext
from gateway.entries import Embedding, Vector
from gateway.errors import StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Refusal
from gateway.ports import Clock, VectorIndex
from gateway.steps.semantic_lookup import SemanticLookup


class RouteScreen:
    """The screen of one route."""

    def __init__(
        self,
        screen: Screen,
        late: LateVectors,
        lookup: SemanticLookup,
        links: Links,
        index: VectorIndex,
        clock: Clock,
        telemetry: Telemetry,
    ) -> None:
        self._screen = screen
        self._late = late
        self._lookup = lookup
        self._links = links
        self._index = index
        self._clock = clock
        self._telemetry = telemetry

    def read(self, request: RequestContext, question: str) -> Embedding | None:
        """Return the question's static vector, or None if the request needs the embedding itself."""
        directives = request.directives
        if directives.no_cache or directives.only_if_cached or request.traffic is not None:
            return None
        if not request.keys.scope or self._links.find(request.keys.scope, question):
            return None
        return self._screen.read(question)

    def look(self, route: str, scope: str, vector: Vector) -> Screening | Awaitable[Screening | None] | None:
        """Search the nearest stored question by a static vector. Return None if the index failed, and the lookup
        reports it."""
        try:
            screening = self._screen.look(route, scope, vector)
        except StoreUnavailable:
            return None
        return screening if isinstance(screening, Screening) else _guarded(screening)

    async def screening(self, request: RequestContext, question: str) -> Screening | None:
        """Return the decision on a question, for an explanation. Return None if the request is not screened."""
        static = self.read(request, question)
        if static is None or static.partial:
            return None
        return await self._look(request.route, request.keys.scope, static.vector)

    def let_go(self, request: RequestContext, question: str, vector: Vector) -> None:
        """Record the decision, and have the question embedded later."""
        if self._index.count(request.keys.scope):  # else there is no neighbour to refuse
            request.note = Refusal.SCREEN
            self._telemetry.refusals.add(request.route, Refusal.SCREEN)
        # Not the request: a queue of requests would keep their bodies in memory.
        check = partial(
            self._check, request.route, request.owner, request.keys.scope, question, vector, self._clock.wall()
        )
        self._late.begin(request.keys.fingerprint, request.route, request.owner, question, check)

    def observe(self, route: str, screening: Screening) -> None:
        """Follow a served hit."""
        self._screen.threshold(route).observe(screening.similarity)

    async def _check(
        self,
        route: str,
        owner: str,
        scope: str,
        question: str,
        vector: Vector,
        before: float,
        embedding: Embedding,
    ) -> None:
        """Count a hit that was lost, and let the threshold follow it. `vector` is the static one. The screen let the
        question go at `before`."""
        if await self._lookup.would_hit(route, owner, scope, question, embedding, before):
            self._telemetry.screen_lost_hits.add(route)
            # Search again: perhaps the neighbour's own vector came late, and the threshold is not to blame.
            screening = await self._look(route, scope, vector)
            if screening is not None:
                self.observe(route, screening)

    async def _look(self, route: str, scope: str, vector: Vector) -> Screening | None:
        screening = self.look(route, scope, vector)
        return screening if screening is None or isinstance(screening, Screening) else await screening


async def _guarded(pending: Awaitable[Screening]) -> Screening | None:
    try:
        return await pending
    except StoreUnavailable:
        return None
