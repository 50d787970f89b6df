"""Gives every client the form it asked for, stream or whole, whichever the answer came or was stored in; hits as the
policy wants them played back."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

from gateway.bodies import Guarded, Ready, close_body
from gateway.cache.replay import Sleep, lasts_s, paced
from gateway.cache.taken_apart import TakenApart
from gateway.errors import BackendError, Malformed, StreamBroken
from gateway.flow import Tap, tapped
from gateway.messages import Admission, Body, Call, Event, EventStream, Request, Response, Verdict, Whole
from gateway.pipeline import Handler
from gateway.policy.model import Replay
from gateway.ports import Clock
from gateway.response_headers import HITS

LOG = logging.getLogger("nearhit")
SSE = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))
JSON = (("Content-Type", "application/json"),)
OF_FORM = frozenset({"content-type", "cache-control", "inference-header-content-length"})


class Render:
    """`apart`: what hits were taken apart to; all routes share it."""

    def __init__(self, rule: Replay, clock: Clock, apart: TakenApart, sleep: Sleep = asyncio.sleep) -> None:
        self._rule = rule
        self._replays = rule.fresh_ids or rule.paced
        self._clock = clock
        self._apart = apart
        self._sleep = sleep

    async def __call__(self, request: Request, forward: Handler) -> Response:
        response = await forward(request)
        call = request.call
        if call is None or response.status != 200:
            return response
        verdict = response.provenance.verdict
        hit = verdict in HITS
        if hit and isinstance(response.body, EventStream):
            response = await _at_hand(response, response.body)
        if call.own is not None and (hit or verdict is Verdict.COALESCED):
            response = _owned(call.own, response)
        body = response.body
        if isinstance(body, Whole):
            response = self._formed(call, response, body, hit=hit)
        elif isinstance(body, EventStream):
            streamed = call.stream
            response = self._shown(call, response, body) if streamed else await self._collected(call, response, body)
        return self._replayed(request, call, response) if hit and self._replays else response

    def _formed(self, call: Call, response: Response, body: Whole, *, hit: bool) -> Response:
        try:
            if call.stream and call.operation != "embeddings":
                events = (self._apart if hit else call.dialect).events(call, body.data)
                return _with(response, SSE, EventStream(Ready(tuple(call.dialect.shown_among(call, events)))))
            formed = call.dialect.client_form(call, body.data)
        except Malformed as error:
            raise BackendError(str(error), retryable=False) from None
        return response if formed is None else _with(response, formed.headers, Whole(formed.data))

    def _shown(self, call: Call, response: Response, body: EventStream) -> Response:
        if isinstance(body.events, Ready):
            shown = tuple(call.dialect.shown_among(call, body.events.rest()))
            return replace(response, body=EventStream(Ready(shown)))
        return replace(response, body=EventStream(tapped(body.events, _live(call))))

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

    def _replayed(self, request: Request, call: Call, response: Response) -> Response:
        """A hit under an id of its own, or at a pace, where the policy says so. Such an answer is nobody else's."""
        rule, body = self._rule, response.body
        if rule.fresh_ids:
            request.trace.served = None
            body = _renewed(call, body, secrets.token_hex(12), int(self._clock.wall()))
        if rule.paced and isinstance(body, EventStream) and isinstance(body.events, Ready):
            request.trace.served = None
            events = body.events.rest()
            left_s = None if request.deadline is None else request.deadline - self._clock.monotonic()
            duration_s = lasts_s(rule, response.provenance, len(events), left_s)
            body = EventStream(Guarded(paced(events, duration_s, self._clock, self._sleep)))
        return response if body is response.body else replace(response, body=body)


async def _at_hand(response: Response, body: EventStream) -> Response:
    """A hit whose events are known to be all there, also where it comes by a flight that others share."""
    if isinstance(body.events, Ready):
        return response
    try:
        return replace(response, body=EventStream(Ready(tuple([event async for event in body.events]))))
    except StreamBroken as error:
        raise BackendError(str(error), retryable=False) from None
    finally:
        await close_body(body)


def _owned(own: Callable[[bytes], bytes], response: Response) -> Response:
    """An answer that was made for another request, with what this one's own would repeat of it."""
    body = response.body
    if isinstance(body, Whole):
        return replace(response, body=Whole(own(body.data)))
    if not isinstance(body, EventStream):
        return response
    if isinstance(body.events, Ready):
        events = tuple(Event(own(event.data), event.name) for event in body.events.rest())
        return replace(response, body=EventStream(Ready(events)))

    def saw(events: Sequence[Event]) -> Sequence[Event]:
        return [Event(own(event.data), event.name) for event in events]

    return replace(response, body=EventStream(tapped(body.events, Tap(saw))))


def _renewed(call: Call, body: Body, answer_id: str, created: int) -> Body:
    def renewed(data: bytes) -> bytes:
        return call.dialect.renewed(call, data, answer_id=answer_id, created=created)

    if isinstance(body, Whole):
        return Whole(renewed(body.data))
    if isinstance(body, EventStream) and isinstance(body.events, Ready):
        return EventStream(Ready(tuple(Event(renewed(event.data), event.name) for event in body.events.rest())))
    return body


def _live(call: Call) -> Tap[Event]:
    """What the client asked for, as it comes; a break ends with an error event in the dialect's shape."""

    def broke(error: StreamBroken) -> Sequence[Event]:
        LOG.warning("stream broken", extra={"fields": {"error": str(error)}})
        return call.dialect.error_events("upstream_error", str(error))

    return Tap(partial(call.dialect.shown_among, call), broke=broke)


def _with(response: Response, form: tuple[tuple[str, str], ...], body: Whole | EventStream) -> Response:
    kept = tuple((name, value) for name, value in response.headers if name.lower() not in OF_FORM)
    return replace(response, headers=kept + form, body=body)
