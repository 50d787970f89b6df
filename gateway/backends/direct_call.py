"""A call to a route's only upstream, over HTTP, as it goes as a rule: sent, answered and booked in one step.

`Pool`, `Lane` and `HttpBackend` have a step each for what may be otherwise, and all of that stays theirs: before a byte
is sent, where there is something to wait for, to refuse, to translate or to trace; afterwards by giving them the call
as it stands (`Begun`): a status that is not 200, a stream, a body that does not come with its head, a failure. So
nothing is sent twice that they would not send twice. `gateway.data_port.straight` does likewise for what needs no
stage. Measured: docs/decisions/0043-stored-misses-in-fewer-steps.md.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import replace
from functools import partial

from gateway.adapters.gate import Place
from gateway.adapters.http_exchange import is_event_stream
from gateway.backends.direct import Direct
from gateway.backends.lane import asked_of
from gateway.dialects.known import DIALECTS, understands
from gateway.dialects.turns import Conversational
from gateway.errors import BadRequest
from gateway.http1.connection import JOINED_BYTES, Connection
from gateway.messages import Begun, Call, Request, Response
from gateway.observing.metrics import Tally
from gateway.observing.telemetry import Telemetry
from gateway.ports import Clock


class DirectCall:
    """To be asked in the place of `Pool.call`, within the event loop."""

    def __init__(self, direct: Direct, clock: Clock, telemetry: Telemetry) -> None:
        self.name = direct.pool.name
        self._pool, self._lane, self._backend, self._client = direct.pool, direct.lane, direct.backend, direct.client
        self._gate = direct.backend.gate
        self._connections = direct.client.client.pool
        self._limit_s = direct.backend.first_byte_s(uploads=False)
        self._now = clock.monotonic
        # Those whose answers are kept as they were sent.
        understood = [each for each in DIALECTS if understands(direct.backend.speaks, each)]
        self._dialects = frozenset(each.name for each in understood if isinstance(each, Conversational))
        name = self.name
        times = [(telemetry.backend_ttft_seconds, (name,)), (telemetry.backend_seconds, (name,))]
        self._tally = Tally([(telemetry.backend_requests, (name, "200"))], [times])

    def call(self, request: Request) -> Awaitable[Response]:
        """As `Pool.call`."""
        call, now = request.call, self._now()
        if call is None or not self._plain(request, call, now):
            return self._pool.call(request)
        sent = self._written(request)
        connection = self._taken()
        if connection is None:
            return self._pool.call(request)
        return self._asked(request, call, connection, sent, now)

    def _plain(self, request: Request, call: Call, now: float) -> bool:
        """Whether nothing is to be decided before it is sent."""
        return (
            not call.stream
            and request.begun is None
            and request.trace.traced is None
            and call.dialect.name in self._dialects
            and len(request.body) <= JOINED_BYTES
            and self._lane.plain(request.tenant, now)
        )

    def _written(self, request: Request) -> bytes:
        """Head and body. Raises `BadRequest`."""
        try:
            return self._client.written(self._backend.outward(request))
        except ValueError as error:
            raise BadRequest(str(error)) from None

    def _taken(self) -> Connection | None:
        """One that lies idle, with a place at the gate."""
        connection = self._connections.idle()
        if connection is not None and not self._gate.take():
            self._connections.freed(connection)
            return None
        return connection

    async def _asked(self, request: Request, call: Call, connection: Connection, sent: bytes, at: float) -> Response:
        lane, gate, kind = self._lane, self._gate, (call.operation, False)
        pace, asked = lane.pace_of_kind(kind), asked_of(call, request.route)
        self._pool.budget.asked(at)
        load, loop = lane.sets_out(asked), asyncio.get_running_loop()
        due, heard = loop.time() + self._limit_s, loop.create_future()
        answer = connection.send(sent, due, partial(_wake, heard))
        try:
            await heard
        except BaseException:
            answer.close()
            lane.given_up(asked, pace, load, at, self._now())
            gate.left(at)
            request.trace.since("upstream", at)
            raise
        if answer.status != 200 or not answer.whole or is_event_stream(answer.noted):
            lane.handed_on(asked)
            place, resumed = Place(gate, at), partial(self._client.resumed, answer)
            begun = Begun(request.id, request.received, at, load, due, place, resumed, place.leave)
            return await self._pool.call(replace(request, begun=begun))
        response, now = self._backend.read(answer), self._now()
        request.trace.since("upstream", at)
        self._tally.add(now - at)
        lane.heed(request.tenant, 200, response.headers, now)
        lane.relayed(asked, pace, load, at, now)
        gate.relayed(kind, at, now, now)
        return response


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
