"""A body that comes in pieces, to a plain connection: what came with one read of the backend's socket is one write."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.data_port.outlet import Outlet
from gateway.data_port.wire import chunk_of
from gateway.flow import flow_of, pour
from gateway.messages import Body, ByteStream, Event, EventStream


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
