"""Identical misses share one flight: a crowd that asks the same makes one call."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

from gateway.cache.directives import shares_flight
from gateway.errors import LimitReached, OutOfTime, StaleWanted
from gateway.flights.flight import Flight, Joinable, Led
from gateway.flights.unstorable import Unstorable
from gateway.messages import Request, Response, Verdict
from gateway.observing.telemetry import Telemetry
from gateway.pipeline import Handler
from gateway.stages.limit import asker_of


class Coalesce:
    """`flights` are those in the air, by fingerprint: all routes share them, so that a reload splits no crowd.
    `at_hand` looks once more for an answer, without waiting: a flight may have landed while the store was asked; where
    it finds none it gives back the request, with what it came to know of it.
    What is `unstorable` is not shared with those who come later: each asks for itself."""

    def __init__(
        self,
        at_hand: Callable[[Request], Response | Request],
        flights: dict[str, Joinable],
        unstorable: Unstorable,
        telemetry: Telemetry,
    ) -> None:
        self._at_hand = at_hand
        self._flights = flights
        self._unstorable = unstorable
        self._telemetry = telemetry

    async def __call__(self, request: Request, forward: Handler) -> Response:
        key = request.fingerprint
        if not key or not shares_flight(request.directives):
            return await forward(request)
        if key in self._unstorable:
            self._telemetry.crowds.add("not-held")
            return await forward(request)
        begun = request.begun
        if begun is not None and not begun.leads():
            return await forward(request)
        # Whose call is on its way already leads, and takes the place of who sent it.
        while begun is None and (flight := self._flights.get(key)) is not None and flight.open:
            request.trace.shared(flight.origin)
            with request.trace.span("wait"):
                try:
                    return _followed(await flight.join())
                except LimitReached as error:
                    if error.asker == asker_of(request):
                        raise
                    return await forward(request)  # where answers are shared beyond a tenant: it was another's limit
                except (OutOfTime, StaleWanted, Led):
                    continue  # that was the leader's budget: the next one of those that wait leads
        landed = self._at_hand(request)
        if isinstance(landed, Response):
            return landed
        return await self._start(key, landed, forward).join()

    def alone(self, key: str) -> bool:
        """Whether a request with that fingerprint would begin a flight of its own."""
        flight = self._flights.get(key)
        return (flight is None or not flight.open) and key not in self._unstorable

    def _start(self, key: str, request: Request, forward: Handler) -> Flight:
        flight = self._flights[key] = Flight(forward(request), request.trace.traced)

        def land(_: asyncio.Future[None]) -> None:
            if self._flights.get(key) is flight:
                del self._flights[key]

        flight.task.add_done_callback(land)
        return flight


def _followed(response: Response) -> Response:
    if response.provenance.verdict is not Verdict.MISS:
        return response  # the flight ended in a semantic hit: so did this
    return replace(response, provenance=replace(response.provenance, verdict=Verdict.COALESCED, stored=False))
