"""The cheapest answer first: has this very request been answered?"""

from __future__ import annotations

import logging
from dataclasses import replace

from gateway.cache.freshness import Freshness, freshness_of
from gateway.cache.hits import answer_from
from gateway.errors import StoreUnavailable
from gateway.messages import Bypass, Entry, Request, Response, Verdict
from gateway.pipeline import Handler
from gateway.ports import Clock, NearStore
from gateway.telemetry import Telemetry

LOG = logging.getLogger("nearhit.store")


class ExactLookup:
    """`ttl_s` is None where the route has its exact cache off; the stage still heeds the client's directives."""

    def __init__(self, store: NearStore, clock: Clock, telemetry: Telemetry, ttl_s: float | None) -> None:
        self._front = store
        self._clock = clock
        self._telemetry = telemetry
        self._ttl_s = ttl_s

    async def __call__(self, request: Request, forward: Handler) -> Response:
        directives = request.directives
        if directives.no_store:
            return _bypassed(await forward(request), Bypass.NO_STORE)
        if directives.no_cache:
            return _bypassed(await forward(request), Bypass.NO_CACHE)
        if self._ttl_s is not None:
            with request.trace.span("exact"):
                found = await self._find(request)
            if found is not None:
                entry, freshness = found
                request.trace.served = (entry, self._ttl_s)
                return answer_from(entry, freshness, Verdict.EXACT)
        return await forward(request)

    def at_hand(self, request: Request) -> Response | None:
        """The answer if it is in process memory."""
        entry = self._front.peek(request.fingerprint) if self._ttl_s is not None else None
        freshness = self._fresh(request, entry)
        return None if entry is None or freshness is None else answer_from(entry, freshness, Verdict.EXACT)

    async def _find(self, request: Request) -> tuple[Entry, Freshness] | None:
        try:
            entry = await self._front.get(request.fingerprint)
        except StoreUnavailable as error:
            self._telemetry.store_errors.add()
            request.trace.note = Bypass.STORE
            LOG.warning("lookup failed", extra={"fields": {"id": request.id, "error": str(error)}})
            return None
        freshness = self._fresh(request, entry)
        return None if entry is None or freshness is None else (entry, freshness)

    def _fresh(self, request: Request, entry: Entry | None) -> Freshness | None:
        # Whose it is was decided by the key; that the record agrees is checked all the same.
        if entry is None or self._ttl_s is None or entry.scope != request.scope:
            return None
        freshness = freshness_of(entry, self._ttl_s, request.directives, self._clock.wall())
        return freshness if freshness.fresh else None


def _bypassed(response: Response, reason: Bypass) -> Response:
    provenance = replace(response.provenance, verdict=Verdict.BYPASS, reason=reason)
    return replace(response, provenance=provenance)
