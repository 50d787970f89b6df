"""A miss that was sent to its backend without the stages, from there to its answer: see `gateway.data_port.misses`."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING

from aiohttp.helpers import rfc822_formatted_time

from gateway.adapters.http_client import HttpAnswer, Outward
from gateway.backends.lane import asked_of
from gateway.data_port.heads import Head
from gateway.data_port.underway import Client, Underway
from gateway.data_port.wire import STATUS_LINES
from gateway.flights.flight import Led
from gateway.http1.connection import Connection
from gateway.messages import Begun, Call, Request, Response, Whole
from gateway.observing.traced import Traced
from gateway.stages.observe import CLIENT_CLOSED

if TYPE_CHECKING:
    from gateway.data_port.misses import Course, Kept, Misses

LOG = logging.getLogger("nearhit")
SOON_S = 0.001  # between two looks of each who waits: they may be many, and the stages may have to wait themselves


class Fetching(Underway):
    """A miss that was sent. Implements `Joinable`, for those who ask the same meanwhile."""

    __slots__ = ("_call", "_course", "_given", "_handed_on", "_landing", "_misses", "_request", "_there")

    origin: Traced | None = None

    def __init__(
        self,
        misses: Misses,
        to: Client,
        course: Course,
        head: Head,
        body: bytes,
        request: Request,
        call: Call,
        sent: bytes,
        connection: Connection | None,
    ) -> None:
        self._misses = misses
        self._course = course
        self._request = request
        self._call = call
        self._given: tuple[Kept, bytes] | None = None  # the answer, once it is here
        self._landing: asyncio.Future[Response] | None = None  # for those who wait until it is stored
        self._handed_on = False
        self._there = True  # the client
        course.fetch.flights[request.fingerprint] = self
        asked = asked_of(call, request.route)
        super().__init__(
            misses, to, request.table, course, head, body, request.id, request.received, asked, sent, connection
        )

    # For those who ask the same.

    open = True  # as long as it is among those in the air

    async def join(self) -> Response:
        if self._given is None:
            if self._handed_on:  # the stages are about to lead, as a rule
                await asyncio.sleep(SOON_S)
            else:
                self._give_up()
                await asyncio.sleep(0)  # who asked first leads
            raise Led
        if self._landing is None:
            self._landing = asyncio.get_running_loop().create_future()
        return await asyncio.shield(self._landing)

    # From the answer on.

    def _heard(self) -> None:
        answer, course, misses, request = self._answer, self._course, self._misses, self._request
        if answer.status != 200 or not answer.whole or not self._to.stays:
            return self._otherwise()
        kept = misses.returned.of(answer, course)
        if kept is None:
            return self._hand_over()
        now, pieces = misses.now(), answer.pieces
        self._given = kept, pieces[0] if len(pieces) == 1 else b"".join(pieces)
        entry = None
        try:
            self._book(kept, now)
            fetch = course.fetch
            entry = fetch.admit.whole(request, self._call, kept.said, self._given[1], fetch.origin, self._at)
        except Exception:
            LOG.exception("internal error", extra={"fields": request.named})
        if entry is None:
            return self._land(stored=False)
        course.fetch.admit.storing.begin(request, entry, self._land)
        return None

    def _book(self, kept: Kept, now: float) -> None:
        course, at = self._course, self._at
        self._request.trace.spans["upstream"] = now - at
        if kept.limited:
            course.lane.heed(course.tenant, 200, self._answer.headers, now)
        course.lane.relayed(self._asked, course.pace, self._ahead, at, now)
        course.gate.relayed(course.kind, at, self._began or now, now)
        course.told.of_backend.add(now - at)

    def _land(self, stored: bool) -> None:
        """Whether it is stored is known."""
        self._down()
        if self._landing is not None:
            self._landing.set_result(self._response(stored))
        if self._there:
            self._answered(stored)

    def _answered(self, stored: bool) -> None:
        misses, request, to = self._misses, self._request, self._to
        assert self._given is not None
        kept, data = self._given
        timing = b""
        try:
            trace, told = request.trace, self._course.told
            kind = told.kind(trace.spans, trace.note)
            steps_ms = misses.observer.fetched(kind, trace, request.id, misses.now() - self._received)
            timing = kind.timing % tuple(steps_ms)
        finally:  # whatever is wrong with our books, the client has its answer
            stays = to.stays
            answer = self._written(kept.fields, stored, timing, data, stays)
            misses.service.inflight -= 1
            misses.fetched += 1
            (to.relayed if stays else to.last)(answer)

    def _written(self, fields: bytes, stored: bool, timing: bytes, data: bytes, stays: bool) -> bytes:
        """What `answer_headers` and `head_of` make of it. A request's id has no line break."""
        said = self._course.explained
        explained = b"" if said is None else b"%bServer-Timing: %b\r\n" % (said[0 if stored else 1], timing)
        closes = b"" if stays else b"\r\nConnection: close"
        date = rfc822_formatted_time().encode()
        return b"%b%bx-request-id: %b\r\nServer: nearhit\r\n%bContent-Length: %d\r\nDate: %b%b\r\n\r\n%b" % (
            STATUS_LINES[200], fields, self._id.encode(), explained, len(data), date, closes, data,
        )  # fmt: skip

    def _response(self, stored: bool) -> Response:
        assert self._given is not None
        kept, data = self._given
        origin = self._course.fetch.origin
        return Response(200, kept.headers, Whole(data), origin.as_stored() if stored else origin)

    # What is otherwise.

    def cancel(self) -> None:
        if self._given is None:
            self._give_up()  # to be cancelled there: others may have come to wait for it
            return
        if not self._there:  # a connection that ends with the gateway says so twice
            return
        self._there = False  # what is being stored is stored
        self._misses.service.inflight -= 1
        request = self._request
        self._misses.observer.over(
            request_id=request.id,
            method=request.method,
            path=request.path,
            received=request.received,
            trace=request.trace,
            status=CLIENT_CLOSED,
            provenance=None,
        )

    def _give_up(self) -> None:
        """Whatever comes of it is the stages' to wait for."""
        if self._opening is None:
            self._connection.forget()
        elif self._opening.done():  # in vain, in this very turn: `_opened` would come in the next one
            self._opened(self._opening)
            return
        else:  # nothing was sent: they open one for themselves
            self._opening.cancel()
        self._hand_over()

    def _handed(self, begun: Begun) -> None:
        """Those who ask the same meanwhile wait until the flight of the stages has taken this one's place: the call is
        that flight's then, also where its client leaves."""
        self._handed_on = True
        taken = False

        def resumed(sent: Outward, due: float) -> Awaitable[HttpAnswer]:
            nonlocal taken
            taken = True
            return begun.resumed(sent, due)

        def release() -> None:
            self._down()
            if not taken:
                begun.release()

        mine = begun._replace(resumed=resumed, release=release, leads=self._in_the_air)
        self._to.resumed(self._head, self._body, replace(self._request, begun=mine))

    def _in_the_air(self) -> bool:
        """None is behind a removal, which may mean its answer: who comes then is to ask anew."""
        return self._course.fetch.flights.get(self._request.fingerprint) is self

    def _down(self) -> None:
        if self._in_the_air():
            del self._course.fetch.flights[self._request.fingerprint]
