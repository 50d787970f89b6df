"""Tells at once that nothing stored resembles a question, before the question is embedded.

A static vector (gateway/adapters/onnx/static_encoder.py) searches the index of real vectors. If even its nearest
neighbour is far away, a lookup with the real vector would nearly always find nothing to serve either. The threshold
follows the hits of the route, so that few are lost (docs/decisions/0056-screen.md). Such a question goes to its backend
at once, and is embedded behind the request.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from gateway.adapters.onnx.model_files import ModelCorrupt, ModelMissing, model_dir_of
from gateway.adapters.onnx.static_encoder import StaticEncoder
from gateway.cache.screening import RouteScreen, ScreenedRoute, Screening
from gateway.config.schema import EmbeddingModel
from gateway.context import RequestContext
from gateway.entries import Embedding, Neighbour, Vector
from gateway.errors import StoreUnavailable
from gateway.features.screen.threshold import ScreenThreshold
from gateway.outcomes import Refusal
from gateway.ports import VectorIndex

LOG = logging.getLogger("nearhit.semantic")


def open_screen(section: EmbeddingModel, index: VectorIndex) -> Screen | None:
    """Build the screen of a space, or return None if its model has no static vectors, so that every question is
    embedded at once."""
    try:
        return Screen(StaticEncoder(model_dir_of(section)), index)
    except (ModelMissing, ModelCorrupt) as error:
        LOG.warning("no question is sent on before it is embedded", extra={"fields": {"error": str(error)}})
        return None


class TextReader(Protocol):
    def encode(self, text: str) -> Embedding | None:
        """Return a static vector within microseconds, or None if no token has a meaning."""


class Screen:
    """`Screen` reads the questions of all routes of a space, and searches the index of the space."""

    def __init__(self, reader: TextReader, index: VectorIndex) -> None:
        self._reader = reader
        self.index = index
        self._thresholds: dict[str, ScreenThreshold] = {}

    def of_route(self, parts: ScreenedRoute) -> RouteScreen:
        return ScreenOfRoute(self, parts)

    def threshold(self, route: str) -> ScreenThreshold:
        """Return the threshold of a route. It outlives a change of the policy."""
        threshold = self._thresholds.get(route)
        if threshold is None:  # not `setdefault`: a new threshold computes its prior, some 30 us
            threshold = self._thresholds[route] = ScreenThreshold()
        return threshold

    def read(self, question: str) -> Embedding | None:
        """Return the static vector. `partial` is that of the real one. Return None if no token has a meaning."""
        return self._reader.encode(question)

    def look(self, route: str, scope: str, vector: Vector) -> Screening | Awaitable[Screening]:
        """Search the nearest stored question by a static vector. The result is awaitable if the index is large.

        Raise `IndexUnavailable`.
        """
        neighbours = self.index.search_nowait(scope, vector, 1)
        return self._search(route, scope, vector) if neighbours is None else self._screening(route, neighbours)

    async def _search(self, route: str, scope: str, vector: Vector) -> Screening:
        return self._screening(route, await self.index.search(scope, vector, 1))

    def _screening(self, route: str, neighbours: list[Neighbour]) -> Screening:
        return Screening(neighbours[0].similarity if neighbours else 0.0, self.threshold(route).value)


@dataclass(frozen=True, slots=True)
class ScreenOfRoute:
    """The screen of one route."""

    screen: Screen
    parts: ScreenedRoute

    def read(self, request: RequestContext, question: str) -> Embedding | None:
        """Return the question's static vector, or None if the request needs the embedding itself."""
        directives = request.directives
        if directives.no_cache or directives.only_if_cached or request.traffic is not None:
            return None
        if not request.keys.scope or self.parts.links.find(request.keys.scope, question):
            return None
        return self.screen.read(question)

    def look(self, route: str, scope: str, vector: Vector) -> Screening | Awaitable[Screening | None] | None:
        """Search the nearest stored question by a static vector. Return None if the index failed, and the lookup
        reports it."""
        try:
            screening = self.screen.look(route, scope, vector)
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
        if self.screen.index.count(request.keys.scope):  # else there is no neighbour to refuse
            request.note = Refusal.SCREEN
            self.parts.telemetry.refusals.add(request.route, Refusal.SCREEN)
        # Not the request: a queue of requests would keep their bodies in memory.
        check = partial(
            self._check, request.route, request.owner, request.keys.scope, question, vector, self.parts.clock.wall()
        )
        self.parts.late.begin(request.keys.fingerprint, request.route, request.owner, question, check)

    def observe(self, route: str, screening: Screening) -> None:
        """Follow a served hit."""
        self.screen.threshold(route).observe(screening.similarity)

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
        if await self.parts.would_hit(route, owner, scope, question, embedding, before):
            self.parts.telemetry.screen_lost_hits.add(route)
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
