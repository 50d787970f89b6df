"""The cheapest answer first: has this very request been answered? What is no longer fresh may still do, while a new
answer is fetched or where none can be had (RFC 5861)."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace

from gateway.background import Background
from gateway.bodies import close_body, drain
from gateway.cache.directives import bypass_of
from gateway.cache.freshness import FAILED, Freshness, Lifetime, freshness_of
from gateway.cache.hits import answer_from
from gateway.errors import BackendError, LimitReached, Refused, StoreUnavailable, StreamBroken
from gateway.messages import Asked, Bypass, CacheDirectives, Entry, Request, Response, Verdict
from gateway.observing.telemetry import Telemetry
from gateway.pipeline import Handler
from gateway.ports import Clock, NearStore

LOG = logging.getLogger("nearhit.store")
Same = tuple[Entry, Freshness]


class ExactLookup:
    """`lifetime` is None where the route has its exact cache off; the stage still heeds the client's directives.
    `lacks` says what the store is known not to have: it is not asked for that (docs/decisions/0042)."""

    def __init__(
        self,
        store: NearStore,
        lacks: Callable[[str], bool],
        clock: Clock,
        telemetry: Telemetry,
        lifetime: Lifetime | None,
        background: Background,
    ) -> None:
        self._front = store
        self._lacks = lacks
        self._clock = clock
        self._telemetry = telemetry
        self.lifetime = lifetime
        self._background = background

    async def __call__(self, request: Request, forward: Handler) -> Response:
        directives, call = request.directives, request.call
        bypass = bypass_of(None if call is None else call.uncached, directives)
        if bypass is not None:
            return _bypassed(await forward(request), bypass)
        if self.lifetime is None:
            return await forward(request)
        with request.trace.span("exact"):
            entry = self._front.peek(request.fingerprint)
            if entry is None and not self._lacks(request.fingerprint):
                entry = await self._find(request)
        if entry is None or not _own(entry, request):
            return await forward(request)
        freshness = freshness_of(entry, self.lifetime, directives, self._clock.wall())
        if freshness.fresh:
            request.trace.served = (entry, self.lifetime)
            return answer_from(request, entry, freshness, Verdict.EXACT)
        if freshness.revalidate:
            self._background.start(f"refresh {request.fingerprint}", self._refresh(request, forward))
            return answer_from(request, entry, freshness, Verdict.STALE)
        if freshness.on_error:
            return await self._unless_it_fails(request, forward, entry, freshness)
        return await forward(request)

    def beforehand(self, asked: Asked) -> Same | bool:
        """As `at_hand`, for who asks before the stages are; else whether it is known that there is nothing to be
        found, so that nobody need look here."""
        if self.lifetime is None:
            return True
        entry = self._front.peek(asked.fingerprint)
        if entry is None:
            return self._lacks(asked.fingerprint)
        return self._fresh(asked, entry, self.lifetime) or False

    def at_hand(self, asked: Asked) -> Same | None:
        """The answer if it is in process memory, and fresh."""
        if self.lifetime is None:
            return None
        entry = self._front.peek(asked.fingerprint)
        return None if entry is None else self._fresh(asked, entry, self.lifetime)

    def _fresh(self, asked: Asked, entry: Entry, lifetime: Lifetime) -> Same | None:
        if not _own(entry, asked):
            return None
        freshness = freshness_of(entry, lifetime, asked.directives, self._clock.wall())
        return (entry, freshness) if freshness.fresh else None

    async def _find(self, request: Request) -> Entry | None:
        try:
            return await self._front.get(request.fingerprint)
        except StoreUnavailable as error:
            self._telemetry.store_errors.add()
            request.trace.note = Bypass.STORE
            self._telemetry.store_warnings.warn(LOG, "lookup failed", {**request.named, "error": str(error)})
            return None

    async def _refresh(self, request: Request, forward: Handler) -> None:
        """A new answer for an entry that has been served stale; `Admit`, further in, stores it."""
        anew = replace(request, directives=CacheDirectives(no_cache=True), trace=request.trace.apart("refresh"))
        try:
            await drain((await forward(anew)).body)
        except (Refused, StreamBroken) as error:
            LOG.warning("a refresh failed", extra={"fields": {**request.named, "error": str(error)}})

    async def _unless_it_fails(
        self, request: Request, forward: Handler, entry: Entry, freshness: Freshness
    ) -> Response:
        try:
            response = await forward(replace(request, stale_at_hand=True))
        except (BackendError, LimitReached) as error:
            if self._front.banned(entry):  # removed while the backend was asked
                raise
            LOG.warning("served stale", extra={"fields": {**request.named, "error": error.message}})
            return answer_from(request, entry, freshness, Verdict.STALE)
        if response.status not in FAILED or self._front.banned(entry):
            return response
        await close_body(response.body)
        return answer_from(request, entry, freshness, Verdict.STALE)


def _own(entry: Entry, request: Request | Asked) -> bool:
    """Whose it is was decided by the key; that the record agrees is checked all the same."""
    return entry.scope == request.scope


def _bypassed(response: Response, reason: Bypass) -> Response:
    provenance = replace(response.provenance, verdict=Verdict.BYPASS, reason=reason)
    return replace(response, provenance=provenance)
