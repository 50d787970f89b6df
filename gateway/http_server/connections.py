"""The connections of the data port: each begins as a plain one, and becomes aiohttp's where a request is not plain.

aiohttp itself waits for the head of a connection's first request for as long as a connection may idle, 75 s: enough for
a few clients to hold many connections. Here both kinds give up after `head_timeout_s`.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, NamedTuple, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from gateway.config.schema import ServerConfig
from gateway.context import RequestContext
from gateway.dialects.openai import OpenAI
from gateway.errors import UpstreamStreamError
from gateway.http_server.heads import MAX_HEAD, RequestHead, RequestHeads
from gateway.http_server.response_writer import OutputBuffer, stream, whole_answer
from gateway.http_server.service import Service
from gateway.http_server.wire import CLOSES, bare_answer
from gateway.messages import FullBody, Response
from gateway.streams import BufferedBody

# The connections of the data port: each begins as a plain one, and becomes aiohttp's where a request is not plain.
#
# aiohttp itself waits for the head of a connection's first request for as long as a connection may idle, 75 s: enough for
# a few clients to hold many connections. Here both kinds give up after `head_timeout_s`.


# The last answer on a connection: to what cannot be read, or could not be handled.
class ConnectionRefused(NamedTuple):
    status: int
    headers: tuple[tuple[str, str], ...]
    data: bytes


def refused(status: int, message: str) -> ConnectionRefused:
    body = OpenAI().error("invalid_request_error" if status < 500 else "internal_error", message)
    return ConnectionRefused(status, (("Content-Type", "application/json"), ("Server", "nearhit")), body)


# A client's connection, as far as aiohttp says too much about it: it quotes a malformed request, credentials included,
# in its log and in its answer.
LOG = logging.getLogger("nearhit")


class ServerConnection(RequestHandler):
    def data_received(self, data: bytes) -> None:
        """aiohttp drops what comes once the connection is to end, the rest of the request that is being read with it:
        that would be waited for in vain, for as long as a stop may take. What comes behind the request is not taken
        up."""
        ends = self._close, self._force_close
        if not any(ends) or self._current_request is None:
            super().data_received(data)
            return
        self._close = self._force_close = False
        try:
            super().data_received(data)
        finally:
            self._close, self._force_close = self._close or ends[0], self._force_close or ends[1]

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Refuses what the parser could not read. Nobody knows where the next request starts, so this was the last."""
        LOG.info("malformed request", extra={"fields": {"status": status, "error": type(exc).__name__}})
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun: it can only be cut")
        # The parser's messages name the fault first and quote what was sent behind a colon.
        fault = (message or "").partition("\n")[0].partition(":")[0]
        return refusal(status, f"malformed request: {fault}" if fault else "the request cannot be handled")


def refusal(status: int, message: str) -> web.Response:
    """The last answer on its connection."""
    answer = refused(status, message)
    response = web.Response(status=status, headers=answer.headers, body=answer.data)
    response.force_close()
    return response


# The connections of the data port: each begins as a plain one, and becomes aiohttp's where a request is not plain.
#
# aiohttp itself waits for the head of a connection's first request for as long as a connection may idle, 75 s: enough for
# a few clients to hold many connections. Here both kinds give up after `head_timeout_s`.


class ServerConnections(web.Server):
    """`handler` answers what aiohttp reads."""

    def __init__(self, handler: Any, service: Service, config: ServerConfig, **options: Any) -> None:
        super().__init__(
            handler,
            request_factory=self._first_head_came,
            keepalive_timeout=config.idle_timeout,
            max_line_size=config.max_header,
            max_field_size=config.max_header,
            **options,
        )
        self.service = service
        self.heads = RequestHeads(config.max_header)
        self.head_timeout_s, self.idle_timeout_s = config.header_timeout, config.idle_timeout
        self.max_plain_body = min(MAX_BODY, config.max_body)
        self.plainly = True  # off: all are aiohttp's, which is how tests know that both answer alike
        self.leaving = False  # whoever asks now is told that its connection ends with the answer
        self._lost = asyncio.Event()
        self._plain: set[PlainConnection] = set()
        self._timers: dict[RequestHandler, asyncio.TimerHandle] = {}

    def __call__(self) -> Any:
        return PlainConnection(self, self._loop) if self.plainly else self._full()

    # Plain ones

    def opened(self, connection: PlainConnection) -> None:
        self._plain.add(connection)

    def closed(self, connection: PlainConnection) -> None:
        self._plain.discard(connection)
        self._lost.set()

    def hand_over(self, transport: asyncio.Transport, data: bytes) -> None:
        """Makes a connection aiohttp's, which is given all that has not been answered."""
        handler = self._full()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        handler.data_received(data)

    def _full(self) -> ServerConnection:
        return ServerConnection(self, loop=self._loop, **self._kwargs)

    # aiohttp's

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._timers[handler] = self._loop.call_later(self.head_timeout_s, transport.abort)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        self._stop_timer(handler)
        super().connection_lost(handler, exc)
        self._lost.set()

    def _first_head_came(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        if self._timers:
            self._stop_timer(protocol)
        if self.leaving:
            message = message._replace(should_close=True)
        return self._make_request(message, payload, protocol, writer, task)

    def _stop_timer(self, handler: RequestHandler) -> None:
        timer = self._timers.pop(handler, None)
        if timer is not None:
            timer.cancel()

    # All of them

    async def emptied(self) -> None:
        """Returns once no connection is open."""
        while self.connections or self._plain:
            self._lost.clear()
            await self._lost.wait()

    def pre_shutdown(self) -> None:
        super().pre_shutdown()
        for connection in tuple(self._plain):
            connection.finish()

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as `web.Server` has it
        plain = [connection.ended(timeout) for connection in self._plain]
        await asyncio.gather(super().shutdown(timeout), *plain)


# A client's connection for as long as it asks plainly: requests whose framing can be read in one way only, which came
# whole. They are answered without aiohttp's parser, streams, timers and two tasks a request, and what is answered at once
# without any task (docs/decisions/0029-plain-requests.md has the measurement).
#
# Everything else is aiohttp's: at the first byte that is not plainly of such a request the connection is handed over,
# with all that has not been answered, and stays there. So nothing here needs to know how such a request is refused.

LOG_PLAIN_CONNECTION = logging.getLogger("nearhit")

MAX_BODY = 256 * 1024  # of a request that is waited for here; longer ones may stream

WAIT_S = 0.05  # clients that send head and body apart, as httpx does, send the second a moment after the first

CROSSING_S = 0.05  # of an idle connection that is to end: a request on its way in it would be lost

MAX_AHEAD = 64 * 1024  # bytes of later requests that are read while one is answered

END = b"\r\n\r\n"


class PlainConnection(asyncio.Protocol):
    """At any time it waits for a request, waits for the rest of one, or has a task that answers one."""

    __slots__ = (
        "_ahead", "_deadline", "_gone", "_have", "_last", "_loop", "_out", "_pieces", "_reading", "_server",
        "_task", "_timer", "_transport", "_waiting", "_want",
    )  # fmt: skip

    def __init__(self, server: ServerConnections, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._pieces: list[bytes] = []  # of a request that has not come whole
        self._have, self._want = 0, 0  # bytes of it; 0: not even its head has
        self._waiting: asyncio.TimerHandle | None = None  # for the rest
        self._ahead = b""  # what came while a request is answered
        self._reading, self._last = True, False  # the last request is what is read or answered now
        self._gone: asyncio.Future[None] | None = None

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._out = OutputBuffer(self._transport)
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
        if self._task is not None:  # once it has begun: else it gives nothing back of what it was handed
            self._loop.call_soon(self._task.cancel)

    @property
    def goes_on(self) -> bool:
        """Whether there may be another request on this connection."""
        return not (self._last or self._server.leaving)

    # Requests

    def _take(self, data: bytes) -> None:
        """Answers the requests in `data`, until one has to be waited for or has not come whole."""
        heads, server, at = self._server.heads, self._server, 0
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
            if not self._answered(head, body):
                self._ahead, self._deadline = data[at:], math.inf
                return
            if self._last or server.leaving:
                self._transport.close()
                return
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

    def _answered(self, head: RequestHead, body: bytes) -> bool:
        """False: a task answers."""
        service, self._out.begun = self._server.service, False
        if head.method != "POST":
            early = service.early(head.method, head.path, head.headers)
            if early is not None:
                self._task = self._loop.create_task(self._answer_early(head, early))
                return False
        # On a connection that ends the answer says so: what was remembered of another one does not.
        goes_on = not (self._last or self._server.leaving)
        digest = head.decisive if goes_on else b""
        request = service.request(
            head.method, head.path, head.query, head.headers, BufferedBody(body), self._out.peer,
            head.memo, digest, head.traces,
        )  # fmt: skip
        try:
            answer = service.answer(request)
            if isinstance(answer, Response):
                wire = answer.wire or whole_answer(service.headers, request, answer, keep_alive=goes_on)
                if wire is not None:
                    self._transport.write(wire)
                    return True
        except Exception as error:  # nothing that a step raises comes here: `ErrorBoundary` has answered it
            self._fail(error)
            self._last = True
            return True
        service.inflight.count += 1
        self._task = self._loop.create_task(self._answer(request, answer))
        return False

    async def _answer_early(self, head: RequestHead, early: Response | Awaitable[Response]) -> None:
        response = early if isinstance(early, Response) else await early
        assert isinstance(response.body, FullBody)
        goes_on = self.goes_on
        self._transport.write(
            bare_answer(head.method, response.status, response.headers, response.body.data, keep_alive=goes_on)
        )
        await self._out.taken()
        self._next(goes_on)

    async def _answer(self, request: RequestContext, answer: Response | Awaitable[Response]) -> None:
        """Of a request that is counted as in flight: this ends that."""
        goes_on = False
        try:
            goes_on = await self._written(request, answer if isinstance(answer, Response) else await answer)
        except asyncio.CancelledError:
            self._out.cut()
            raise
        except (UpstreamStreamError, ConnectionError):
            # No dialect to say it in: the connection is cut, so that the client sees an incomplete body.
            self._out.cut()
        except Exception as error:
            self._fail(error)
        finally:
            self._server.service.inflight.count -= 1
        self._next(goes_on)

    async def _written(self, request: RequestContext, response: Response) -> bool:
        """Whether the client was told that the connection goes on, when it has taken all of the answer."""
        out, server = self._out, self._server
        own, goes_on = server.service.headers, not (self._last or server.leaving)
        data = response.wire
        if data is None:
            data = whole_answer(own, request, response, keep_alive=goes_on)
        elif not goes_on:  # it was made before this was known
            data = data.replace(END, CLOSES + END, 1)
        if data is None:
            await stream(out, own, request, response, keep_alive=goes_on)
            return goes_on
        out.write(data)
        if not out.writable:
            await out.taken()
        return goes_on

    def _fail(self, error: Exception) -> None:
        LOG_PLAIN_CONNECTION.error("a request was not answered", extra={"fields": {"error": type(error).__name__}})
        if self._out.begun:
            self._out.cut()
            return
        _, headers, data = refused(500, "the request cannot be handled")
        with suppress(ConnectionError):
            self._out.write(bare_answer("", 500, headers, data, keep_alive=False))

    def _next(self, goes_on: bool) -> None:
        self._task = None
        if goes_on and not self._last:
            self._deadline = self._loop.time() + self._server.idle_timeout_s
            if self._ahead or not self._reading:
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
