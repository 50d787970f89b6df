"""Requests that were sent to their backend without the stages, from there to their answer: see
`gateway.data_port.straight` and `gateway.data_port.misses`."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

from aiohttp.helpers import rfc822_formatted_time

from gateway.adapters.gate import Place
from gateway.adapters.http_exchange import is_event_stream
from gateway.adapters.http_headers import NOT_RETURNED, OURS_RETURNED, Passing
from gateway.data_port.heads import Head
from gateway.data_port.plans import Table
from gateway.data_port.service import Service
from gateway.data_port.ways import Leg, Way
from gateway.data_port.wire import fields_of
from gateway.http1.answer import Answer
from gateway.http1.connection import Connection
from gateway.http1.known import MAX_KNOWN, Like
from gateway.messages import Begun, Request
from gateway.routing.latency import Asked
from gateway.routing.waits import limits_in

if TYPE_CHECKING:
    from gateway.data_port.straight import Straight

T = TypeVar("T")
MAX_ANSWER = 64 * 1024  # of a body that is waited for; a longer one is relayed as it comes


class Client(Protocol):
    """The connection that a request came on."""

    @property
    def stays(self) -> bool:
        """Whether it goes on behind this answer."""

    def relayed(self, answer: bytes) -> None:
        """The whole answer: the next request may be taken."""

    def last(self, answer: bytes) -> None:
        """Likewise, on a connection that does not go on."""

    def handed_over(self, head: Head, body: bytes, table: Table, begun: Begun) -> None:
        """The stages are to go on with it, under that policy."""

    def resumed(self, head: Head, body: bytes, request: Request) -> None:
        """Likewise, with what was found out of it."""


class Returned(NamedTuple):
    """Of an answer's head what goes to the client. `limited`: something in it is said of limits."""

    fields: bytes
    limited: bool


class KnownHeads(dict[Like, T]):
    """What is made of answers' heads, by what heads have in common: what varies does not go to the client, who is told
    a length, a date and an id of ours."""

    def __init__(self) -> None:
        super().__init__()
        self._passing = Passing(NOT_RETURNED, prefix=OURS_RETURNED)

    def of(self, answer: Answer, way: Leg) -> T | None:
        """None where the stages are to look at it."""
        like = answer.like
        if like is not None and like in self:
            return self[like]
        if not way.takes(answer.noted):
            return None
        passing = [(name, value) for name, value in answer.headers if self._passing[name]]
        try:
            made = self._made(passing)
        except ValueError:
            return None
        varying = () if like is None else [answer.headers[i][0] for i in like.at]
        # A stream goes on only where no dialect reads it.
        if like is not None and not any(map(self._passing.__getitem__, varying)) and not is_event_stream(answer.noted):
            if len(self) >= MAX_KNOWN:
                self.clear()
            self[like] = made
        return made

    @abstractmethod
    def _made(self, passing: list[tuple[str, str]]) -> T:
        """Of the headers that go to the client. Raises `ValueError`."""


class ReturnedHeads(KnownHeads[Returned]):
    def _made(self, passing: list[tuple[str, str]]) -> Returned:
        return Returned(fields_of(passing), bool(limits_in(passing)))


class Host(Protocol):
    """Who sends such requests."""

    service: Service
    now: Callable[[], float]  # monotonic clock
    loop_time: Callable[[], float]


class Underway:
    """A request that was sent, from there to its answer, which a subclass takes from `_heard`. Whoever waits for it may
    `cancel` it, as a task. `connection`: one that lies idle; None: one is opened."""

    __slots__ = (
        "_ahead", "_answer", "_asked", "_at", "_began", "_body", "_connection", "_due", "_head", "_host", "_id",
        "_opening", "_received", "_table", "_to", "_way",
    )  # fmt: skip

    def __init__(
        self,
        host: Host,
        to: Client,
        table: Table,
        way: Leg,
        head: Head,
        body: bytes,
        request_id: str,
        received: float,
        asked: Asked | None,
        sent: bytes,
        connection: Connection | None,
    ) -> None:
        self._host = host
        self._to = to
        self._table = table
        self._way = way
        self._head = head
        self._body = body
        self._id = request_id
        self._received = received
        self._asked = asked
        self._began = 0.0  # its answer, where the head came before the body
        self._ahead = way.lane.sets_out(asked)
        self._at = at = host.now()
        way.budget.asked(at)
        self._due = due = host.loop_time() + (way.upload_limit_s if body else way.limit_s)
        self._opening: asyncio.Task[None] | None = None  # of a connection
        request = way.request(head.traces, sent)
        if connection is not None:
            self._connection, self._answer = connection, connection.send(request, due, self._heard)
            return
        self._answer = Answer(None)
        self._opening = asyncio.get_running_loop().create_task(self._open(request))
        self._opening.add_done_callback(self._opened)

    async def _open(self, request: bytes) -> None:
        connection = await self._way.connections.connected(self._due)
        self._connection, self._answer = connection, connection.send(request, self._due, self._heard)
        self._opening = None

    def _opened(self, opening: asyncio.Task[None]) -> None:
        """Where there is no connection the stages say so, unless they have been asked already."""
        error = asyncio.CancelledError() if opening.cancelled() else opening.exception()
        if error is not None and self._opening is not None:
            self._opening = None
            self._answer.failed(error)
            self._hand_over()

    def cancel(self) -> None:
        """The client has left. The stages end it."""
        self._answer.failed(asyncio.CancelledError())
        opening, self._opening = self._opening, None
        if opening is None:
            self._connection.abort()  # tells `_heard`
        else:  # it may have failed in this very turn: `_opened` comes in the next one
            opening.cancel()
            self._hand_over()

    def _heard(self) -> None:
        """Something has come of it."""
        raise NotImplementedError

    def _otherwise(self) -> None:
        """Waits for the rest of a short answer that comes after its head, and leaves all else to the stages. What no
        dialect knows goes on with its first piece."""
        answer, way = self._answer, self._way
        waits = way.kind is not None or not answer.unread
        if waits and answer.status == 200 and not answer.whole and answer.error is None and way.takes(answer.noted):
            length = answer.noted.get("content-length", "")
            if length.isascii() and length.isdigit() and int(length) <= MAX_ANSWER:
                self._began = self._began or self._host.now()
                limit_s = way.direct.backend.timeouts.idle if answer.unread else way.limit_s
                self._connection.tell(self._host.loop_time() + limit_s, self._heard)
                return
        self._hand_over()

    def _hand_over(self) -> None:
        way, place = self._way, Place(self._way.gate, self._at)
        way.lane.handed_on(self._asked)
        self._host.service.inflight -= 1
        answer, client = self._answer, way.direct.client
        resumed = partial(client.resumed, answer) if self._opening is None else client.ask
        self._opening = None

        def release() -> None:
            place.leave()
            answer.close()

        begun = Begun(self._id, self._received, self._at, self._ahead, self._due, place, resumed, release)
        self._handed(begun)

    def _handed(self, begun: Begun) -> None:
        """The stages are to go on with it."""
        self._to.handed_over(self._head, self._body, self._table, begun)


class Relaying(Underway):
    """One whose answer goes on as it comes."""

    __slots__ = ()
    _host: Straight
    _way: Way

    def _heard(self) -> None:
        answer, way, to = self._answer, self._way, self._to
        if answer.status != 200 or not answer.whole or not to.stays:
            return self._otherwise()
        straight, lane = self._host, way.lane
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
