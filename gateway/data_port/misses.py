"""Misses of which memory says that nothing stored answers them, fetched and stored by callbacks, without the stages.

As a rule such a miss asks one upstream, alone, and what comes is whole, may be stored and is: no task, coroutine or
flight is needed for that. What is looked up is `gateway.data_port.lookups`' affair, what is sent, booked and waited for
as with requests that go straight (`gateway.data_port.underway`), what may be stored and how the stages'
(`gateway.stages.admit`, `gateway.stages.storing`).

Whatever is otherwise is the stages', which are handed the call as it stands: what `Underway` hands over, and a request
for the same while its answer is awaited, which joins the flight that the stages begin then. So a crowd makes one call.

Measured, and why: docs/decisions/0048-fetched-misses.md.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import NamedTuple

from gateway.data_port.fetching import Fetching
from gateway.data_port.heads import Head
from gateway.data_port.service import Service
from gateway.data_port.underway import Client, KnownHeads
from gateway.data_port.ways import Leg, leg_of
from gateway.data_port.wire import fields_of
from gateway.messages import Call, Request
from gateway.observing.fetched import Fetched
from gateway.observing.observer import Observer
from gateway.observing.telemetry import Telemetry
from gateway.observing.trace import Trace
from gateway.ports import Clock
from gateway.response_headers import explaining
from gateway.routing.waits import limits_in
from gateway.stages.admit import Said, said_of
from gateway.stages.fetch import Fetch

MAX_COURSES = 1024
Headers = tuple[tuple[str, str], ...]


class Kept(NamedTuple):
    """Of an answer's head what goes to the client, and what is said of storing it."""

    fields: bytes
    limited: bool
    said: Said
    headers: Headers


class KeptHeads(KnownHeads[Kept]):
    def _made(self, passing: list[tuple[str, str]]) -> Kept:
        return Kept(fields_of(passing), bool(limits_in(passing)), said_of(passing), tuple(passing))


@dataclass(frozen=True, slots=True)
class Course(Leg):
    """The leg of misses, and what of their answers is always the same. `explained`: of one that is stored, and of one
    that is not; None: the policy hides it."""

    fetch: Fetch
    told: Fetched
    explained: tuple[bytes, bytes] | None


class Misses:
    """`service` is set before the first request."""

    service: Service

    def __init__(self, observer: Observer, telemetry: Telemetry, clock: Clock) -> None:
        self.observer = observer
        self.now = clock.monotonic
        self.returned = KeptHeads()
        self.fetched = 0  # answers that were given
        self._telemetry = telemetry
        self._clock = clock
        self._under: object = None  # the policy that it goes by
        self._courses: dict[tuple[object, ...], Course | None] = {}
        self._on = True

    def serve(self, service: Service) -> None:
        """Whose requests they are."""
        self.service = service
        self.loop_time = asyncio.get_running_loop().time

    def begin(self, head: Head, body: bytes, request: Request, to: Client) -> Fetching | None:
        """Sends a request that was looked up in vain; what comes of that is told to `to`. None: the stages are to
        begin."""
        call, table, tenant = request.call, request.table, request.tenant
        if table is not self._under:
            self._under = table
            self._courses.clear()
        if call is None or not request.unlike or not self._on:
            return None
        asked = head.decisive, request.route, tenant, call.model
        course = self._courses[asked] if asked in self._courses else self._found(asked, head, request, call)
        if course is None or not course.lane.plain(tenant, self.now()) or not course.gate.take():
            return None
        self.service.inflight += 1
        sent = call.dialect.outgoing(head.path, call, model=course.model, kept=True).body
        return Fetching(self, to, course, head, body, request, call, sent, course.connections.idle())

    def _found(self, asked: tuple[object, ...], head: Head, request: Request, call: Call) -> Course | None:
        fetch, course = request.table.chains[request.route].fetch, None
        leg = None if fetch is None else leg_of(fetch.direct, head, call.dialect, request.tenant, call.model)
        if leg is not None:
            told, explained = self._told(fetch, head, request, call), self._explained(fetch, request)
            course = Course(**leg, fetch=fetch, told=told, explained=explained)
        if len(self._courses) >= MAX_COURSES:
            self._courses.clear()
        self._courses[asked] = course
        return course

    def _told(self, fetch: Fetch, head: Head, request: Request, call: Call) -> Fetched:
        return Fetched(
            self._telemetry,
            route=request.route,
            dialect=call.dialect.name,
            backend=fetch.direct.pool.name,
            tenant=request.tenant,
            path=head.path,
        )

    def _explained(self, fetch: Fetch, request: Request) -> tuple[bytes, bytes] | None:
        if not fetch.direct.exposes:
            return None
        trace = Trace(self._clock)
        trace.route = request.route
        said = [fields_of(explaining(origin, trace)) for origin in (fetch.origin.as_stored(), fetch.origin)]
        return said[0], said[1]
