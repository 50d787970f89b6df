"""Writes the answers to plain requests. A whole answer is one write. A stream is one write for each read of the
backend's socket."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from contextlib import suppress

from aiohttp.helpers import rfc822_formatted_time

from gateway.context import RequestContext
from gateway.http_server.slow_readers import ReadingPace, SlowReaders
from gateway.http_server.wire import (
    BODILESS,
    CLOSES,
    LAST_CHUNK,
    STATUS_LINES,
    chunk_of,
    encode_headers,
    encode_length,
    encode_start,
    is_bodiless,
    sized_headers,
    stream_headers,
)
from gateway.messages import KEEP_ALIVE, Body, ByteStream, Event, EventStream, FullBody, Response, Tunnel
from gateway.observability.response_headers import ResponseHeaders
from gateway.streams import BufferedStream, Comments, as_observed, close_body, drain, pump


class OutputBuffer:
    """Writes to a plain connection. `writable` is set while the client reads fast enough. After `has_written` it is too
    late for another answer."""

    __slots__ = ("_drained", "_pace", "_slow_readers", "_transport", "has_written", "peer", "writable")

    def __init__(self, transport: asyncio.Transport, slow_readers: SlowReaders) -> None:
        self._transport = transport
        self._slow_readers = slow_readers
        self._pace: ReadingPace | None = None  # set once the client has fallen behind
        peer, sock = transport.get_extra_info("peername"), transport.get_extra_info("socket")
        self.peer: str = peer[0] if isinstance(peer, tuple) else ""
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._drained: asyncio.Future[None] | None = None
        self.writable = True
        self.has_written = False

    def write(self, data: bytes) -> None:
        """Write data. Unless it is `writable` or `has_room`, wait for room before more. Raise `ConnectionError`."""
        if self._transport.is_closing():
            raise ConnectionResetError("the client has left")
        self.has_written = True
        if self.writable or self._pace is None:
            self._transport.write(data)
        else:
            self._transport.write(data)
            self._pace.record_write(len(data))

    @property
    def has_room(self) -> bool:
        """Whether a client that does not keep up gets more of a stream all the same, so that its backend can finish."""
        return self._pace is not None and self._pace.has_room

    def abort(self) -> None:
        """Abort the connection, so that the client sees an incomplete answer."""
        self._transport.abort()

    async def wait_writable(self) -> None:
        """Return once it is writable again, or the client has left."""
        if not self.writable:
            self._drained = asyncio.get_running_loop().create_future()
            await self._drained

    async def wait_for_room(self) -> None:
        """Return once it takes more, or the client has left."""
        if not self.writable and self._pace is not None:
            await self._pace.wait_for_room()

    def pause(self) -> None:
        self.writable = False
        if self._pace is None:
            self._pace = ReadingPace(self._slow_readers, self._transport)
        self._pace.begin()

    def emptied(self) -> None:
        """Mark it as writable: the transport drained its buffer, or closed."""
        if not self.writable and self._pace is not None:
            self._pace.end()
        self.writable = True
        if self._drained is not None and not self._drained.done():
            self._drained.set_result(None)


# Bytes from which a whole body is written beside its head. Joined with it, the body would be in memory twice while the
# client reads; a copy of less costs microseconds.
LARGE = 256 * 1024
LENGTH_AND_DATE = b"Content-Length: %d\r\nDate: %b\r\n\r\n%b"


def body_nowait(body: Body) -> bytes | None:
    """Return the whole body if all of it is there; else None. It is then sent with its length in one write, which costs
    a fifth of one write an event."""
    if isinstance(body, FullBody):
        return body.data
    if isinstance(body, EventStream) and isinstance(body.events, BufferedStream):
        return b"".join([event.frame() for event in body.events.items])
    return None


def encode_answer(
    own: ResponseHeaders, request: RequestContext, response: Response, *, keep_alive: bool
) -> bytes | None:
    """Return head and body, and close the body; None if not all of the body is there, or if it is `LARGE`. Raise
    `ValueError` if a header contains a line break."""
    body, status = response.body, response.status
    if isinstance(body, FullBody) and len(body.data) >= LARGE:
        return None
    data = body_nowait(body)
    if data is None:
        return None
    if isinstance(body, EventStream) and isinstance(body.events, BufferedStream):
        body.events.close()
    if request.method == "HEAD" or status in BODILESS:
        return _without_body(own, request, response, len(data), keep_alive=keep_alive)
    template, start = own.template(request, response), encode_start(status, response.headers)
    lines, date = template.lines(request, response.provenance), rfc822_formatted_time().encode()
    if not keep_alive:
        return b"%b%bContent-Length: %d\r\nDate: %b%b\r\n\r\n%b" % (start, lines, len(data), date, CLOSES, data)
    if request.served is not None and request.on_written is not None and status == 200:
        request.on_written(
            request, response, template, start.replace(b"%", b"%%") + template.form + LENGTH_AND_DATE, data
        )
    return b"%b%bContent-Length: %d\r\nDate: %b\r\n\r\n%b" % (start, lines, len(data), date, data)


def _without_body(
    own: ResponseHeaders, request: RequestContext, response: Response, size: int, *, keep_alive: bool
) -> bytes:
    """Return the head of an answer that must not have a body. The body that is not sent has `size` bytes."""
    headers, length = sized_headers(request.method, response.status, response.headers, size)
    start, length_field = STATUS_LINES[response.status] + encode_headers(headers), encode_length(length)
    date, connection_field = rfc822_formatted_time().encode(), b"" if keep_alive else CLOSES
    return b"%b%b%bDate: %b%b\r\n\r\n" % (start, own.lines(request, response), length_field, date, connection_field)


async def stream(
    out: OutputBuffer,
    own: ResponseHeaders,
    request: RequestContext,
    response: Response,
    *,
    keep_alive: bool,
    silence_s: float,
) -> None:
    """Write an answer whose body arrives in pieces or is large, and return once the client has taken it. After
    `silence_s` seconds without an event a stream gets a keep-alive, or with 0 never. Raise `UpstreamStreamError`,
    `ConnectionError`, or `ValueError` if a header contains a line break."""
    body, method, status = response.body, request.method, response.status
    assert not isinstance(body, Tunnel), "a plain request asks for no upgrade"
    try:
        if isinstance(body, FullBody):
            headers, length = sized_headers(method, status, response.headers, len(body.data))
            framing, chunked = encode_length(length), False
        else:
            headers, chunked = stream_headers(method, status, response.headers)
            framing = b"Transfer-Encoding: chunked\r\n" if chunked else b""
        start = STATUS_LINES[status] + encode_headers(headers)
        date, connection_field = rfc822_formatted_time().encode(), b"" if keep_alive else CLOSES
        out.write(b"%b%b%bDate: %b%b\r\n\r\n" % (start, own.lines(request, response), framing, date, connection_field))
        if is_bodiless(method, status):
            await drain(body)
            return
        with KeepAlive(out, keep_alive_of(request), silence_s, chunked=chunked) as alive:
            await relay_body(body, out, alive, chunked=chunked, comment=comment_of(request))
        if chunked:
            out.write(LAST_CHUNK)
        await out.wait_writable()
    finally:
        await close_body(body)


TICKS = 4  # looks of a keep-alive at its stream in the time of one silence


class KeepAlive:
    """`KeepAlive` writes a keep-alive to a stream in which nothing was written for between `silence_s` seconds and a
    quarter more. Balancers in front of the gateway cut connections that are silent for a minute."""

    __slots__ = ("_data", "_interval_s", "_out", "_timer", "ticks")

    def __init__(self, out: OutputBuffer, event: Event, silence_s: float, *, chunked: bool) -> None:
        self._out = out
        self._data = chunk_of(event.frame()) if chunked else event.frame()
        self._interval_s = silence_s / TICKS
        self.ticks = 0  # since the last event: who writes one sets it to 0
        self._timer: asyncio.TimerHandle | None = None

    def __enter__(self) -> KeepAlive:
        return self

    def __exit__(self, *_: object) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def start(self) -> None:
        if self._interval_s > 0:
            self._timer = asyncio.get_running_loop().call_later(self._interval_s, self._tick)

    def _tick(self) -> None:
        self.ticks += 1
        if self.ticks >= TICKS:
            self.ticks = 0
            if self._out.writable:
                with suppress(ConnectionError):
                    self._out.write(self._data)
        self.start()


def keep_alive_of(request: RequestContext) -> Event:
    """Return the event that keeps the client's stream alive, in its dialect."""
    return KEEP_ALIVE if request.call is None else request.call.dialect.keep_alive


def comment_of(request: RequestContext) -> Event | None:
    """Return the event that stands for a backend's comments, or None if the client ignores comments."""
    return None if request.call is None or request.call.dialect.reads_comments else keep_alive_of(request)


async def relay_body(
    body: Body, out: OutputBuffer, alive: KeepAlive, *, chunked: bool, comment: Event | None = None
) -> None:
    """Write a body as fast as it arrives, while there is room for what the client has not read. One chunk for each
    event or piece. `comment` stands for the backend's comments, or None if the client gets them. Raise
    `UpstreamStreamError` or `ConnectionError`."""

    def events(items: Sequence[Event]) -> bool:
        alive.ticks = 0
        if comment is not None and type(items) is Comments:
            items = (comment,)
        if len(items) == 1:
            frame = items[0].frame()
            out.write(chunk_of(frame) if chunked else frame)
            return out.writable or out.has_room
        return pieces([event.frame() for event in items])

    def pieces(items: Sequence[bytes]) -> bool:
        if chunked:
            items = [chunk_of(piece) for piece in items if piece]  # an empty chunk would end the body
        out.write(b"".join(items))
        return out.writable or out.has_room

    if isinstance(body, FullBody):
        out.write(body.data)
    elif isinstance(body, EventStream):
        alive.start()
        await pump(as_observed(body.events), events, out.wait_for_room)
    elif isinstance(body, ByteStream):
        await pump(as_observed(body.chunks), pieces, out.wait_for_room)
