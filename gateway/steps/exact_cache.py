"""Looks up the same request in the cache, which is the cheapest way to answer. A stale answer may still be served while
a new one is fetched, or if the backend fails (RFC 5861)."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from gateway.cache.freshness import Freshness, freshness_of
from gateway.cache.hits import response_from_entry
from gateway.cache.tool_calls import ToolCallRule, may_serve
from gateway.context import Handler, RequestContext, resolve_response
from gateway.dialects.structured_answers import TOOL_FIELDS
from gateway.entries import NO_CACHE, Entry, Lifetime
from gateway.errors import BackendError, GatewayError, LimitReached, StoreUnavailable, UpstreamStreamError
from gateway.messages import Response
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Bypass, Refusal, Verdict
from gateway.ports import Clock, EagerEmbedder, NearbyStore
from gateway.statuses import is_failure
from gateway.streams import close_body, drain
from gateway.tasks import Background

LOG = logging.getLogger("nearhit.store")


class EmbeddingPrefetch:
    """Embeds a question while the store looks up the exact request.

    A semantic hit or a miss then waits for the longer of the two, not for both in turn. If the store has the answer,
    the vector is wasted (1.3 ms of CPU time). So it starts only if such hits are rare, and after some 70 lookups."""

    RARE = 0.1  # share of store lookups that find an answer: at or above it, nothing is embedded early
    WEIGHT = 1 / 32  # weight of the last lookup in that share

    def __init__(self, embedder: EagerEmbedder) -> None:
        self._embedder = embedder
        self._answered = 1.0  # share of store lookups that found an answer: a moving average

    def begin(self, request: RequestContext) -> None:
        question = None if request.call is None else request.call.focus
        if question is not None and self._answered < self.RARE:
            self._embedder.begin(question, request.owner)

    def observe(self, *, found: bool) -> None:
        """Record whether the store had the answer."""
        self._answered += self.WEIGHT * (found - self._answered)


class LeasedLookup(Protocol):
    """The lookup on a store that other gateways use. If there is no entry, it asks for the lease on the call."""

    async def get(self, request: RequestContext) -> Entry | None:
        """Return the entry, if it may be served. Raise `StoreUnavailable`."""

    def release_unused(self, request: RequestContext) -> None:
        """Release a lease under which no call was made."""


class ExactCache:
    """Serves exact hits of one route. `lacks` tells whether the store is known to lack a fingerprint; then no lookup is
    sent (docs/decisions/0002). `prefetch` is None if the route needs no vector, or its embedder is as quick as the
    store. `leased` is None if no other gateway is on the store."""

    def __init__(
        self,
        inner: Handler,
        store: NearbyStore,
        lacks: Callable[[str], bool],
        clock: Clock,
        telemetry: Telemetry,
        lifetime: Lifetime,
        tools: ToolCallRule | None,
        background: Background,
        prefetch: EmbeddingPrefetch | None = None,
        leased: LeasedLookup | None = None,
    ) -> None:
        self._inner = inner
        self._store = store
        self._lacks = lacks
        self._clock = clock
        self._telemetry = telemetry
        self._lifetime = lifetime
        self._tools = tools
        self._background = background
        self._prefetch = prefetch
        self._leased = leased

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        if request.bypass is not None:
            return self._inner(request)
        started, fingerprint = self._clock.monotonic(), request.keys.fingerprint
        entry = self._store.peek(fingerprint)
        if entry is None and not self._lacks(fingerprint):
            request.require_capacity()
            return self._look_up(request, started)
        request.since("exact", started)
        return self._inner(request) if entry is None else self._answered(request, entry)

    async def _look_up(self, request: RequestContext, started: float) -> Response:
        """Look the request up in the store."""
        if self._prefetch is not None:
            self._prefetch.begin(request)
        entry = await self._get(request)
        if self._prefetch is not None:
            self._prefetch.observe(found=entry is not None)
        request.since("exact", started)
        if entry is None:  # another request may have stored it meanwhile
            entry = self._store.peek(request.keys.fingerprint)
        try:
            return await resolve_response(self._inner(request) if entry is None else self._answered(request, entry))
        finally:
            if self._leased is not None:
                self._leased.release_unused(request)

    def _answered(self, request: RequestContext, entry: Entry) -> Response | Awaitable[Response]:
        # The key depends on the scope and the asker already; check that the entry agrees.
        if entry.scope != request.keys.scope or (request.asker is not None and not request.asker.may_have(entry)):
            return self._inner(request)
        call = request.call
        if call is not None and not TOOL_FIELDS.isdisjoint(call.body) and not may_serve(self._tools, call, entry):
            request.note = Refusal.TOOL_CALL
            self._telemetry.refusals.add(request.route, Refusal.TOOL_CALL)
            return self._inner(request)
        freshness = freshness_of(entry, self._lifetime, request.directives, self._clock.wall())
        if freshness.fresh:
            request.served = (entry, self._lifetime)
            return response_from_entry(request, entry, freshness, Verdict.EXACT)
        if freshness.stale_while_revalidate:
            if not request.client.read_only:
                self._background.start(f"refresh {request.keys.fingerprint}", self._revalidate(request))
            return response_from_entry(request, entry, freshness, Verdict.STALE)
        if freshness.stale_if_error:
            return self._stale_if_error(request, entry, freshness)
        return self._inner(request)

    async def _get(self, request: RequestContext) -> Entry | None:
        try:
            if self._leased is not None:
                return await self._leased.get(request)
            return await self._store.get(request.keys.fingerprint)
        except StoreUnavailable as error:
            self._telemetry.store_errors.add()
            request.note = Bypass.STORE
            self._telemetry.store_warnings.warn(LOG, "lookup failed", {**request.log_fields, "error": str(error)})
            return None

    async def _revalidate(self, request: RequestContext) -> None:
        """Fetch a new answer for an entry that was served stale. `StoreResponse`, an inner step, stores it."""
        refresh = request.child("refresh")
        refresh.directives, refresh.bypass = NO_CACHE, Bypass.NO_CACHE
        try:
            await drain((await resolve_response(self._inner(refresh))).body)
        except (GatewayError, UpstreamStreamError) as error:
            LOG.warning("a refresh failed", extra={"fields": {**request.log_fields, "error": str(error)}})

    async def _stale_if_error(self, request: RequestContext, entry: Entry, freshness: Freshness) -> Response:
        request.constraints = request.constraints._replace(stale_available=True)
        try:
            response = await resolve_response(self._inner(request))
        except (BackendError, LimitReached) as error:
            if self._store.banned(entry):  # removed during the backend call
                raise
            LOG.warning("served stale", extra={"fields": {**request.log_fields, "error": error.message}})
            return response_from_entry(request, entry, freshness, Verdict.STALE)
        if not is_failure(response.status) or self._store.banned(entry):
            return response
        await close_body(response.body)
        return response_from_entry(request, entry, freshness, Verdict.STALE)
