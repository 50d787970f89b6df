"""Gives every client the form it asked for: a stream or a whole, whichever the answer came or was stored in."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from dataclasses import replace

from gateway.bodies import Guarded, Ready, close_body
from gateway.errors import BackendError, Malformed, StreamBroken
from gateway.messages import Admission, Call, Event, EventStream, Request, Response, Whole
from gateway.pipeline import Handler

LOG = logging.getLogger("nearhit")
SSE = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))
JSON = (("Content-Type", "application/json"),)
OF_FORM = frozenset({"content-type", "cache-control"})


class Render:
    async def __call__(self, request: Request, forward: Handler) -> Response:
        response = await forward(request)
        call, body = request.call, response.body
        if call is None or response.status != 200:
            return response
        if isinstance(body, EventStream):
            return self._shown(call, response, body) if call.stream else await self._collected(call, response, body)
        if isinstance(body, Whole) and call.stream and call.operation != "embeddings":
            return _with(response, SSE, EventStream(_split(call, body)))
        return response

    def _shown(self, call: Call, response: Response, body: EventStream) -> Response:
        if isinstance(body.events, Ready):
            shown = Ready(tuple(event for event in body.events.rest() if call.dialect.shown(call, event)))
            return replace(response, body=EventStream(shown))
        return replace(response, body=EventStream(Guarded(_live(call, body), source=body.events)))

    async def _collected(self, call: Call, response: Response, body: EventStream) -> Response:
        try:
            payload = [event.data async for event in body.events]
            if call.dialect.inspect(call, payload, True).admission is Admission.CUT:
                raise StreamBroken("the answer ended before its end marker")
            whole = call.dialect.whole(call, payload)
        except (StreamBroken, Malformed) as error:
            raise BackendError(str(error), retryable=False) from None
        finally:
            await close_body(body)
        return _with(response, JSON, Whole(whole))


def _split(call: Call, body: Whole) -> Ready[Event]:
    try:
        events = call.dialect.events(call, body.data)
    except Malformed as error:
        raise BackendError(str(error), retryable=False) from None
    return Ready(tuple(event for event in events if call.dialect.shown(call, event)))


async def _live(call: Call, body: EventStream) -> AsyncGenerator[Event, None]:
    """What the client asked for, as it comes; a break ends with an error event in the dialect's shape."""
    try:
        async for event in body.events:
            if call.dialect.shown(call, event):
                yield event
    except StreamBroken as error:
        LOG.warning("stream broken", extra={"fields": {"error": str(error)}})
        for event in call.dialect.error_events("upstream_error", str(error)):
            yield event


def _with(response: Response, form: tuple[tuple[str, str], ...], body: Whole | EventStream) -> Response:
    kept = tuple((name, value) for name, value in response.headers if name.lower() not in OF_FORM)
    return replace(response, headers=kept + form, body=body)
