"""Gives every client the form it asked for, stream or whole, whichever the answer came or was stored in; hits as the
policy wants them played back."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

from gateway.cache.hits import Sleep, SplitCache, lasts_s, paced
from gateway.config.policy.model import ReplaySettings
from gateway.context import Handler, RequestContext, resolved
from gateway.errors import BackendError, MalformedResponse, UpstreamStreamError
from gateway.messages import Admission, Body, Call, Event, EventStream, FullBody, Response, Verdict
from gateway.ports import Clock
from gateway.response_headers import HITS
from gateway.steps.list_models import ModelList
from gateway.steps.split_inputs import SplitInputs
from gateway.streams import BufferedStream, ClosingStream, StreamObserver, close_body, tapped

LOG = logging.getLogger("nearhit")
SSE = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))
JSON = (("Content-Type", "application/json"),)
OF_FORM = frozenset({"content-type", "cache-control", "inference-header-content-length"})


class Negotiate:
    """Outside whatever stores and shares: hits, followers and misses alike come out in the form that the client asked
    for. `split_cache`: the events of whole answers that were split lately. `inputs` None: no cache of the route is on.
    `models` lists what the route's backends offer."""

    def __init__(
        self,
        inner: Handler,
        rule: ReplaySettings,
        clock: Clock,
        split_cache: SplitCache,
        inputs: SplitInputs | None,
        models: ModelList,
        sleep: Sleep = asyncio.sleep,
    ) -> None:
        self._inner = inner
        self._rule = rule
        self._replays = rule.fresh_ids or rule.paced
        self._clock = clock
        self._split_cache = split_cache
        self._inputs = inputs
        self._models = models
        self._sleep = sleep

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        call = request.call
        if call is None:
            listed = self._models.answer(request)
            return self._inner(request) if listed is None else listed
        if call.batch is not None and self._inputs is not None and request.fingerprint:
            return self._split(request, call, self._inputs)
        answer = self._inner(request)
        if not isinstance(answer, Response):
            return self._awaited(request, call, answer)
        return answer if self._is_plain(call, answer) else self._negotiated(request, call, answer)

    async def _split(self, request: RequestContext, call: Call, inputs: SplitInputs) -> Response:
        return await resolved(self._negotiated(request, call, await inputs.answer(request, call, self._inner)))

    async def _awaited(self, request: RequestContext, call: Call, pending: Awaitable[Response]) -> Response:
        response = await pending
        if self._is_plain(call, response):
            return response
        return await resolved(self._negotiated(request, call, response))

    def _is_plain(self, call: Call, response: Response) -> bool:
        """Whether the answer is in the client's form as it is, as most are."""
        plain = isinstance(response.body, FullBody) and not (
            call.stream or call.own is not None or call.dialect.reforms
        )
        return plain and not self._replays

    def _negotiated(self, request: RequestContext, call: Call, response: Response) -> Response | Awaitable[Response]:
        if response.status != 200:
            return response
        verdict, body = response.provenance.verdict, response.body
        hit = verdict in HITS
        streamed = isinstance(body, EventStream) and not isinstance(body.events, BufferedStream)
        if streamed and (hit or not call.stream):
            return self._collected(request, call, response, hit=hit)
        if call.own is not None and (hit or verdict is Verdict.COALESCED):
            response = _owned(call.own, response)
        return self._in_form(request, call, response, hit=hit)

    def _in_form(self, request: RequestContext, call: Call, response: Response, *, hit: bool) -> Response:
        body = response.body
        if isinstance(body, FullBody):
            response = self._formed(call, response, body, hit=hit)
        elif isinstance(body, EventStream):
            if call.stream:
                response = _shown(call, response, body)
            else:
                assert isinstance(body.events, BufferedStream)
                response = _whole(call, response, body.events.rest())
        return self._replayed(request, call, response) if hit and self._replays else response

    async def _collected(self, request: RequestContext, call: Call, response: Response, *, hit: bool) -> Response:
        """A stream for a client that asked for the whole, and a hit, whose events are all there, also where it comes by
        a flight that others share."""
        body = response.body
        assert isinstance(body, EventStream)
        try:
            events = tuple([event async for event in body.events])
        except UpstreamStreamError as error:
            raise BackendError(str(error), retryable=False) from None
        finally:
            await close_body(body)
        response = _with_body(response, EventStream(BufferedStream(events)))
        if call.own is not None and (hit or response.provenance.verdict is Verdict.COALESCED):
            response = _owned(call.own, response)
        return self._in_form(request, call, response, hit=hit)

    def _formed(self, call: Call, response: Response, body: FullBody, *, hit: bool) -> Response:
        try:
            if call.stream and call.operation != "embeddings":
                events = (self._split_cache if hit else call.dialect).events(call, body.data)
                return _with(response, SSE, EventStream(BufferedStream(tuple(call.dialect.shown_among(call, events)))))
            formed = call.dialect.client_form(call, body.data)
        except MalformedResponse as error:
            raise BackendError(str(error), retryable=False) from None
        return response if formed is None else _with(response, formed.headers, FullBody(formed.data))

    def _replayed(self, request: RequestContext, call: Call, response: Response) -> Response:
        """A hit under an id of its own, or at a pace, where the policy says so. Such an answer is nobody else's."""
        rule, body = self._rule, response.body
        if rule.fresh_ids:
            request.served = None
            body = _renewed(call, body, secrets.token_hex(12), int(self._clock.wall()))
        if rule.paced and isinstance(body, EventStream) and isinstance(body.events, BufferedStream):
            request.served = None
            events = body.events.rest()
            left_s = None if request.deadline is None else request.deadline - self._clock.monotonic()
            duration_s = lasts_s(rule, response.provenance, len(events), left_s)
            body = EventStream(ClosingStream(paced(events, duration_s, self._clock, self._sleep)))
        return response if body is response.body else _with_body(response, body)


def _shown(call: Call, response: Response, body: EventStream) -> Response:
    if isinstance(body.events, BufferedStream):
        return _with_body(
            response, EventStream(BufferedStream(tuple(call.dialect.shown_among(call, body.events.rest()))))
        )
    return _with_body(response, EventStream(tapped(body.events, _live(call))))


def _whole(call: Call, response: Response, events: Sequence[Event]) -> Response:
    """Raises `BackendError` where they are no complete answer."""
    payload = [event.data for event in events]
    try:
        if call.dialect.inspect(call, payload, True).admission is Admission.CUT:
            raise UpstreamStreamError("the answer ended before its end marker")
        whole = call.dialect.whole(call, payload)
    except (UpstreamStreamError, MalformedResponse) as error:
        raise BackendError(str(error), retryable=False) from None
    return _with(response, JSON, FullBody(whole))


def _owned(own: Callable[[bytes], bytes], response: Response) -> Response:
    """An answer that was made for another request, with what this one's own would repeat of it."""
    body = response.body
    if isinstance(body, FullBody):
        return _with_body(response, FullBody(own(body.data)))
    if not isinstance(body, EventStream):
        return response
    if isinstance(body.events, BufferedStream):
        events = tuple(Event(own(event.data), event.name) for event in body.events.rest())
        return _with_body(response, EventStream(BufferedStream(events)))

    def saw(events: Sequence[Event]) -> Sequence[Event]:
        return [Event(own(event.data), event.name) for event in events]

    return _with_body(response, EventStream(tapped(body.events, StreamObserver(saw))))


def _renewed(call: Call, body: Body, answer_id: str, created: int) -> Body:
    def renewed(data: bytes) -> bytes:
        return call.dialect.renewed(call, data, answer_id=answer_id, created=created)

    if isinstance(body, FullBody):
        return FullBody(renewed(body.data))
    if isinstance(body, EventStream) and isinstance(body.events, BufferedStream):
        return EventStream(
            BufferedStream(tuple(Event(renewed(event.data), event.name) for event in body.events.rest()))
        )
    return body


def _live(call: Call) -> StreamObserver[Event]:
    """What the client asked for, as it comes; a break ends with an error event in the dialect's shape."""

    def broke(error: UpstreamStreamError) -> Sequence[Event]:
        LOG.warning("stream broken", extra={"fields": {"error": str(error)}})
        return call.dialect.error_events("upstream_error", str(error))

    return StreamObserver(partial(call.dialect.shown_among, call), broke=broke)


def _with(response: Response, form: tuple[tuple[str, str], ...], body: FullBody | EventStream) -> Response:
    kept = tuple((name, value) for name, value in response.headers if name.lower() not in OF_FORM)
    return Response(response.status, kept + form, body, response.provenance)


def _with_body(response: Response, body: Body) -> Response:
    return Response(response.status, response.headers, body, response.provenance)
