"""One call for all gateways that share a store: who gets the lease calls the backend, the others wait for its
answer."""

from __future__ import annotations

from dataclasses import replace

from gateway.cache.freshness import Lifetime, freshness_of
from gateway.cache.hits import answer_from
from gateway.errors import StoreUnavailable
from gateway.flights.leasing import Leasing
from gateway.flights.unstorable import Unstorable
from gateway.flow import with_end
from gateway.messages import Bypass, Provenance, Request, Response, Verdict
from gateway.observing.telemetry import Telemetry
from gateway.pipeline import Handler
from gateway.ports import Clock, NearStore
from gateway.routing.budget import patience_s

# A holder may die; if the next one ends without an answer too, waiting for a third would only line up the others.
MAX_HOLDERS = 2


class Lead:
    """Stands just outside `Admit`, whose put ends the lease. `lifetime` is what a stored answer is held to; `exact`
    says whether one that nobody waited for may be served too, as the exact lookup would."""

    def __init__(
        self,
        leasing: Leasing,
        store: NearStore,
        clock: Clock,
        telemetry: Telemetry,
        unstorable: Unstorable,
        lifetime: Lifetime,
        *,
        exact: bool,
    ) -> None:
        self._leasing = leasing
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._unstorable = unstorable
        self._lifetime = lifetime
        self._exact = exact

    async def __call__(self, request: Request, forward: Handler) -> Response:
        if not request.fingerprint or request.directives.no_cache or request.directives.only_if_cached:
            return await forward(request)
        if request.fingerprint in self._unstorable or request.trace.note == Bypass.STORE:
            return await forward(request)  # nothing to wait for; or a store that has just failed
        try:
            turn = await self._turn(request)
        except StoreUnavailable:
            self._telemetry.store_errors.add()
            self._telemetry.crowds.add("store-unavailable")
            return await forward(request)
        if isinstance(turn, Response):
            return turn
        return await (self._led(request, forward, turn) if turn else forward(request))

    async def _turn(self, request: Request) -> Response | int:
        """The answer of another gateway's flight; or the token of this one's lease, 0 where it flies without."""
        name = request.fingerprint
        since, holders = 0 if self._exact else None, list[int]()
        until = self._clock.monotonic() + patience_s(request, self._clock.monotonic())
        while True:
            with request.trace.span("lease"):
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
            with request.trace.span("wait"):
                if not await self._leasing.over(name, claim.holder, until - self._clock.monotonic()):
                    self._telemetry.crowds.add("in-vain")
                    return 0

    async def _landed(self, request: Request, *, waited: bool) -> Response | None:
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

    async def _led(self, request: Request, forward: Handler, token: int) -> Response:
        name, trace = request.fingerprint, request.trace

        def over() -> None:
            if trace.stored is None:
                self._leasing.give_back(name, token)
            else:
                self._leasing.settled(name, token)

        try:
            response = await forward(replace(request, lease=token))
        except BaseException:
            over()
            raise
        return with_end(response, over)  # an error's at once: it is not worth waiting for
