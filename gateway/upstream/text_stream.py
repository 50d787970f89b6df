"""Answers that a backend writes piece by piece, in the form that the client asked for."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from gateway.body_streams import Guarded
from gateway.errors import BackendError, StreamBroken
from gateway.messages import Call, Event, EventStream, Response, Whole
from gateway.upstream.concurrency_limiter import Place

JSON = (("Content-Type", "application/json"),)
SSE = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))


async def written_answer(
    call: Call, place: Place, events: AsyncGenerator[Event, None], pieces: AsyncGenerator[object, None]
) -> Response:
    """`events`, made of `pieces`: a stream holds its place at the gate until its end, a whole answer is awaited. Raises
    `BackendError`."""
    if call.stream:
        return Response(200, SSE, EventStream(Guarded(events, place.leave, source=pieces)))
    try:
        payload = [event.data async for event in events]
    except StreamBroken as error:
        # Nothing of a whole answer has gone to the client: another backend may still be asked.
        raise BackendError(str(error)) from None
    return Response(200, JSON, Whole(call.dialect.whole(call, payload)))
