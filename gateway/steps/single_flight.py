"""Makes one call for identical misses: the leader calls, and the followers share its response."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from gateway.cache.admission import HitForMiss
from gateway.cache.flight import SharedCall
from gateway.cache.freshness import can_share_flight
from gateway.context import Handler, RequestContext, resolve_response
from gateway.errors import BudgetExceeded, LimitReached, ServeStale
from gateway.messages import Provenance, Response
from gateway.observability.telemetry import Telemetry
from gateway.outcomes import Verdict
from gateway.steps.metering import limit_asker
from gateway.streams import close_body
from gateway.unread_memory import UnreadMemory


class SingleFlight:
    """`flights` are the calls in flight, by fingerprint. All routes share them, so that a reload does not split a
    crowd. An answer from memory needs no flight. Followers do not join the call of an `unstorable` key: each request
    makes its own call. So does each follower of an answer that its backend forbids to share (RFC 9111, section 4)."""

    def __init__(
        self,
        inner: Handler,
        flights: dict[str, SharedCall],
        unstorable: HitForMiss,
        unread: UnreadMemory,
        telemetry: Telemetry,
    ) -> None:
        self._inner = inner
        self._flights = flights
        self._unstorable = unstorable
        self._unread = unread
        self._telemetry = telemetry

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        key = request.keys.fingerprint
        if not key or not can_share_flight(request.directives):
            return self._inner(request)
        flight = self._flights.get(key)
        if key in self._unstorable:
            self._telemetry.crowds.add("not-held")
            return self._inner(request)
        if flight is not None and flight.is_joinable:
            request.require_capacity()
            return self._follow(request, flight)
        return self._lead(request)

    def _lead(self, request: RequestContext) -> Response | Awaitable[Response]:
        answer = self._inner(request)
        if isinstance(answer, Response) or request.client.read_only:  # nobody shares the call of a read-only key
            return answer
        key = request.keys.fingerprint
        flight = self._flights[key] = SharedCall(answer, request.traced, self._unread)

        def land(_: asyncio.Future[None]) -> None:
            if self._flights.get(key) is flight:
                del self._flights[key]

        flight.task.add_done_callback(land)
        return flight.join()

    async def _follow(self, request: RequestContext, flight: SharedCall | None) -> Response:
        while flight is not None and flight.is_joinable:
            request.link(flight.origin)
            try:
                with request.timer("wait"):
                    response = await flight.join()
                if not response.provenance.exclusive:
                    return _as_coalesced(response)
                await close_body(response.body)
                return await resolve_response(self._inner(request))
            except LimitReached as error:
                if error.asker == limit_asker(request):
                    raise
                return await resolve_response(self._inner(request))  # the limit was another client's
            except (BudgetExceeded, ServeStale):  # only the leader's budget: the next follower leads
                flight = self._flights.get(request.keys.fingerprint)
        return await resolve_response(self._lead(request))


def _as_coalesced(response: Response) -> Response:
    provenance = response.provenance
    if provenance.verdict is not Verdict.MISS:
        return response  # the flight ended in a semantic hit, and so does this request
    return Response(response.status, response.headers, response.body, _coalesced_provenance(provenance))


def _coalesced_provenance(provenance: Provenance) -> Provenance:
    return Provenance(
        Verdict.COALESCED,
        provenance.reason,
        backend=provenance.backend,
        tier=provenance.tier,
        complexity=provenance.complexity,
        other_usage=provenance.other_usage,
    )
