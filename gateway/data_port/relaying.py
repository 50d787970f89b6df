"""Answers to plain requests: a whole one is one write; of a body that comes in pieces, what came with one read of the
backend's socket."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.bodies import close_body, drain
from gateway.data_port.outlet import Outlet
from gateway.data_port.wire import LAST_CHUNK, Headers, bodiless, chunk_of, stream_head, whole_answer
from gateway.flow import flow_of, pour
from gateway.messages import Body, ByteStream, Event, EventStream, Request, Response, Tunnel
from gateway.response_headers import answer_headers


async def send(out: Outlet, request: Request, response: Response, whole: bytes | None, *, keep_alive: bool) -> bool:
    """Returns `keep_alive`, which the client was told, when it has taken all of it. `whole`: the body, where it is at
    hand. Raises `StreamBroken`, and `ConnectionError`."""
    headers = answer_headers(response.headers, request.id, request.trace, response.provenance)
    body, status = response.body, response.status
    assert not isinstance(body, Tunnel), "who asks for an upgrade does not ask plainly"
    try:
        if whole is not None:
            return await send_whole(out, request.method, status, headers, whole, keep_alive=keep_alive)
        start, chunked = stream_head(request.method, status, headers, keep_alive=keep_alive)
        out.write(start)
        if bodiless(request.method, status):
            await drain(body)
            return keep_alive
        await relayed(body, out, chunked=chunked)
        if chunked:
            out.write(LAST_CHUNK)
        await out.taken()
    finally:
        await close_body(body)
    return keep_alive


async def send_whole(out: Outlet, method: str, status: int, headers: Headers, body: bytes, *, keep_alive: bool) -> bool:
    """As `send`."""
    out.write(whole_answer(method, status, headers, body, keep_alive=keep_alive))
    await out.taken()
    return keep_alive


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
