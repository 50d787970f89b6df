"""Connections of the HTTP port: plain HTTP/1.1 is read here, and aiohttp takes over what is not plain.

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
from gateway.http_server.response_writer import OutputBuffer, encode_answer, stream
from gateway.http_server.service import RequestService
from gateway.http_server.wire import CLOSES, encode_response
from gateway.messages import FullBody, Response
from gateway.streams import BufferedBody


# The last answer on a connection: to what cannot be read, or could not be handled.
class ConnectionRefused(NamedTuple):
    status: int
    headers: tuple[tuple[str, str], ...]
    data: bytes


def closing_answer(status: int, message: str) -> ConnectionRefused:
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
        flags = self._close, self._force_close
        if not any(flags) or self._current_request is None:
            super().data_received(data)
            return
        self._close = self._force_close = False
        try:
            super().data_received(data)
        finally:
            self._close, self._force_close = self._close or flags[0], self._force_close or flags[1]

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
        reason = (message or "").partition("\n")[0].partition(":")[0]
        return closing_response(status, f"malformed request: {reason}" if reason else "the request cannot be handled")


def closing_response(status: int, message: str) -> web.Response:
    """The last answer on its connection."""
    answer = closing_answer(status, message)
    response = web.Response(status=status, headers=answer.headers, body=answer.data)
    response.force_close()
    return response


# The connections of the data port: each begins as a plain one, and becomes aiohttp's where a request is not plain.
#
# aiohttp itself waits for the head of a connection's first request for as long as a connection may idle, 75 s: enough
# for a few clients to hold many connections. Here both kinds give up after `head_timeout_s`.


class ServerConnections(web.Server):
    """`handler` answers what aiohttp reads."""

    def __init__(self, handler: Any, service: RequestService, config: ServerConfig, **options: Any) -> None:
        super().__init__(
            handler,
            request_factory=self._on_first_head,
            keepalive_timeout=config.idle_timeout,
            max_line_size=config.max_header,
            max_field_size=config.max_header,
            **options,
        )
        self.service = service
        self.heads = RequestHeads(config.max_header)
        self.head_timeout_s, self.idle_timeout_s = config.header_timeout, config.idle_timeout
        self.max_plain_body = min(MAX_BODY, config.max_body)
        self.accepts_plain = True  # off: all are aiohttp's, which is how tests know that both answer alike
        self.is_draining = False  # whoever asks now is told that its connection ends with the answer
        self._closed_event = asyncio.Event()
        self._plain: set[PlainConnection] = set()
        self._timers: dict[RequestHandler, asyncio.TimerHandle] = {}

    def __call__(self) -> Any:
        return PlainConnection(self, self._loop) if self.accepts_plain else self._aiohttp_connection()

    # Plain ones

    def register(self, connection: PlainConnection) -> None:
        self._plain.add(connection)

    def unregister(self, connection: PlainConnection) -> None:
        self._plain.discard(connection)
        self._closed_event.set()

    def switch_to_aiohttp(self, transport: asyncio.Transport, data: bytes) -> None:
        """Makes a connection aiohttp's, which is given all that has not been answered."""
        handler = self._aiohttp_connection()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        handler.data_received(data)

    def _aiohttp_connection(self) -> ServerConnection:
        return ServerConnection(self, loop=self._loop, **self._kwargs)

    # aiohttp's

    def connection_made(self, handler: RequestHandler, transport: asyncio.Transport) -> None:
        super().connection_made(handler, transport)
        self._timers[handler] = self._loop.call_later(self.head_timeout_s, transport.abort)

    def connection_lost(self, handler: RequestHandler, exc: BaseException | None = None) -> None:
        self._stop_timer(handler)
        super().connection_lost(handler, exc)
        self._closed_event.set()

    def _on_first_head(self, message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
        if self._timers:
            self._stop_timer(protocol)
        if self.is_draining:
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
            self._closed_event.clear()
            await self._closed_event.wait()

    def pre_shutdown(self) -> None:
        super().pre_shutdown()
        for connection in tuple(self._plain):
            connection.finish()

    async def shutdown(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 - as `web.Server` has it
        plain = [connection.wait_closed(timeout) for connection in self._plain]
        await asyncio.gather(super().shutdown(timeout), *plain)


# A client's connection for as long as it asks plainly: requests whose framing can be read in one way only, which came
# whole. They are answered without aiohttp's parser, streams, timers and two tasks a request, and what is answered at
# once without any task (docs/decisions/0030 has the measurement).
#
# Everything else is aiohttp's: at the first byte that is not plainly of such a request the connection is handed over,
# with all that has not been answered, and stays there. So nothing here needs to know how such a request is refused.

LOG_PLAIN = logging.getLogger("nearhit")

MAX_BODY = 256 * 1024  # of a request that is waited for here; longer ones may stream

REST_TIMEOUT_S = 0.05  # clients that send head and body apart, as httpx does, send the second a moment after the first

CLOSE_GRACE_S = 0.05  # of an idle connection that is to end: a request on its way in it would be lost

MAX_PIPELINED = 64 * 1024  # bytes of later requests that are read while one is answered

HEAD_END = b"\r\n\r\n"


class PlainConnection(asyncio.Protocol):
    """At any time it waits for a request, waits for the rest of one, or has a task that answers one."""

    __slots__ = (
        "_closed",
        "_deadline",
        "_expected",
        "_is_last",
        "_loop",
        "_output",
        "_partial",
        "_pipelined",
        "_reading",
        "_received",
        "_server",
        "_task",
        "_timer",
        "_transport",
        "_wait_timer",
    )  # fmt: skip

    def __init__(self, server: ServerConnections, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._task: asyncio.Task[None] | None = None
        self._partial: list[bytes] = []  # of a request that has not come whole
        self._received, self._expected = 0, 0  # bytes of it; 0: not even its head has
        self._wait_timer: asyncio.TimerHandle | None = None  # for the rest
        self._pipelined = b""  # what came while a request is answered
        self._reading, self._is_last = True, False  # the last request is what is read or answered now
        self._closed: asyncio.Future[None] | None = None

    # What the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._output = OutputBuffer(self._transport)
        now, server = self._loop.time(), self._server
        self._deadline = now + server.head_timeout_s
        self._timer = self._loop.call_at(now + min(server.head_timeout_s, server.idle_timeout_s), self._expire)
        self._server.register(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._cancel_timers()
        self._output.emptied()
        self._cancel()  # upstream, too
        if self._closed is not None:
            self._closed.set_result(None)
        self._server.unregister(self)

    def pause_writing(self) -> None:
        self._output.pause()

    def resume_writing(self) -> None:
        self._output.emptied()
        if self._task is None:
            self._resume()

    def data_received(self, data: bytes) -> None:
        if self._task is not None or not self._output.writable:
            self._pipelined += data
            if len(self._pipelined) > MAX_PIPELINED and self._reading:
                self._reading = False
                self._transport.pause_reading()
            return
        if self._partial:
            self._partial.append(data)
            self._received += len(data)
            if self._received < self._expected:
                return
            data = b"".join(self._partial)
        self._take_requests(data)

    # What the server asks

    def finish(self) -> None:
        """No further request is taken; what is being read or answered is."""
        self._is_last, self._closed = True, self._loop.create_future()
        self._loop.call_later(CLOSE_GRACE_S, self._close_idle)

    def _close_idle(self) -> None:
        if self._task is None and not self._partial:
            self._transport.close()

    async def wait_closed(self, timeout_s: float | None) -> None:
        """After `finish`: what takes longer than `timeout_s` is cut."""
        assert self._closed is not None
        await asyncio.wait((self._closed,), timeout=timeout_s)
        self._cancel()
        self._transport.abort()

    def _cancel(self) -> None:
        if self._task is not None:  # once it has begun: else it gives nothing back of what it was handed
            self._loop.call_soon(self._task.cancel)

    @property
    def keep_alive(self) -> bool:
        """Whether there may be another request on this connection."""
        return not (self._is_last or self._server.is_draining)

    # Requests

    def _take_requests(self, data: bytes) -> None:
        """Answers the requests in `data`, until one has to be waited for or has not come whole."""
        heads, server, at = self._server.heads, self._server, 0
        while not self._transport.is_closing():
            end = data.find(HEAD_END, at) + len(HEAD_END)
            if end < len(HEAD_END):
                if len(data) - at > MAX_HEAD:
                    self._switch_to_aiohttp(data[at:])
                else:
                    self._wait(data[at:], 0)
                return
            head = heads.read(data[at:end])
            if head is None or head.length > server.max_plain_body:
                self._switch_to_aiohttp(data[at:])
                return
            request_end = end + head.length
            if len(data) < request_end:
                self._wait(data[at:], request_end - at)
                return
            if self._partial:
                self._clear_partial()
            body, at = data[end:request_end], request_end
            self._is_last = self._is_last or head.closes
            if not self._try_answer(head, body):
                self._pipelined, self._deadline = data[at:], math.inf
                return
            if self._is_last or server.is_draining:
                self._transport.close()
                return
            if at == len(data) or not self._output.writable:  # a client that asks and does not read has to wait
                self._pipelined, self._deadline = data[at:], self._loop.time() + server.idle_timeout_s
                return

    def _wait(self, data: bytes, size: int) -> None:
        """For the rest of a request of `size` bytes; 0: its head has not come to its end."""
        self._partial, self._received, self._expected = [data], len(data), size
        if self._wait_timer is None:
            self._wait_timer = self._loop.call_later(REST_TIMEOUT_S, self._on_wait_timeout)

    def _on_wait_timeout(self) -> None:
        if self._output.writable and (
            self._closed is None or not self._expected
        ):  # while it ends, bodies are waited for here
            self._switch_to_aiohttp(b"".join(self._partial))
        else:  # aiohttp counts on being told that the transport is full
            self._wait_timer = self._loop.call_later(REST_TIMEOUT_S, self._on_wait_timeout)

    def _clear_partial(self) -> None:
        self._partial, self._expected = [], 0
        if self._wait_timer is not None:
            self._wait_timer.cancel()
            self._wait_timer = None

    def _switch_to_aiohttp(self, data: bytes) -> None:
        if self._is_last:
            self._transport.close()
            return
        self._cancel_timers()
        self._server.unregister(self)
        self._server.switch_to_aiohttp(self._transport, data)

    def _cancel_timers(self) -> None:
        """Of this connection nothing more is waited for here."""
        self._timer.cancel()
        self._clear_partial()

    def _expire(self) -> None:
        """Closes it where no request came in time, the first one or another."""
        now = self._loop.time()
        if self._task is None and now >= self._deadline:
            (self._transport.close if self._output.writable else self._transport.abort)()
            return
        self._timer = self._loop.call_at(min(self._deadline, now + self._server.idle_timeout_s), self._expire)

    # Answers

    def _try_answer(self, head: RequestHead, body: bytes) -> bool:
        """False: a task answers."""
        service, self._output.has_written = self._server.service, False
        if head.method != "POST":
            direct = service.direct(head.method, head.path, head.headers)
            if direct is not None:
                self._task = self._loop.create_task(self._send_direct(head, direct))
                return False
        # On a connection that ends the answer says so: what was remembered of another one does not.
        keep_alive = not (self._is_last or self._server.is_draining)
        digest = head.digest if keep_alive else b""
        request = service.request(
            head.method, head.path, head.query, head.headers, BufferedBody(body), self._output.peer,
            head.memo, digest, head.trace_headers,
        )  # fmt: skip
        try:
            answer = service.answer(request)
            if isinstance(answer, Response):
                wire = answer.wire or encode_answer(service.headers, request, answer, keep_alive=keep_alive)
                if wire is not None:
                    self._transport.write(wire)
                    return True
        except Exception as error:  # nothing that a step raises comes here: `ErrorBoundary` has answered it
            self._fail(error)
            self._is_last = True
            return True
        service.inflight.count += 1
        self._task = self._loop.create_task(self._answer(request, answer))
        return False

    async def _send_direct(self, head: RequestHead, direct: Response | Awaitable[Response]) -> None:
        response = direct if isinstance(direct, Response) else await direct
        assert isinstance(response.body, FullBody)
        keep_alive = self.keep_alive
        self._transport.write(
            encode_response(head.method, response.status, response.headers, response.body.data, keep_alive=keep_alive)
        )
        await self._output.wait_writable()
        self._next_request(keep_alive)

    async def _answer(self, request: RequestContext, answer: Response | Awaitable[Response]) -> None:
        """Of a request that is counted as in flight: this ends that."""
        keep_alive = False
        try:
            keep_alive = await self._write_response(request, answer if isinstance(answer, Response) else await answer)
        except asyncio.CancelledError:
            self._output.abort()
            raise
        except (UpstreamStreamError, ConnectionError):
            # No dialect to say it in: the connection is cut, so that the client sees an incomplete body.
            self._output.abort()
        except Exception as error:
            self._fail(error)
        finally:
            self._server.service.inflight.count -= 1
        self._next_request(keep_alive)

    async def _write_response(self, request: RequestContext, response: Response) -> bool:
        """Whether the client was told that the connection goes on, when it has taken all of the answer."""
        out, server = self._output, self._server
        own, keep_alive = server.service.headers, not (self._is_last or server.is_draining)
        data = response.wire
        if data is None:
            data = encode_answer(own, request, response, keep_alive=keep_alive)
        elif not keep_alive:  # it was made before this was known
            data = data.replace(HEAD_END, CLOSES + HEAD_END, 1)
        if data is None:
            await stream(out, own, request, response, keep_alive=keep_alive)
            return keep_alive
        out.write(data)
        if not out.writable:
            await out.wait_writable()
        return keep_alive

    def _fail(self, error: Exception) -> None:
        LOG_PLAIN.error("a request was not answered", extra={"fields": {"error": type(error).__name__}})
        if self._output.has_written:
            self._output.abort()
            return
        _, headers, data = closing_answer(500, "the request cannot be handled")
        with suppress(ConnectionError):
            self._output.write(encode_response("", 500, headers, data, keep_alive=False))

    def _next_request(self, keep_alive: bool) -> None:
        self._task = None
        if keep_alive and not self._is_last:
            self._deadline = self._loop.time() + self._server.idle_timeout_s
            if self._pipelined or not self._reading:
                self._resume()
        else:
            self._transport.close()

    def _resume(self) -> None:
        """With what came meanwhile."""
        if self._transport.is_closing():
            return
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        pipelined, self._pipelined = self._pipelined, b""
        if pipelined:
            self.data_received(pipelined)
