"""Answers to plain requests: a whole one is one write; of a body that comes in pieces, what came with one read of the
backend's socket."""

from __future__ import annotations

from collections.abc import Sequence

from aiohttp.helpers import rfc822_formatted_time

from gateway.body_streams import Ready, close_body, drain
from gateway.context import RequestContext
from gateway.http_server.outlet import Outlet
from gateway.http_server.wire import (
    BODILESS,
    CLOSES,
    LAST_CHUNK,
    STATUS_LINES,
    bodiless,
    chunk_of,
    fields_of,
    length_line,
    start_of,
    stream_fields,
    whole_fields,
)
from gateway.messages import Body, ByteStream, Event, EventStream, Response, Tunnel, Whole
from gateway.response_headers import ResponseHeaders
from gateway.streams import flow_of, pour

LENGTH_AND_DATE = b"Content-Length: %d\r\nDate: %b\r\n\r\n%b"


def body_at_hand(body: Body) -> bytes | None:
    """All that goes over the wire, where it is all there: then its length is said and it is written at once, which
    costs a fifth of one write an event."""
    if isinstance(body, Whole):
        return body.data
    if isinstance(body, EventStream) and isinstance(body.events, Ready):
        return b"".join([event.frame() for event in body.events.items])
    return None


def whole_answer(
    own: ResponseHeaders, request: RequestContext, response: Response, *, keep_alive: bool
) -> bytes | None:
    """Head and body, where all of the body is at hand, which is closed then; None where it is not. Raises `ValueError`
    on a header that would end its line."""
    body, status = response.body, response.status
    data = body_at_hand(body)
    if data is None:
        return None
    if isinstance(body, EventStream) and isinstance(body.events, Ready):
        body.events.close()
    if request.method == "HEAD" or status in BODILESS:
        return _without_body(own, request, response, len(data), keep_alive=keep_alive)
    template, start = own.template(request, response), start_of(status, response.headers)
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
    """Of an answer that has none, whatever its headers say. `size`: bytes of what is not sent."""
    headers, length = whole_fields(request.method, response.status, response.headers, size)
    start, said = STATUS_LINES[response.status] + fields_of(headers), length_line(length)
    date, closes = rfc822_formatted_time().encode(), b"" if keep_alive else CLOSES
    return b"%b%b%bDate: %b%b\r\n\r\n" % (start, own.lines(request, response), said, date, closes)


async def stream(
    out: Outlet, own: ResponseHeaders, request: RequestContext, response: Response, *, keep_alive: bool
) -> None:
    """An answer whose body comes in pieces; returns when the client has taken all of it. Raises `StreamBroken`,
    `ConnectionError`, and `ValueError` on a header that would end its line."""
    body, method, status = response.body, request.method, response.status
    assert not isinstance(body, Tunnel), "who asks for an upgrade does not ask plainly"
    try:
        headers, chunked = stream_fields(method, status, response.headers)
        start = STATUS_LINES[status] + fields_of(headers)
        coding = b"Transfer-Encoding: chunked\r\n" if chunked else b""
        date, closes = rfc822_formatted_time().encode(), b"" if keep_alive else CLOSES
        out.write(b"%b%b%bDate: %b%b\r\n\r\n" % (start, own.lines(request, response), coding, date, closes))
        if bodiless(method, status):
            await drain(body)
            return
        await relayed(body, out, chunked=chunked)
        if chunked:
            out.write(LAST_CHUNK)
        await out.taken()
    finally:
        await close_body(body)


async def relayed(body: Body, out: Outlet, *, chunked: bool) -> None:
    """As fast as the client takes it, each event or piece a chunk of its own. Raises `StreamBroken`, and
    `ConnectionError`."""

    def events(items: Sequence[Event]) -> bool:
        if len(items) == 1:
            frame = items[0].frame()
            out.write(chunk_of(frame) if chunked else frame)
            return out.writable
        return pieces([event.frame() for event in items])

    def pieces(items: Sequence[bytes]) -> bool:
        if chunked:
            items = [chunk_of(piece) for piece in items if piece]  # an empty one would be the last
        out.write(b"".join(items))
        return out.writable

    if isinstance(body, EventStream):
        await pour(flow_of(body.events), events, out.taken)
    elif isinstance(body, ByteStream):
        await pour(flow_of(body.chunks), pieces, out.taken)
