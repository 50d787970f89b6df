"""One call for all gateways that share a store: who gets the lease calls the backend, the others wait for its
answer."""

from __future__ import annotations

from collections.abc import Awaitable
from dataclasses import replace

from gateway.cache.admission import HitForMiss
from gateway.cache.cluster_leases import ClusterLeases
from gateway.cache.freshness import freshness_of
from gateway.cache.hits import answer_from
from gateway.context import Handler, RequestContext, resolved
from gateway.errors import StoreUnavailable
from gateway.messages import Bypass, Lifetime, Provenance, Response, Verdict
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, NearbyStore
from gateway.routing.budget import patience_s
from gateway.streams import with_end

# A holder may die; if the next one ends without an answer too, waiting for a third would only line up the others.
MAX_HOLDERS = 2


class ClusterLease:
    """Just outside `StoreResponse`, whose put ends the lease. `lifetime` is what a stored answer is held to; `exact`
    says whether one that nobody waited for may be served too, as the exact cache would."""

    def __init__(
        self,
        inner: Handler,
        leasing: ClusterLeases,
        store: NearbyStore,
        clock: Clock,
        telemetry: Telemetry,
        unstorable: HitForMiss,
        lifetime: Lifetime,
        *,
        exact: bool,
    ) -> None:
        self._inner = inner
        self._leasing = leasing
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._unstorable = unstorable
        self._lifetime = lifetime
        self._exact = exact

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        if not request.fingerprint or request.directives.no_cache or request.directives.only_if_cached:
            return self._inner(request)
        if request.fingerprint in self._unstorable or request.note == Bypass.STORE:
            return self._inner(request)  # nothing to wait for; or a store that has just failed
        request.require_capacity()
        return self._leased(request)

    async def _leased(self, request: RequestContext) -> Response:
        try:
            turn = await self._turn(request)
        except StoreUnavailable:
            self._telemetry.store_errors.add()
            self._telemetry.crowds.add("store-unavailable")
            turn = 0
        if isinstance(turn, Response):
            return turn
        return await (self._led(request, turn) if turn else resolved(self._inner(request)))

    async def _turn(self, request: RequestContext) -> Response | int:
        """The answer of another gateway's flight; or the token of this one's lease, 0 where it flies without."""
        name = request.fingerprint
        since, holders = 0 if self._exact else None, list[int]()
        until = self._clock.monotonic() + patience_s(request, self._clock.monotonic())
        while True:
            with request.timed("lease"):
                claim = await self._leasing.claim(name, since)
            if claim.token:
                self._telemetry.crowds.add("led")
                return claim.token
            if not claim.holder:
                answer = await self._landed(request, waited=bool(holders))
                if answer is not None:
                    return answer
                since = None  # it is of no use here: from now on only a lease counts
                continue
            if len(holders) == MAX_HOLDERS:
                self._unstorable.add(name)
            if len(holders) == MAX_HOLDERS or self._leasing.ours(name, claim.holder):
                return 0
            holders.append(claim.holder)
            since = holders[0]
            self._telemetry.crowds.add("waits")
            with request.timed("wait"):
                if not await self._leasing.over(name, claim.holder, until - self._clock.monotonic()):
                    self._telemetry.crowds.add("in-vain")
                    return 0

    async def _landed(self, request: RequestContext, *, waited: bool) -> Response | None:
        """What another gateway has stored, if it may be served; in process there may still be an older one."""
        self._store.forget(request.fingerprint)
        entry = await self._store.get(request.fingerprint)
        if entry is None or entry.scope != request.scope:
            return None
        freshness = freshness_of(entry, self._lifetime, request.directives, self._clock.wall())
        if not freshness.fresh:
            return None
        self._telemetry.crowds.add("followed")
        if not waited:  # it landed between the lookup and the lease
            return answer_from(request, entry, freshness, Verdict.EXACT)
        provenance = Provenance(Verdict.COALESCED, backend=entry.backend)
        return replace(answer_from(request, entry, freshness, Verdict.COALESCED), provenance=provenance)

    async def _led(self, request: RequestContext, token: int) -> Response:
        def over() -> None:
            if request.stored is None:
                self._leasing.give_back(request.fingerprint, token)
            else:
                self._leasing.settled(request.fingerprint, token)

        request.lease = token
        try:
            response = await resolved(self._inner(request))
        except BaseException:
            over()
            raise
        return with_end(response, over)  # an error's at once: it is not worth waiting for
