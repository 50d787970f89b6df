"""One connection to a server, with one exchange at a time."""

from __future__ import annotations

import asyncio
import contextlib
import math
import socket
from collections.abc import AsyncIterator, Callable
from typing import Protocol, cast

from gateway.upstream.http1.errors import Broken, Disconnected, ExchangeFailed, MalformedAnswer, TimedOut, UploadFailed
from gateway.upstream.http1.headers import HeaderNames
from gateway.upstream.http1.parser import ResponseHeadCache, ResponseParser
from gateway.upstream.http1.response import HttpResponse


# One timer for a connection's many waits.
class DeadlineTimer:
    """Calls `callback` once `deadline` has passed. To move `deadline` to a later time costs no timer: that is seen when
    the earlier one goes off, so that a connection with a request every millisecond has one timer every few seconds."""

    __slots__ = ("_at", "_callback", "_deadline", "_handle", "_loop")

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._deadline = self._at = math.inf
        self._handle: asyncio.TimerHandle | None = None

    def set(self, deadline: float) -> None:
        """`deadline`: time of the event loop, instead of any earlier one."""
        self._deadline = deadline
        if deadline < self._at:
            if self._handle is not None:
                self._handle.cancel()
            self._at = deadline
            self._handle = self._loop.call_at(deadline, self._on_timer)

    def cancel(self) -> None:
        """For good."""
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


# A request's body on its way to the server, while the answer may already come.
class RequestBody:
    """Sends at once, and no faster than the server takes it. `length` in bytes; None: in chunks. `on_error` is told
    once where `body` raises, or is not of that length."""

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
                if chunk:  # an empty one would be the end
                    self._transport.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))
            elif sent > self._length:
                raise UploadFailed("the body is longer than its Content-Length")
            else:
                self._transport.write(chunk)
            await self._writable.wait()
        if self._length is None:
            self._transport.write(b"0\r\n\r\n")
        elif sent < self._length:
            raise UploadFailed("the body is shorter than its Content-Length")


MAX_UNREAD_BYTES = 128 * 1024  # of a body: beyond them nothing more is taken off the socket until they are read

JOINED_BYTES = 64 * 1024  # a body up to this is copied behind its head: one write, one packet where it fits

TCP_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux


class ConnectionOwner(Protocol):
    """Who hands connections out."""

    def opened(self, connection: ClientConnection) -> None:
        """It is there, and is removed exactly once."""

    def release(self, connection: ClientConnection) -> None:
        """The exchange is over, and the connection as good as new."""

    def remove(self, connection: ClientConnection) -> None:
        """It is closed."""


class ClientConnection(asyncio.Protocol):
    """`idle_s`: for how long it may lie idle, at most. `names` and `known` may be shared."""

    def __init__(self, owner: ConnectionOwner, names: HeaderNames, known: ResponseHeadCache, idle_s: float) -> None:
        self._owner = owner
        self._idle_s = idle_s
        self._socket: socket.socket | None = None
        self._loop = asyncio.get_running_loop()
        self._timer = DeadlineTimer(self._loop, self._on_deadline)
        self._parser = ResponseParser(names, known)
        self.transport: asyncio.Transport | None = None  # there is none before, and after
        self._answer: HttpResponse | None = None  # the one that is awaited
        self._upload: RequestBody | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._listener: Callable[[], None] | None = None
        self._idle_timeout_s = self._deadline = self._last_read_at = 0.0  # see `subscribe`; a time of the event loop
        self._quickack_set = False  # until the next request is sent
        self.reading_paused = False  # reading: too much of the body is unread
        self._is_reusable = True  # no: nothing may follow this exchange
        self.exchange_count = 0  # exchanges that were begun

    # What the pool and the client call.

    def send(
        self, head: bytes, body: bytes | AsyncIterator[bytes], *, length: int | None, is_head_request: bool
    ) -> HttpResponse:
        """Sends a request, and returns its answer, of which nothing has come: `wait` for it. `length` of a body that
        streams; None: in chunks."""
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

    def wait(self, deadline: float) -> asyncio.Future[None]:
        """Done once something has come of the exchange, its failure included. Whoever gives up waiting closes the
        answer."""
        if self._parser.has_started and not self._quickack_set:
            self._set_quickack()
        waiter = self._waiter = self._loop.create_future()
        self._timer.set(deadline)
        return waiter

    def subscribe(self, listener: Callable[[], None] | None, idle_timeout_s: float, deadline: float) -> None:
        """See `HttpResponse.tell`."""
        self._listener, self._idle_timeout_s, self._deadline = listener, idle_timeout_s, deadline
        if listener is not None:
            if not self._quickack_set:
                self._set_quickack()
            self._last_read_at = self._loop.time()
            self._timer.set(min(self._last_read_at + idle_timeout_s, deadline))

    def taken(self) -> None:
        """What had come of the body was read."""
        if self.reading_paused and self.transport is not None:
            self.reading_paused = False
            self.transport.resume_reading()

    def close(self) -> None:
        """Of one that lies idle."""
        if self.transport is not None:
            self._timer.cancel()
            self.transport.close()

    def abort(self) -> None:
        """At once, whatever is under way."""
        answer, self._answer = self._answer, None
        if answer is not None:
            answer.on_error(ExchangeFailed("the exchange was given up"))
        self._timer.cancel()
        if self._upload is not None:
            self._upload.cancel()
        if self.transport is not None:
            self.transport.abort()
        self._notify()

    def discard(self) -> None:
        """While it was being opened: whoever asked for it has left. asyncio's transport says so too, uvloop's does not,
        and the pool would count it for good."""
        if self.transport is not None:
            self.connection_lost(None)

    # What the transport calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self._socket = transport.get_extra_info("socket")
        self._owner.opened(self)

    def data_received(self, data: bytes) -> None:
        answer = self._answer
        if answer is None:  # nobody has asked: what comes is not to be taken for the next one's answer
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
        elif answer.unread > MAX_UNREAD_BYTES and not self.reading_paused and self.transport is not None:
            self.reading_paused = True
            self.transport.pause_reading()
        if self._listener is not None and not parser.ended:
            if answer.unread > before:
                self._last_read_at = self._loop.time()
                self._listener()
        elif answer.status and (parser.ended or answer.unread > before or before == 0):
            self._notify()

    def pause_writing(self) -> None:
        if self._upload is not None:
            self._upload.pause()

    def resume_writing(self) -> None:
        if self._upload is not None:
            self._upload.resume()

    def connection_lost(self, error: Exception | None) -> None:
        if self.transport is None:  # `discard` before
            return
        answer, self._answer = self._answer, None
        self.transport = None
        self._timer.cancel()
        if self._upload is not None:
            self._upload.cancel()
        if answer is not None:
            if self._parser.is_close_delimited and error is None:
                answer.ended()
            elif self._parser.has_started:
                answer.on_error(Broken("the connection ended within the answer"))
            else:
                answer.on_error(Disconnected("the connection ended before the answer"))
        self._parser.close()
        self._owner.remove(self)
        self._notify()

    # Its own affairs.

    def _finish(self, answer: HttpResponse) -> None:
        """The last byte of the answer has come."""
        self._answer = None
        answer.ended()
        upload, self._upload = self._upload, None
        unsent = upload is not None and not upload.done
        idle_s = self._parser.idle_s(self._idle_s)
        if unsent or not self._is_reusable or idle_s <= 0 or self.transport is None or self.transport.is_closing():
            if upload is not None:
                upload.cancel()
            self.abort()
            return
        if self.reading_paused:
            self.taken()
        self._timer.set(self._loop.time() + idle_s)
        self._owner.release(self)

    def _fail(self, error: BaseException) -> None:
        if self._answer is not None:
            self._answer.on_error(error)
        self.abort()

    def _on_upload_error(self, error: BaseException) -> None:
        """The body that was to be sent broke off: without an answer that ends the exchange with what it said; with one,
        that goes on."""
        self._is_reusable = False
        if self._answer is not None and not self._answer.status:
            self._fail(error)

    def _on_deadline(self) -> None:
        if self._answer is None:
            self.close()  # it lay idle for long enough
        elif self._waiter is not None and not self._waiter.done():
            self._fail(TimedOut("nothing came in time"))
        elif self._listener is not None:
            deadline = min(self._last_read_at + self._idle_timeout_s, self._deadline)
            if self._loop.time() < deadline:
                self._timer.set(deadline)
            else:
                self._fail(TimedOut("nothing came in time"))

    def _notify(self) -> None:
        """The last thing that is done of what happened: who is told may send the next request."""
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        listener, self._listener = self._listener, None
        if listener is not None:
            listener()

    def _set_quickack(self) -> None:
        """Before the first wait for more: a server that writes in pieces with Nagle's algorithm on sends the next one
        when the last is acknowledged, and the kernel delays that on a connection on which we have sent something
        (measured: 44 ms an answer). It does so again after each request, and after each piece of one that streams."""
        self._quickack_set = self._upload is None or self._upload.done
        if self._socket is not None and TCP_QUICKACK is not None:
            with contextlib.suppress(OSError):
                self._socket.setsockopt(socket.IPPROTO_TCP, TCP_QUICKACK, 1)
