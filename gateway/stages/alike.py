"""Waits for the answer to the same question in other words, where that is on its way and the policy allows it."""

from __future__ import annotations

import asyncio

from gateway.flights.aloft import Aloft, Question
from gateway.flights.unstorable import Unstorable
from gateway.flow import with_end
from gateway.messages import Request, Response
from gateway.observing.telemetry import Telemetry
from gateway.pipeline import Handler
from gateway.ports import Clock
from gateway.routing.budget import patience_s
from gateway.stages.semantic_lookup import SemanticLookup


class Alike:
    """Stands just within the semantic lookup, which judges a question in flight as if its answer were stored already,
    and serves it once it is. Nobody waits twice: who finds nothing then flies alone."""

    def __init__(
        self, lookup: SemanticLookup, aloft: Aloft, unstorable: Unstorable, clock: Clock, telemetry: Telemetry
    ) -> None:
        self._lookup = lookup
        self._aloft = aloft
        self._unstorable = unstorable
        self._clock = clock
        self._telemetry = telemetry

    async def __call__(self, request: Request, forward: Handler) -> Response:
        embedding, directives = request.embedding, request.directives
        if embedding is None or embedding.partial or directives.no_cache or directives.only_if_cached:
            return await forward(request)
        if not request.scope or request.fingerprint in self._unstorable:
            return await forward(request)
        other = await self._lookup.alike(request, self._aloft.within(request.scope))
        if other is not None and await self._landed(request, other):
            hit = await self._lookup.stored(request)
            if hit is not None:
                self._telemetry.crowds.add("followed-alike")
                return hit
        question = self._aloft.add(request, embedding.vector)
        if question is None:
            return await forward(request)
        try:
            response = await forward(request)
        except BaseException:
            self._aloft.land(question)
            raise
        return with_end(response, lambda: self._aloft.land(question))

    async def _landed(self, request: Request, other: Question) -> bool:
        self._telemetry.crowds.add("waits-alike")
        with request.trace.span("wait"):
            try:
                async with asyncio.timeout(patience_s(request, self._clock.monotonic())):
                    await asyncio.shield(other.landed)
            except TimeoutError:
                self._telemetry.crowds.add("in-vain")
                return False
        return True
