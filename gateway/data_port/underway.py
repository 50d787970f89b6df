"""A request that was sent straight to its backend, from there to its answer: see `gateway.data_port.straight`."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

from aiohttp.helpers import rfc822_formatted_time

from gateway.adapters.gate import Place
from gateway.adapters.http_exchange import is_event_stream
from gateway.adapters.http_headers import NOT_RETURNED, OURS_RETURNED, Passing
from gateway.data_port.heads import Head
from gateway.data_port.plans import Table
from gateway.data_port.ways import Way
from gateway.data_port.wire import fields_of
from gateway.http1.answer import Answer
from gateway.http1.known import MAX_KNOWN, Like
from gateway.messages import Begun
from gateway.routing.latency import Asked
from gateway.routing.waits import limits_in

if TYPE_CHECKING:
    from gateway.data_port.straight import Straight

MAX_ANSWER = 64 * 1024  # of a body that is waited for; a longer one is relayed as it comes


class Client(Protocol):
    """The connection that a request came on."""

    @property
    def stays(self) -> bool:
        """Whether it goes on behind this answer."""

    def relayed(self, answer: bytes) -> None:
        """The whole answer: the next request may be taken."""

    def handed_over(self, head: Head, body: bytes, table: Table, begun: Begun) -> None:
        """The stages are to go on with it, under that policy."""


class Returned(NamedTuple):
    """Of an answer's head what goes to the client. `limited`: something in it is said of limits."""

    fields: bytes
    limited: bool


class ReturnedHeads(dict[Like, Returned]):
    """By what heads have in common: what varies does not go to the client, who is told a length, a date and an id of
    ours."""

    def __init__(self) -> None:
        super().__init__()
        self._passing = Passing(NOT_RETURNED, prefix=OURS_RETURNED)

    def of(self, answer: Answer, way: Way) -> Returned | None:
        """None where the stages are to look at it."""
        like = answer.like
        if like is not None and like in self:
            return self[like]
        if not way.takes(answer.noted):
            return None
        passing = [(name, value) for name, value in answer.headers if self._passing[name]]
        try:
            returned = Returned(fields_of(passing), bool(limits_in(passing)))
        except ValueError:
            return None
        varying = () if like is None else [answer.headers[i][0] for i in like.at]
        # A stream goes on only where no dialect reads it.
        if like is not None and not any(map(self._passing.__getitem__, varying)) and not is_event_stream(answer.noted):
            if len(self) >= MAX_KNOWN:
                self.clear()
            self[like] = returned
        return returned


class Underway:
    """A request that was sent, from there to its answer. Whoever waits for it may `cancel` it, as a task."""

    __slots__ = (
        "_ahead", "_answer", "_asked", "_at", "_began", "_body", "_connection", "_due", "_head", "_id", "_opening",
        "_received", "_straight", "_table", "_to", "_way",
    )  # fmt: skip

    def __init__(
        self,
        straight: Straight,
        to: Client,
        table: Table,
        way: Way,
        head: Head,
        body: bytes,
        received: float,
        asked: Asked | None,
        sent: bytes,
    ) -> None:
        self._straight = straight
        self._to = to
        self._table = table
        self._way = way
        self._head = head
        self._body = body
        self._received = received
        self._asked = asked
        self._began = 0.0  # its answer, where the head came before the body
        self._id = straight.ids.of(head.headers)
        self._ahead = way.lane.sets_out(asked)
        self._at = at = straight.now()
        way.budget.asked(at)
        self._due = due = straight.loop_time() + (way.upload_limit_s if body else way.limit_s)
        self._opening: asyncio.Task[None] | None = None  # of a connection
        request, connection = way.request(head.traces, sent), way.connections.idle()
        if connection is not None:
            self._connection, self._answer = connection, connection.send(request, due, self._heard)
            return
        self._answer = Answer(None)
        self._opening = asyncio.get_running_loop().create_task(self._open(request))
        self._opening.add_done_callback(self._opened)

    async def _open(self, request: bytes) -> None:
        connection = await self._way.connections.connected(self._due)
        self._opening = None
        self._connection, self._answer = connection, connection.send(request, self._due, self._heard)

    def _opened(self, opening: asyncio.Task[None]) -> None:
        """Where there is no connection, or nobody waits for it any more, the stages say so."""
        error = asyncio.CancelledError() if opening.cancelled() else opening.exception()
        if error is not None:
            self._answer.failed(error)
            self._hand_over()

    def cancel(self) -> None:
        """The client has left. The stages end it."""
        if self._opening is not None:
            self._opening.cancel()
            return
        self._answer.failed(asyncio.CancelledError())
        self._connection.abort()  # tells `_heard`

    def _heard(self) -> None:
        answer, way, to = self._answer, self._way, self._to
        if answer.status != 200 or not answer.whole or not to.stays:
            return self._otherwise()
        straight, lane = self._straight, way.lane
        returned = straight.returned.of(answer, way)
        if returned is None:
            return self._hand_over()
        now, at = straight.now(), self._at
        pieces, upstream_s = answer.pieces, now - at
        body = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        data = way.answer(returned.fields, self._id, upstream_s, rfc822_formatted_time(), body)
        try:
            if returned.limited:
                lane.heed(way.tenant, 200, answer.headers, now)
            lane.relayed(self._asked, way.pace, self._ahead, at, now)
            way.gate.relayed(way.kind, at, self._began or now, now)
            straight.observer.relayed(way.told, self._id, self._received, upstream_s)
        finally:  # whatever is wrong with our books, the client has its answer
            straight.service.inflight -= 1
            straight.relayed += 1
            to.relayed(data)
        return None

    def _otherwise(self) -> None:
        """Waits for the rest of a short answer that comes after its head, and leaves all else to the stages. What no
        dialect knows goes on with its first piece."""
        answer, way = self._answer, self._way
        waits = way.kind is not None or not answer.unread
        if waits and answer.status == 200 and not answer.whole and answer.error is None and way.takes(answer.noted):
            length = answer.noted.get("content-length", "")
            if length.isascii() and length.isdigit() and int(length) <= MAX_ANSWER:
                self._began = self._began or self._straight.now()
                limit_s = way.direct.backend.timeouts.idle if answer.unread else way.limit_s
                self._connection.tell(self._straight.loop_time() + limit_s, self._heard)
                return
        self._hand_over()

    def _hand_over(self) -> None:
        way, place = self._way, Place(self._way.gate, self._at)
        way.lane.handed_on(self._asked)
        self._straight.service.inflight -= 1
        answer, resumed = self._answer, partial(way.direct.client.resumed, self._answer)

        def release() -> None:
            place.leave()
            answer.close()

        begun = Begun(self._id, self._received, self._at, self._ahead, self._due, place, resumed, release)
        self._to.handed_over(self._head, self._body, self._table, begun)
