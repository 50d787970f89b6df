"""Serves the connections of the HTTP port: reads plain HTTP/1.1 itself, and hands everything else to aiohttp.

aiohttp alone waits for the first head of a connection for the full idle timeout of 75 s. A few clients could hold many
connections that way. Here both kinds of connection give up after `head_timeout_s`.
"""

from __future__ import annotations

import asyncio
import logging
import math
import re
from collections.abc import Awaitable
from contextlib import suppress
from typing import Any, NamedTuple, cast

from aiohttp import HttpVersion, HttpVersion10, HttpVersion11, web
from aiohttp.web_protocol import RequestHandler

from gateway.config.schema import ServerConfig
from gateway.context import HeadMemo, RequestContext
from gateway.dialects.known import DEFAULT, DIALECTS
from gateway.errors import UpstreamStreamError
from gateway.http_server.heads import MAX_HEAD, RequestHead, RequestHeads
from gateway.http_server.response_writer import OutputBuffer, encode_answer, stream
from gateway.http_server.service import RequestService
from gateway.http_server.slow_readers import ReadingPace, SlowReaders
from gateway.http_server.wire import CLOSES, encode_response
from gateway.messages import FullBody, Response
from gateway.streams import BufferedBody
from gateway.unread_memory import UnreadMemory


class ConnectionRefused(NamedTuple):
    """The last answer on a connection: to a request that cannot be read, or could not be handled."""

    status: int
    headers: tuple[tuple[str, str], ...]
    data: bytes


def closing_answer(status: int, message: str) -> ConnectionRefused:
    body = DIALECTS[DEFAULT].error("internal_error" if status == 500 else "invalid_request_error", message)
    return ConnectionRefused(status, (("Content-Type", "application/json"), ("Server", "nearhit")), body)


# A request line that aiohttp's parser would wait behind, or misread: without a version, or with that of HTTP/2.
ODD_LINE = re.compile(rb"[^ ]+ [^ ]+(?: HTTP/(2)\.(0))?\r?\n")


def refused_version(version: HttpVersion) -> tuple[int, str] | None:
    """Return status and message for a version that this port does not speak, or None if it does (RFC 9110 section
    15.6.6). A request of HTTP/0.9 has neither a version nor headers: any line would pass for one."""
    if version < HttpVersion10:
        return 400, "HTTP/0.9 is not supported: expected HTTP/1.1 at the end of the request line"
    if version > HttpVersion11:
        return 505, f"HTTP/{version.major}.{version.minor} is not supported here: expected HTTP/1.1"
    return None


HTTP_2 = 505, "HTTP/2.0 is not supported here: expected HTTP/1.1"


def refused_line(data: bytes) -> tuple[int, str] | None:
    """Return status and message if `data` begins with an `ODD_LINE`, or None if it does not."""
    line = ODD_LINE.match(data)
    return None if line is None else refused_version(HttpVersion(int(line[1] or 0), int(line[2] or 9)))


LOG = logging.getLogger("nearhit")


class ServerConnection(RequestHandler):
    """An aiohttp connection that quotes no requests, and reads answers ahead of its client.

    aiohttp itself quotes a malformed request, credentials included, in its log and in its answer."""

    _pace: ReadingPace | None = None  # set once the client has fallen behind
    _output_size = 0  # bytes of the answer that `_pace` knows of
    slow_readers: SlowReaders

    def pause_writing(self) -> None:
        super().pause_writing()
        assert self.transport is not None
        if self._pace is None:
            self._pace = ReadingPace(self.slow_readers, self.transport)
        self._output_size = self._bytes_written
        self._pace.begin(counts_writes=not self._upgraded)

    @property
    def _bytes_written(self) -> int:
        """The bytes of the current answer that were written."""
        request: Any = self._current_request
        return 0 if request is None else int(request.writer.output_size)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._pace is not None:
            self._pace.end()

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        if self._pace is not None:
            self._pace.end()

    async def _drain_helper(self) -> None:
        """Wait until more of the answer may be written. aiohttp calls this at the latest after each 64 KiB."""
        if self.transport is None:
            raise ConnectionResetError("the client has left")
        if self._upgraded or self._pace is None:  # frames of a WebSocket are not read ahead
            await super()._drain_helper()
        elif self._paused:
            written, self._output_size = self._bytes_written - self._output_size, self._bytes_written
            self._pace.record_write(written)
            await self._pace.wait_for_room()

    def data_received(self, data: bytes) -> None:
        """Pass data on while a request is read. Once the connection is to end, aiohttp drops all data, and the request
        would wait for its rest until the stop times out. Later requests are still not read."""
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
        """Refuse a request that the parser could not read, and close: it is unknown where the next request starts."""
        LOG.info("malformed request", extra={"fields": {"status": status, "error": type(exc).__name__}})
        if request.writer.output_size > 0:
            raise ConnectionError("the answer has begun, so the connection is aborted")
        if "PRI/Upgrade" in (message or ""):  # the parser's word for the preface of HTTP/2
            return closing_response(*HTTP_2)
        # The parser's messages name the fault first; after a colon they quote the request.
        reason = (message or "").partition("\n")[0].partition(":")[0]
        return closing_response(status, f"malformed request: {reason}" if reason else "the request cannot be handled")


LINGER_S = 1.0  # how long a client may take to read the last answer on its connection


class LingeringClose(asyncio.Protocol):
    """Closes a connection after its last answer, and drops what the client still sends.

    A client of HTTP/2 sends frames before it reads anything. A socket that closes with unread data resets the
    connection, and the client may lose the answer.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._timer = loop.call_later(LINGER_S, transport.abort)
        if transport.can_write_eof():
            transport.write_eof()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._timer.cancel()


def closing_response(status: int, message: str) -> web.Response:
    """Return an aiohttp response that is the last answer on its connection."""
    answer = closing_answer(status, message)
    response = web.Response(status=status, headers=answer.headers, body=answer.data)
    response.force_close()
    return response


class ServerConnections(web.Server):
    """The connections of the data port. Each begins as a plain one, and switches to aiohttp at a request that is not
    plain. `handler` answers the requests that aiohttp reads."""

    def __init__(
        self, handler: Any, service: RequestService, config: ServerConfig, unread: UnreadMemory, **options: Any
    ) -> None:
        super().__init__(
            handler,
            request_factory=self._on_first_head,
            keepalive_timeout=config.idle_timeout,
            max_line_size=config.max_header,
            max_field_size=config.max_header,
            **options,
        )
        self.service = service
        self.slow_readers = SlowReaders(unread, config.read_min_rate, config.read_timeout)
        self.heads = RequestHeads(config.max_header)
        self.head_timeout_s, self.idle_timeout_s = config.header_timeout, config.idle_timeout
        self.max_plain_body = min(MAX_BODY, config.max_body)
        self.accepts_plain = True  # tests clear it, so that aiohttp answers, too
        self.is_draining = False  # once set, the next answer on each connection closes it
        self._closed_event = asyncio.Event()
        self._plain: set[PlainConnection] = set()
        self._timers: dict[RequestHandler, asyncio.TimerHandle] = {}

    def __call__(self) -> Any:
        return PlainConnection(self, self._loop) if self.accepts_plain else self._aiohttp_connection()

    # Plain connections

    def register(self, connection: PlainConnection) -> None:
        self._plain.add(connection)

    def unregister(self, connection: PlainConnection) -> None:
        self._plain.discard(connection)
        self._closed_event.set()

    def switch_to_aiohttp(self, transport: asyncio.Transport, data: bytes) -> None:
        """Hand a connection to aiohttp, with all data that has not been answered."""
        refusal = refused_line(data)
        if refusal is not None:
            status, headers, body = closing_answer(*refusal)
            transport.write(encode_response("", status, headers, body, keep_alive=False))
            transport.set_protocol(LingeringClose(transport, self._loop))
            return
        handler = self._aiohttp_connection()
        transport.set_protocol(handler)
        handler.connection_made(transport)
        handler.data_received(data)

    def _aiohttp_connection(self) -> ServerConnection:
        connection = ServerConnection(self, loop=self._loop, **self._kwargs)
        connection.slow_readers = self.slow_readers
        return connection

    # Connections of aiohttp

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

    # All connections

    async def emptied(self) -> None:
        """Return once no connection is open."""
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


LOG_PLAIN = logging.getLogger("nearhit")

MAX_BODY = 256 * 1024  # bytes of a plain request's body; aiohttp can stream longer ones

REST_TIMEOUT_S = 0.05  # for the rest of a request: clients such as httpx send the body a moment after the head

CLOSE_GRACE_S = 0.05  # before an idle connection closes: a request that is on its way would be lost

FIRST_GRACE_S = 1.0  # the same for a new connection: its client opened it for a request

MAX_PIPELINED = 64 * 1024  # bytes of later requests that are read while one is answered

HEAD_END = b"\r\n\r\n"


class PlainConnection(asyncio.Protocol):
    """The connection of a client as long as its requests are plain: they arrive whole, and their framing can be read in
    one way only.

    Such requests need no parser, streams, timers or two tasks of aiohttp, and answers from memory need no task at all
    (measurement: docs/decisions/0030). At the first byte that is not plain, aiohttp takes over the
    connection for good, with all data that has not been answered. So this class need not know how to refuse a request.

    At any time it waits for a request, waits for the rest of one, or has a task that answers one.
    """

    __slots__ = (
        "_closed",
        "_deadline",
        "_expected",
        "_is_last",
        "_is_new",
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
        self._partial: list[bytes] = []  # data of an incomplete request
        self._received, self._expected = 0, 0  # its bytes; 0 are expected before its head is complete
        self._wait_timer: asyncio.TimerHandle | None = None  # for the rest of it
        self._pipelined = b""  # data that arrived while a request is answered
        self._reading, self._is_last = True, False  # is_last: the current request is the last one
        self._is_new = True  # until its first request is whole
        self._closed: asyncio.Future[None] | None = None

    # Callbacks of the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._output = OutputBuffer(self._transport, self._server.slow_readers)
        now, server = self._loop.time(), self._server
        self._deadline = now + server.head_timeout_s
        self._timer = self._loop.call_at(now + min(server.head_timeout_s, server.idle_timeout_s), self._expire)
        self._server.register(self)

    def connection_lost(self, exc: BaseException | None) -> None:
        self._cancel_timers()
        self._output.emptied()
        self._cancel()  # cancels the backend call, too
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

    # Calls of the server

    def finish(self) -> None:
        """Accept no further request; finish the one that is being read or answered."""
        self._is_last, self._closed = True, self._loop.create_future()
        self._loop.call_later(FIRST_GRACE_S if self._is_new else CLOSE_GRACE_S, self._close_idle)

    def _close_idle(self) -> None:
        if self._task is None and not self._partial:
            self._transport.close()

    async def wait_closed(self, timeout_s: float | None) -> None:
        """Wait for the end after `finish`; abort after `timeout_s`."""
        assert self._closed is not None
        await asyncio.wait((self._closed,), timeout=timeout_s)
        self._cancel()
        self._transport.abort()

    def _cancel(self) -> None:
        if self._task is not None:  # only after it has begun, so that it releases what it was given
            self._loop.call_soon(self._task.cancel)

    @property
    def keep_alive(self) -> bool:
        """Whether another request may follow on this connection."""
        return not (self._is_last or self._server.is_draining)

    # Requests

    def _take_requests(self, data: bytes) -> None:
        """Answer the requests in `data`, until one needs a task or is incomplete."""
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
            self._is_last, self._is_new = self._is_last or head.closes, False
            if not self._try_answer(head, body):
                self._pipelined, self._deadline = data[at:], math.inf
                return
            if self._is_last or server.is_draining:
                self._transport.close()
                return
            if at == len(data) or not self._output.writable:  # a client that does not read its answers has to wait
                self._pipelined, self._deadline = data[at:], self._loop.time() + server.idle_timeout_s
                return

    def _wait(self, data: bytes, size: int) -> None:
        """Wait for the rest of a request of `size` bytes, which is 0 while its head is incomplete."""
        self._partial, self._received, self._expected = [data], len(data), size
        if self._wait_timer is None:
            self._wait_timer = self._loop.call_later(REST_TIMEOUT_S, self._on_wait_timeout)

    def _on_wait_timeout(self) -> None:
        if self._output.writable and (
            self._closed is None or not self._expected
        ):  # while the connection ends, wait for bodies here
            self._switch_to_aiohttp(b"".join(self._partial))
        else:  # aiohttp must see `pause_writing`, so do not switch while the transport is full
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
        self._timer.cancel()
        self._clear_partial()

    def _expire(self) -> None:
        """Close the connection if no request arrived in time."""
        now = self._loop.time()
        if self._task is None and now >= self._deadline:
            (self._transport.close if self._output.writable else self._transport.abort)()
            return
        self._timer = self._loop.call_at(min(self._deadline, now + self._server.idle_timeout_s), self._expire)

    # Answers

    def _try_answer(self, head: RequestHead, body: bytes) -> bool:
        """Answer at once if possible. Return False if a task answers."""
        service, self._output.has_written = self._server.service, False
        if head.method != "POST":
            direct = service.direct(head.method, head.path, head.headers)
            if direct is not None:
                self._task = self._loop.create_task(self._send_direct(head, direct))
                return False
        # The last answer on a connection says so; a remembered answer does not. So pass no digest then.
        keep_alive = not (self._is_last or self._server.is_draining)
        memo = head.memo if keep_alive or head.closes else HeadMemo()
        request = service.request(
            head.method, head.path, head.query, head.headers, BufferedBody(body), self._output.peer,
            memo, head.trace_headers,
        )  # fmt: skip
        try:
            answer = service.answer(request)
            if isinstance(answer, Response):
                wire = answer.wire or encode_answer(service.headers, request, answer, keep_alive=keep_alive)
                if wire is not None:
                    self._transport.write(wire)
                    return True
        except Exception as error:  # not from a step: `ErrorBoundary` answers those
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
        """Send the answer to a request, then take it out of the requests in flight."""
        keep_alive = False
        try:
            keep_alive = await self._write_response(request, answer if isinstance(answer, Response) else await answer)
        except asyncio.CancelledError:
            self._output.abort()
            self._task = None  # it keeps the error, which holds this frame: a cycle would keep the answer in memory
            raise
        except (UpstreamStreamError, ConnectionError):
            # No dialect has an error event here: abort, so that the client sees an incomplete body.
            self._output.abort()
        except Exception as error:
            self._fail(error)
        finally:
            self._server.service.inflight.count -= 1
        self._next_request(keep_alive)

    async def _write_response(self, request: RequestContext, response: Response) -> bool:
        """Write a response, and return once the client has taken it: True if the response keeps the connection open."""
        out, server = self._output, self._server
        own, keep_alive = server.service.headers, not (self._is_last or server.is_draining)
        data = response.wire
        if data is None:
            data = encode_answer(own, request, response, keep_alive=keep_alive)
        elif not keep_alive:  # the bytes were made before this was known
            data = data.replace(HEAD_END, CLOSES + HEAD_END, 1)
        if data is None:
            silence_s = server.service.config.stream_keep_alive
            await stream(out, own, request, response, keep_alive=keep_alive, silence_s=silence_s)
            return keep_alive
        out.write(data)
        del response, data  # the client may take its time
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
        """Continue with the data that arrived meanwhile."""
        if self._transport.is_closing():
            return
        if not self._reading:
            self._reading = True
            self._transport.resume_reading()
        pipelined, self._pipelined = self._pipelined, b""
        if pipelined:
            self.data_received(pipelined)
