"""A client's connection for as long as it asks plainly: requests whose framing can be read in one way only, which came
whole. They are answered without aiohttp's parser, streams, timers and two tasks a request, and what `Front` knows
without any task (docs/decisions/0029-plain-requests.md has the measurement).

Everything else is aiohttp's: at the first byte that is not plainly of such a request the connection is handed over,
with all that has not been answered, and stays there. So nothing here needs to know how such a request is refused.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

from gateway.data_port.front import Recall
from gateway.data_port.heads import MAX_HEAD, Head
from gateway.data_port.outlet import Outlet
from gateway.data_port.plans import LOOKED_AT, MODEL
from gateway.data_port.sought import Came
from gateway.data_port.staged import request_of, staged
from gateway.data_port.underway import Underway
from gateway.messages import Begun, Request

if TYPE_CHECKING:
    from gateway.data_port.connections import Connections
    from gateway.data_port.plans import Table

MAX_BODY = 256 * 1024  # of a request that is waited for here; longer ones may stream
WAIT_S = 0.05  # clients that send head and body apart, as httpx does, send the second a moment after the first
CROSSING_S = 0.05  # of an idle connection that is to end: a request on its way in it would be lost
MAX_AHEAD = 64 * 1024  # bytes of later requests that are read while one is answered
END = b"\r\n\r\n"
CLOSES = b"\r\nConnection: close\r\n\r\n"  # a head that ends so


class PlainConnection(asyncio.Protocol):
    """At any time it waits for a request, waits for the rest of one, or has a task, or a future, that answers one."""

    __slots__ = (
        "_ahead", "_deadline", "_gone", "_have", "_last", "_loop", "_out", "_pieces", "_reading", "_server",
        "_task", "_timer", "_transport", "_waiting", "_want",
    )  # fmt: skip

    def __init__(self, server: Connections, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._task: asyncio.Future[Any] | asyncio.Handle | Came | Underway | None = None
        self._pieces: list[bytes] = []  # of a request that has not come whole
        self._have, self._want = 0, 0  # bytes of it; 0: not even its head has
        self._waiting: asyncio.TimerHandle | None = None  # for the rest
        self._ahead = b""  # what came while a request is answered
        self._reading, self._last = True, False  # the last request is what is read or answered now
        self._gone: asyncio.Future[None] | None = None

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._out = Outlet(self._transport)
        now, server = self._loop.time(), self._server
        self._deadline = now + server.head_timeout_s
        self._timer = self._loop.call_at(now + min(server.head_timeout_s, server.idle_timeout_s), self._expire)
        self._server.opened(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._forgotten()
        self._out.emptied()
        self._cancel()  # upstream, too
        if self._gone is not None:
            self._gone.set_result(None)
        self._server.closed(self)

    def pause_writing(self) -> None:
        self._out.full()

    def resume_writing(self) -> None:
        self._out.emptied()
        if self._task is None:
            self._go_on()

    def data_received(self, data: bytes) -> None:
        if self._task is not None or not self._out.writable:
            self._ahead += data
            if len(self._ahead) > MAX_AHEAD and self._reading:
                self._reading = False
                self._transport.pause_reading()
            return
        if self._pieces:
            self._pieces.append(data)
            self._have += len(data)
            if self._have < self._want:
                return
            data = b"".join(self._pieces)
        self._take(data)

    # What the server asks

    def finish(self) -> None:
        """No further request is taken; what is being read or answered is."""
        self._last, self._gone = True, self._loop.create_future()
        self._loop.call_later(CROSSING_S, self._close_idle)

    def _close_idle(self) -> None:
        if self._task is None and not self._pieces:
            self._transport.close()

    async def ended(self, timeout_s: float | None) -> None:
        """After `finish`: what takes longer than `timeout_s` is cut."""
        assert self._gone is not None
        await asyncio.wait((self._gone,), timeout=timeout_s)
        self._cancel()
        self._transport.abort()

    def _cancel(self) -> None:
        if self._task is not None and not isinstance(self._task, asyncio.Task):
            self._task.cancel()  # which may leave it to a task
        if isinstance(self._task, asyncio.Task):  # once it has begun: else it gives nothing back of what it was handed
            self._loop.call_soon(self._task.cancel)

    @property
    def goes_on(self) -> bool:
        """Whether there may be another request on this connection."""
        return not (self._last or self._server.leaving)

    # Requests

    def _take(self, data: bytes) -> None:
        """Answers what is known of the requests in `data`, until one has to be asked for or has not come whole."""
        heads, front, server, at = self._server.heads, self._server.front, self._server, 0
        while not self._transport.is_closing():
            end = data.find(END, at) + len(END)
            if end < len(END):
                if len(data) - at > MAX_HEAD:
                    self._hand_over(data[at:])
                else:
                    self._wait(data[at:], 0)
                return
            head = heads.read(data[at:end])
            if head is None or head.length > server.max_plain_body:
                self._hand_over(data[at:])
                return
            over = end + head.length
            if len(data) < over:
                self._wait(data[at:], over - at)
                return
            if self._pieces:
                self._came_whole()
            body, at = data[end:over], over
            self._last = self._last or head.closes
            answer = None if self._last or server.leaving else front.answer(head, body)
            if not isinstance(answer, bytes):
                self._ahead, self._deadline = data[at:], math.inf
                self._recall(head, body, answer)
                return
            self._transport.write(answer)
            if at == len(data) or not self._out.writable:  # a client that asks and does not read has to wait
                self._ahead, self._deadline = data[at:], self._loop.time() + server.idle_timeout_s
                return

    def _wait(self, data: bytes, size: int) -> None:
        """For the rest of a request of `size` bytes; 0: its head has not come to its end."""
        self._pieces, self._have, self._want = [data], len(data), size
        if self._waiting is None:
            self._waiting = self._loop.call_later(WAIT_S, self._waited)

    def _waited(self) -> None:
        if self._out.writable and (self._gone is None or not self._want):  # while it ends, bodies are waited for here
            self._hand_over(b"".join(self._pieces))
        else:  # aiohttp counts on being told that the transport is full
            self._waiting = self._loop.call_later(WAIT_S, self._waited)

    def _came_whole(self) -> None:
        self._pieces, self._want = [], 0
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _hand_over(self, data: bytes) -> None:
        if self._last:
            self._transport.close()
            return
        self._forgotten()
        self._server.closed(self)
        self._server.hand_over(self._transport, data)

    def _forgotten(self) -> None:
        """Of this connection nothing more is waited for here."""
        self._timer.cancel()
        self._came_whole()

    def _expire(self) -> None:
        """Closes it where no request came in time, the first one or another."""
        now = self._loop.time()
        if self._task is None and now >= self._deadline:
            (self._transport.close if self._out.writable else self._transport.abort)()
            return
        self._timer = self._loop.call_at(min(self._deadline, now + self._server.idle_timeout_s), self._expire)

    # Answers

    def _recall(self, head: Head, body: bytes, what: Recall | None) -> None:
        """Asks the store for an answer that is known, or the backend, or what lies in memory, or else the stages."""
        server, left = self._server, None
        asked: asyncio.Future[Any] | Came | Underway | None = None
        if what is not None and not server.service.full:
            asked = server.front.recall(what, partial(self._recalled, head, body))
        elif not self._last and (plan := server.plans.of(head)) is not None:
            hint = b"" if plan.dialect is None or not (named := MODEL.search(body, 0, LOOKED_AT)) else named[1]
            if plan.known.get(hint) is None:  # else it is known to be looked up
                asked = server.straight.begin(plan, hint, head, body, self)
            if asked is None and not server.leaving:
                came = server.lookups.came(plan, hint, head, body, self._out.peer, self)
                found = None if came is None else server.turns.find(came)
                if isinstance(found, bytes):
                    self._answered(found)
                    return
                if isinstance(found, Came):
                    asked = found
                elif found is not None:
                    left, asked = found, server.misses.begin(head, body, found, self)
        self._task = self._loop.create_task(self._answer(head, body, left)) if asked is None else asked

    def left(self, head: Head, body: bytes, request: Request | None) -> None:
        """Of what was looked up in vain with others, which may have gone before."""
        misses, full = self._server.misses, self._server.service.full
        asked = None if request is None or full else misses.begin(head, body, request, self)
        self._task = self._loop.create_task(self._answer(head, body, request)) if asked is None else asked

    def _answered(self, answer: bytes) -> None:
        """What was found at once: what has come behind it waits for its turn, as this may stand within its reading."""
        self._transport.write(answer)
        self._deadline = self._loop.time() + self._server.idle_timeout_s
        self._task = self._loop.call_soon(self._turn) if self._ahead else None

    def _turn(self) -> None:
        self._task = None
        if self._out.writable:
            self._go_on()

    def _recalled(self, head: Head, body: bytes, answer: bytes | None) -> None:
        self._task = None
        if self._transport.is_closing():  # the client has left: nothing may be written, and it is to be counted
            if answer is None:
                self.resumed(head, body, None)
                self._cancel()
        elif answer is None:
            self._recall(head, body, None)
        elif self.goes_on:
            self.relayed(answer)
        else:  # it was made, and counted, before this was known
            self.last(answer.replace(END, CLOSES, 1))

    @property
    def stays(self) -> bool:
        return not (self._last or self._server.leaving or self._transport.is_closing())

    def relayed(self, answer: bytes) -> None:
        self._task = None
        self._transport.write(answer)
        self._deadline = self._loop.time() + self._server.idle_timeout_s
        if self._ahead and self._out.writable:
            self._go_on()

    def last(self, answer: bytes) -> None:
        self._task = None
        if not self._transport.is_closing():
            self._transport.write(answer)
            self._transport.close()

    def handed_over(self, head: Head, body: bytes, table: Table, begun: Begun) -> None:
        came = request_of(self._server, self._out, head, body)
        self.resumed(head, body, replace(came, id=begun.id, received=begun.received, table=table, begun=begun))

    def resumed(self, head: Head, body: bytes, request: Request | None) -> None:
        self._task = self._loop.create_task(self._answer(head, body, request))

    async def _answer(self, head: Head, body: bytes, request: Request | None) -> None:
        """`request`: where something of it was found out before."""
        try:
            goes_on = await staged(self, self._server, self._out, head, body, request)
        finally:
            self._task = None
        if goes_on and not self._last:
            self._deadline = self._loop.time() + self._server.idle_timeout_s
            self._go_on()
        else:
            self._transport.close()

    def _go_on(self) -> None:
        """With what came meanwhile."""
        if self._transport.is_closing():
            return
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        ahead, self._ahead = self._ahead, b""
        if ahead:
            self.data_received(ahead)
