"""One HTTP/1.1 client connection, with one exchange at a time."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator, Callable
from typing import Protocol, cast

from gateway.upstream.http1.errors import (
    ConnectionBroken,
    Disconnected,
    ExchangeFailed,
    MalformedAnswer,
    TimedOut,
    UploadFailed,
)
from gateway.upstream.http1.headers import HeaderNames
from gateway.upstream.http1.parser import ResponseHeadCache, ResponseParser
from gateway.upstream.http1.response import HttpResponse
from gateway.upstream.unread_bytes import UnreadBytes


# One timer serves all waits of a connection.
class DeadlineTimer:
    """`DeadlineTimer` calls `callback` once `deadline` has passed.

    Moving `deadline` to a later time creates no timer: the earlier timer checks it when it fires. So a connection with
    a request every millisecond needs one timer every few seconds.
    """

    __slots__ = ("_at", "_callback", "_deadline", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._deadline = self._at = math.inf
        self._handle: asyncio.TimerHandle | None = None

    def set(self, deadline: float) -> None:
        """Set the deadline (event-loop time), and replace an earlier one."""
        self._deadline = deadline
        if deadline < self._at:
            if self._handle is not None:
                self._handle.cancel()
            self._at = deadline
            self._handle = self._loop.call_at(deadline, self._on_timer)

    def cancel(self) -> None:
        """Cancel the timer for good."""
        self._deadline = self._at = math.inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _on_timer(self) -> None:
        self._handle, self._at, deadline = None, math.inf, self._deadline
        if deadline == math.inf:
            return
        if self._loop.time() < deadline:
            self.set(deadline)
            return
        self._deadline = math.inf
        self._callback()


# A request body in flight, while the response may already arrive.
class RequestBody:
    """`RequestBody` sends a streamed body, no faster than the server accepts it.

    `length` is in bytes, or None for chunks. `on_error` is called once if `body` raises or does not have that length.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        body: AsyncIterator[bytes],
        length: int | None,
        on_error: Callable[[BaseException], None],
    ) -> None:
        self._transport = transport
        self._body = body
        self._length = length
        self._on_error = on_error
        self._writable = asyncio.Event()
        self._writable.set()
        self._task = asyncio.create_task(self._run())

    @property
    def done(self) -> bool:
        return self._task.done()

    def cancel(self) -> None:
        self._task.cancel()

    def pause(self) -> None:
        self._writable.clear()

    def resume(self) -> None:
        self._writable.set()

    async def _run(self) -> None:
        try:
            await self._send()
        except Exception as error:
            self._on_error(error)

    async def _send(self) -> None:
        sent = 0
        async for chunk in self._body:
            sent += len(chunk)
            if self._length is None:
                if chunk:  # an empty chunk would mark the end
                    self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            elif sent > self._length:
                raise UploadFailed("the request body is longer than its Content-Length")
            else:
                self._transport.write(chunk)
            await self._writable.wait()
        if self._length is None:
            self._transport.write(b"0\r\n\r\n")
        elif sent < self._length:
            raise UploadFailed("the request body is shorter than its Content-Length")


MAX_UNREAD_BYTES = 128 * 1024  # of a body, after which the socket is not read until they are consumed

JOINED_BYTES = 64 * 1024  # bodies up to this size are appended to the head: one write, and one packet if they fit

TCP_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux


class ConnectionOwner(Protocol):
    """A `ConnectionOwner` lends connections for exchanges."""

    def add(self, connection: ClientConnection) -> None:
        """Register a new connection. `remove` follows exactly once."""

    def finish(self, connection: ClientConnection) -> None:
        """Take note that a connection only waits for the end of a body. `release` or `remove` follows."""

    def release(self, connection: ClientConnection) -> None:
        """Take back a connection that is ready for the next exchange."""

    def remove(self, connection: ClientConnection) -> None:
        """Drop a closed connection."""


class ClientConnection(asyncio.Protocol):
    """`ClientConnection` runs the exchanges of one connection, which may be idle for at most `idle_s` seconds.

    `names` and `known` may be shared between connections.
    """

    def __init__(self, owner: ConnectionOwner, names: HeaderNames, known: ResponseHeadCache, idle_s: float) -> None:
        self._owner = owner
        self._idle_s = idle_s
        self._socket: socket.socket | None = None
        self._unread: UnreadBytes | None = None  # from `connection_made` on
        self._loop = asyncio.get_running_loop()
        self._timer = DeadlineTimer(self._loop, self._on_deadline)
        self._parser = ResponseParser(names, known)
        self.transport: asyncio.Transport | None = None  # None before the connection is made and after it is lost
        self._answer: HttpResponse | None = None  # of the exchange in flight
        self._upload: RequestBody | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._listener: Callable[[], object] | None = None
        self._idle_timeout_s = self._deadline = self._last_read_at = 0.0  # see `subscribe`; event-loop time
        self._quickack_set = False  # since the last request
        self._is_paused = False  # nothing is read from the socket until somebody waits for it
        self._is_reusable = True  # False: close after this exchange
        self.exchange_count = 0  # exchanges begun

    # Called by the pool and the client.

    def send(
        self, head: bytes, body: bytes | AsyncIterator[bytes], *, length: int | None, is_head_request: bool
    ) -> HttpResponse:
        """Send a request and return its response, of which nothing has arrived; use `wait`.

        `length` is the Content-Length of a streamed body, or None for chunks.
        """
        assert self.transport is not None and self._answer is None
        answer = self._answer = HttpResponse(self)
        self._parser.start(answer, is_head_request=is_head_request)
        self.exchange_count += 1
        self._quickack_set = False
        if not isinstance(body, bytes):
            self.transport.write(head)
            self._upload = RequestBody(self.transport, body, length, self._on_upload_error)
        elif len(body) <= JOINED_BYTES:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))
        return answer

    @property
    def can_serve(self) -> bool:
        """Whether the connection is open, and the server has sent nothing since the last exchange.

        Ask at once before `send`. A fresh connection may have bytes: they were meant for nobody else.
        """
        if self.transport is None or self.transport.is_closing():
            return False
        return not (self.exchange_count and self._unread)

    def wait(self, deadline: float) -> asyncio.Future[None]:
        """Return a future that is done once data or an error has arrived. A caller that stops waiting closes the
        response.
        """
        if self._parser.has_started and not self._quickack_set:
            self._set_quickack()
        if self._is_paused:
            self._resume_reading()
        waiter = self._waiter = self._loop.create_future()
        self._timer.set(deadline)
        return waiter

    def subscribe(self, listener: Callable[[], object] | None, idle_timeout_s: float, deadline: float) -> None:
        """Implement `HttpResponse.subscribe`. While nobody listens, the body stays in the sockets: here it would take
        memory that no setting bounds."""
        self._listener, self._idle_timeout_s, self._deadline = listener, idle_timeout_s, deadline
        if listener is None:
            if not self._is_paused:
                self._pause_reading()
        else:
            if self._is_paused:
                self._resume_reading()
            if not self._quickack_set:
                self._set_quickack()
            self._last_read_at = self._loop.time()
            self._timer.set(min(self._last_read_at + idle_timeout_s, deadline))

    def finish(self, discard: Callable[[], object], deadline: float) -> None:
        """Implement `HttpResponse.finish`. `discard` drops what arrives."""
        self.subscribe(discard, math.inf, deadline)
        self._owner.finish(self)

    def close(self) -> None:
        """Close an idle connection."""
        if self.transport is not None:
            self._timer.cancel()
            self.transport.close()

    def abort(self) -> None:
        """Close at once, with any exchange in flight."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.on_error(ExchangeFailed("the gateway cancelled the exchange"))
        self._timer.cancel()
        if self._upload is not None:
            self._upload.cancel()
        if self.transport is not None:
            self.transport.abort()
        self._notify()

    def discard(self) -> None:
        """Drop a connection whose caller left while it was being opened.

        asyncio's transport reports the loss, uvloop's does not, and the pool would count the connection for ever.
        """
        if self.transport is not None:
            self.connection_lost(None)

    # Called by the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._socket = transport.get_extra_info("socket")
        self._unread = UnreadBytes(transport)
        self._owner.add(self)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:  # no exchange is in flight: the data must not be taken for the next response
            self.abort()
            return
        parser, before = self._parser, answer.unread
        try:
            parser.feed(data)
        except MalformedAnswer as error:
            self._fail(error)
            return
        if parser.ended:
            self._finish(answer)
        if self._listener is not None and not parser.ended:
            if answer.unread > before:
                self._last_read_at = self._loop.time()
                self._listener()
        elif answer.status and (parser.ended or answer.unread > before or before == 0):
            self._notify()
        if answer.unread > MAX_UNREAD_BYTES and answer is self._answer and not self._is_paused:  # nothing was taken
            self._pause_reading()

    def pause_writing(self) -> None:
        if self._upload is not None:
            self._upload.pause()

    def resume_writing(self) -> None:
        if self._upload is not None:
            self._upload.resume()

    def connection_lost(self, error: Exception | None) -> None:
        if self.transport is None:  # after `discard`
            return
        answer, self._answer = self._answer, None
        self.transport = None
        self._timer.cancel()
        if self._upload is not None:
            self._upload.cancel()
        if answer is not None:
            if self._parser.is_close_delimited and error is None:
                answer.on_end()
            elif self._parser.has_started:
                answer.on_error(ConnectionBroken("the server closed the connection within the response"))
            else:
                answer.on_error(Disconnected("the server closed the connection before the response"))
        self._parser.close()
        self._owner.remove(self)
        self._notify()

    def _finish(self, answer: HttpResponse) -> None:
        """Complete the exchange, and release or close the connection."""
        self._answer = None
        answer.on_end()
        upload, self._upload = self._upload, None
        unsent = upload is not None and not upload.done
        idle_s = self._parser.idle_s(self._idle_s)
        if unsent or not self._is_reusable or idle_s <= 0 or self.transport is None or self.transport.is_closing():
            if upload is not None:
                upload.cancel()
            self.abort()
            return
        if self._is_paused:
            self._resume_reading()
        self._timer.set(self._loop.time() + idle_s)
        self._owner.release(self)

    def _pause_reading(self) -> None:
        if self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()

    def _resume_reading(self) -> None:
        if self.transport is not None:
            self._is_paused = False
            self.transport.resume_reading()

    def _fail(self, error: BaseException) -> None:
        if self._answer is not None:
            self._answer.on_error(error)
        self.abort()

    def _on_upload_error(self, error: BaseException) -> None:
        """Handle a failed upload: without a response head the exchange fails, otherwise the response continues."""
        self._is_reusable = False
        if self._answer is not None and not self._answer.status:
            self._fail(error)

    def _on_deadline(self) -> None:
        if self._answer is None:
            self.close()  # idle for too long
        elif self._waiter is not None and not self._waiter.done():
            self._fail(TimedOut("nothing came in time"))
        elif self._listener is not None:
            deadline = min(self._last_read_at + self._idle_timeout_s, self._deadline)
            if self._loop.time() < deadline:
                self._timer.set(deadline)
            else:
                self._fail(TimedOut("nothing came in time"))

    def _notify(self) -> None:
        """Wake the waiter and the listener. This comes last, because they may send the next request."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener()

    def _set_quickack(self) -> None:
        """Acknowledge received data at once. Call this before the first wait for more data.

        A server with Nagle's algorithm sends the next piece once the previous one is acknowledged. The kernel delays
        that acknowledgement on a connection on which we have sent data (measured: 44 ms per response). It does so again
        after each request, and after each piece of a streamed one.
        """
        self._quickack_set = self._upload is None or self._upload.done
        if self._socket is not None and TCP_QUICKACK is not None:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_TCP, TCP_QUICKACK, 1)
