"""Makes one call for all gateways that share a store. The gateway that gets the lease calls the backend; the others
wait for its answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, replace

from gateway.cache.admission import HitForMiss
from gateway.cache.freshness import freshness_of
from gateway.cache.hits import response_from_entry
from gateway.cache.placement import Placement
from gateway.context import Handler, RequestContext, resolve_response
from gateway.entries import Entry, Lifetime
from gateway.errors import StoreUnavailable
from gateway.features.replicas.cluster_leases import ClusterLeases
from gateway.messages import Provenance, Response
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Bypass, Verdict
from gateway.ports import Claim, Clock, NearbyStore
from gateway.request_fields import Lease
from gateway.routing.budget import max_wait_s
from gateway.streams import with_completion

# A holder may die. If the next one also ends without an answer, waiting for a third would only queue up requests.
MAX_HOLDERS = 2


class LeaseLookup:
    """Looks a request up in the store. If there is no entry, the store grants the lease in the same round trip, which
    `ClusterLease` then need not ask for."""

    def __init__(
        self, leases: ClusterLeases, store: NearbyStore, unstorable: HitForMiss, placement: Placement | None
    ) -> None:
        self._leases = leases
        self._store = store
        self._unstorable = unstorable
        self._placement = placement

    async def get(self, request: RequestContext) -> Entry | None:
        """Return the entry, if it may be served. Raise `StoreUnavailable`."""
        if not _is_leased(request, self._unstorable, self._placement):
            return await self._store.get(request.keys.fingerprint)
        reply = await self._leases.look_up(request.keys.fingerprint)
        if isinstance(reply, Entry):
            return self._store.admit(reply)
        request.lease = Lease(reply)
        return None

    def release_unused(self, request: RequestContext) -> None:
        """Release a lease under which no call was made."""
        claim = _take_claim(request)
        if claim is not None and claim.token:
            self._leases.release(request.keys.fingerprint, claim.token)


def _take_claim(request: RequestContext) -> Claim | None:
    """Return the store's reply about the lease, for a step that uses it."""
    lease = request.lease
    if lease is None:
        return None
    claim, lease.claim = lease.claim, None
    return claim


def _is_written(write: asyncio.Task[bool]) -> bool:
    return not write.cancelled() and write.exception() is None and write.result()


def _is_leased(request: RequestContext, unstorable: HitForMiss, placement: Placement | None) -> bool:
    """Return whether a call for the request is made under a lease."""
    if not request.keys.fingerprint or request.directives.no_cache or request.directives.only_if_cached:
        return False
    if placement is not None and placement.applies(request):  # the lease does not cover the keys of its answer
        return False
    # the answer is not or may not be stored, or the store has just failed
    return not request.client.read_only and request.keys.fingerprint not in unstorable and request.note != Bypass.STORE


@dataclass(frozen=True, slots=True)
class RouteLeasing:
    """The leases of a gateway, for the steps of its routes."""

    leases: ClusterLeases
    telemetry: Telemetry

    def lookup(self, store: NearbyStore, unstorable: HitForMiss, placement: Placement | None) -> LeaseLookup:
        return LeaseLookup(self.leases, store, unstorable, placement)

    def step(
        self,
        inner: Handler,
        store: NearbyStore,
        clock: Clock,
        unstorable: HitForMiss,
        lifetime: Lifetime,
        placement: Placement | None,
        *,
        exact: bool,
    ) -> Handler:
        return ClusterLease(
            inner, self.leases, store, clock, self.telemetry, unstorable, lifetime, placement, exact=exact
        ).__call__


class ClusterLease:
    """Sits just outside `StoreResponse`, whose put ends the lease. `lifetime` decides whether a stored answer is fresh.
    With `exact` it may also serve an answer that the request did not wait for, like the exact cache."""

    def __init__(
        self,
        inner: Handler,
        leases: ClusterLeases,
        store: NearbyStore,
        clock: Clock,
        telemetry: Telemetry,
        unstorable: HitForMiss,
        lifetime: Lifetime,
        placement: Placement | None,
        *,
        exact: bool,
    ) -> None:
        self._inner = inner
        self._placement = placement
        self._leases = leases
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._unstorable = unstorable
        self._lifetime = lifetime
        self._exact = exact

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        if not _is_leased(request, self._unstorable, self._placement):
            return self._inner(request)
        request.require_capacity()
        return self._forward_leased(request)

    async def _forward_leased(self, request: RequestContext) -> Response:
        try:
            lease = await self._acquire(request)
        except StoreUnavailable:
            self._telemetry.store_errors.add()
            self._telemetry.crowds.add("store-unavailable")
            lease = 0
        if isinstance(lease, Response):
            return lease
        return await (self._lead(request, lease) if lease else resolve_response(self._inner(request)))

    async def _acquire(self, request: RequestContext) -> Response | int:
        """Return the answer of another gateway's call, or the token of this gateway's lease, or 0 to
        call without one."""
        name = request.keys.fingerprint
        since, holders = 0 if self._exact else None, list[int]()
        until = self._clock.monotonic() + max_wait_s(request, self._clock.monotonic())
        claim = _take_claim(request)
        while True:
            if claim is None:
                with request.timer("lease"):
                    claim = await self._leases.claim(name, since)
            if claim.token:
                self._telemetry.crowds.add("led")
                return claim.token
            if not claim.holder:
                answer = await self._stored_answer(request, waited=bool(holders))
                if answer is not None:
                    return answer
                since, claim = None, None  # the stored answer cannot be served: from now on only ask for a lease
                continue
            if len(holders) == MAX_HOLDERS:
                self._unstorable.add(name)
            if len(holders) == MAX_HOLDERS or self._leases.is_held(name, claim.holder):
                return 0
            holders.append(claim.holder)
            since = holders[0]
            self._telemetry.crowds.add("waits")
            with request.timer("wait"):
                if not await self._leases.wait_released(name, claim.holder, until - self._clock.monotonic()):
                    self._telemetry.crowds.add("in-vain")
                    return 0
            claim = None

    async def _stored_answer(self, request: RequestContext, *, waited: bool) -> Response | None:
        """Return the answer that another gateway has stored, if it may be served. The copy in memory may be older, so
        drop it first."""
        self._store.forget(request.keys.fingerprint)
        entry = await self._store.get(request.keys.fingerprint)
        if entry is None or entry.scope != request.keys.scope:
            return None
        freshness = freshness_of(entry, self._lifetime, request.directives, self._clock.wall())
        if not freshness.fresh:
            return None
        self._telemetry.crowds.add("followed")
        if not waited:  # it was stored between the lookup and the claim
            return response_from_entry(request, entry, freshness, Verdict.EXACT)
        provenance = Provenance(Verdict.COALESCED, backend=entry.backend)
        return replace(response_from_entry(request, entry, freshness, Verdict.COALESCED), provenance=provenance)

    async def _lead(self, request: RequestContext, token: int) -> Response:
        def end(*, stored: bool) -> None:
            if stored:
                self._leases.on_stored(request.keys.fingerprint, token)
            else:
                self._leases.release(request.keys.fingerprint, token)

        def end_when_written() -> None:
            if lease.writing is None:
                end(stored=request.stored is not None)
            else:
                lease.writing.add_done_callback(lambda write: end(stored=_is_written(write)))

        lease = request.lease = Lease(token=token)
        try:
            response = await resolve_response(self._inner(request))
        except BaseException:
            end_when_written()
            raise
        return with_completion(response, end_when_written)  # an error ends the lease at once
