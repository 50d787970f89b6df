"""Gives every client the form it asked for, stream or whole, whatever form the answer has. Replays hits as the policy
wants them."""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial

from gateway.cache.hits import Sleep, SplitCache, paced, replay_duration_s
from gateway.calls import Call
from gateway.config.policy.model import ReplaySettings
from gateway.context import Handler, RequestContext, resolve_response
from gateway.errors import BackendError, MalformedResponse, UpstreamStreamError
from gateway.messages import Body, Event, EventStream, FullBody, Response
from gateway.observability.response_headers import HITS
from gateway.outcomes import Admission, Bypass, Verdict
from gateway.ports import Clock
from gateway.steps.list_models import ModelList
from gateway.steps.split_inputs import SplitInputs
from gateway.streams import (
    BufferedStream,
    ClosingStream,
    StreamObserver,
    close_body,
    items_of_answer,
    with_observer,
)

LOG = logging.getLogger("nearhit")
SSE = (("Content-Type", "text/event-stream; charset=utf-8"), ("Cache-Control", "no-cache"))
JSON = (("Content-Type", "application/json"),)
FORM_HEADERS = frozenset({"content-type", "cache-control", "inference-header-content-length"})


class Negotiate:
    """Sits outside the steps that store and share. So hits, followers and misses all get the form that the client asked
    for. `split_cache` has the events of whole answers that were split lately. `inputs` is None on a route without a
    cache. `models` lists the models of the route's backends."""

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
        self._has_replay = rule.fresh_ids or rule.paced
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
        if call.batch is not None and self._inputs is not None and request.keys.fingerprint:
            return self._split(request, call, self._inputs)
        answer = self._inner(request)
        if not isinstance(answer, Response):
            return self._await_answer(request, call, answer)
        return answer if self._is_plain(call, answer) else self._negotiate(request, call, answer)

    async def _split(self, request: RequestContext, call: Call, inputs: SplitInputs) -> Response:
        return await resolve_response(self._negotiate(request, call, await inputs.answer(request, call, self._inner)))

    async def _await_answer(self, request: RequestContext, call: Call, pending: Awaitable[Response]) -> Response:
        response = await pending
        if self._is_plain(call, response):
            return response
        return await resolve_response(self._negotiate(request, call, response))

    def _is_plain(self, call: Call, response: Response) -> bool:
        """Return whether the answer already has the client's form, as most answers do."""
        plain = isinstance(response.body, FullBody) and not (
            call.stream or call.own is not None or call.dialect.reforms
        )
        return plain and not self._has_replay

    def _negotiate(self, request: RequestContext, call: Call, response: Response) -> Response | Awaitable[Response]:
        if response.status != 200:
            return response
        verdict, body = response.provenance.verdict, response.body
        hit = verdict in HITS
        streamed = isinstance(body, EventStream) and not isinstance(body.events, BufferedStream)
        if streamed and (hit or not call.stream):
            return self._collect(request, call, response, hit=hit)
        if call.own is not None and (hit or verdict is Verdict.COALESCED):
            response = _personalize(call.own, response)
        return self._form(request, call, response, hit=hit)

    def _form(
        self, request: RequestContext, call: Call, response: Response, *, hit: bool
    ) -> Response | Awaitable[Response]:
        """Convert an answer to the client's form. A shared one without that form is not served: the client gets its
        own."""
        try:
            return self._convert(request, call, response, hit=hit)
        except MalformedResponse as error:
            if hit or response.provenance.verdict is Verdict.COALESCED:
                return self._call_alone(request, call, hit=hit)
            raise BackendError(str(error), retryable=False) from None

    async def _call_alone(self, request: RequestContext, call: Call, *, hit: bool) -> Response:
        """Answer a request without a shared call, and without a stored answer if one was a `hit`."""
        request.served, request.directives = None, replace(request.directives, no_cache=True)
        if hit:
            request.bypass = Bypass.NO_CACHE
        return await resolve_response(self._negotiate(request, call, await resolve_response(self._inner(request))))

    def _convert(self, request: RequestContext, call: Call, response: Response, *, hit: bool) -> Response:
        """Raise `MalformedResponse` if the client's form cannot express the answer."""
        body = response.body
        if isinstance(body, FullBody):
            response = self._to_client_form(call, response, body, hit=hit)
        elif isinstance(body, EventStream):
            if call.stream:
                response = _shown(call, response, body)
            else:
                assert isinstance(body.events, BufferedStream)
                response = _assemble(call, response, body.events.take_all())
                if call.dialect.reforms and isinstance(response.body, FullBody):
                    response = self._to_client_form(call, response, response.body, hit=hit)
        return self._replay(request, call, response) if hit and self._has_replay else response

    async def _collect(self, request: RequestContext, call: Call, response: Response, *, hit: bool) -> Response:
        """Read a stream to its end marker, for a client that asked for a whole answer, or for a hit. All events of a
        hit are there, even if it comes through a shared call."""
        body = response.body
        assert isinstance(body, EventStream)
        try:
            events = tuple([event async for event in items_of_answer(body.events)])
        except UpstreamStreamError as error:
            raise error.as_response() from None
        finally:
            await close_body(body)
        response = _with_body(response, EventStream(BufferedStream(events)))
        if call.own is not None and (hit or response.provenance.verdict is Verdict.COALESCED):
            response = _personalize(call.own, response)
        return await resolve_response(self._form(request, call, response, hit=hit))

    def _to_client_form(self, call: Call, response: Response, body: FullBody, *, hit: bool) -> Response:
        if call.stream and not call.embeds:
            events = (self._split_cache if hit else call.dialect).events(call, body.data)
            return _with_form(
                response, SSE, EventStream(BufferedStream(tuple(call.dialect.visible_events(call, events))))
            )
        formed = call.dialect.client_form(call, body.data)
        return response if formed is None else _with_form(response, formed.headers, FullBody(formed.data))

    def _replay(self, request: RequestContext, call: Call, response: Response) -> Response:
        """Give a hit a fresh id or a pace if the policy says so. Then the answer is not kept for other requests."""
        rule, body = self._rule, response.body
        if rule.fresh_ids:
            request.served = None
            body = _renewed(call, body, secrets.token_hex(12), int(self._clock.wall()))
        if rule.paced and isinstance(body, EventStream) and isinstance(body.events, BufferedStream):
            request.served = None
            events = body.events.take_all()
            due = request.deadlines.whole
            remaining_s = None if due is None else due - self._clock.monotonic()
            duration_s = replay_duration_s(rule, response.provenance, len(events), remaining_s)
            body = EventStream(ClosingStream(paced(events, duration_s, self._clock, self._sleep)))
        return response if body is response.body else _with_body(response, body)


def _shown(call: Call, response: Response, body: EventStream) -> Response:
    if isinstance(body.events, BufferedStream):
        return _with_body(
            response, EventStream(BufferedStream(tuple(call.dialect.visible_events(call, body.events.take_all()))))
        )
    return _with_body(response, EventStream(with_observer(body.events, _live_observer(call))))


def _assemble(call: Call, response: Response, events: Sequence[Event]) -> Response:
    """Assemble a whole answer. Raise `BackendError` if the events are cut, and `MalformedResponse` if they have no
    whole form."""
    payload = [event.data for event in events]
    if call.dialect.inspect(call, payload, True).admission is Admission.CUT:
        raise BackendError("the answer ended before its end marker", retryable=False)
    return _with_form(response, JSON, FullBody(call.dialect.whole(call, payload)))


def _personalize(own: Callable[[bytes], bytes], response: Response) -> Response:
    """Adapt an answer that was made for another request: insert the values that it repeats from the request."""
    body = response.body
    if isinstance(body, FullBody):
        return _with_body(response, FullBody(own(body.data)))
    if not isinstance(body, EventStream):
        return response
    if isinstance(body.events, BufferedStream):
        events = tuple(Event(own(event.data), event.name) for event in body.events.take_all())
        return _with_body(response, EventStream(BufferedStream(events)))

    def on_items(events: Sequence[Event]) -> Sequence[Event]:
        return [Event(own(event.data), event.name) for event in events]

    return _with_body(response, EventStream(with_observer(body.events, StreamObserver(on_items))))


def _renewed(call: Call, body: Body, answer_id: str, created: int) -> Body:
    def renew(data: bytes) -> bytes:
        return call.dialect.renew(call, data, answer_id=answer_id, created=created)

    if isinstance(body, FullBody):
        return FullBody(renew(body.data))
    if isinstance(body, EventStream) and isinstance(body.events, BufferedStream):
        return EventStream(
            BufferedStream(tuple(Event(renew(event.data), event.name) for event in body.events.take_all()))
        )
    return body


def _live_observer(call: Call) -> StreamObserver[Event]:
    """Return an observer that passes on what the client asked for. A broken stream ends with an error event in the
    dialect's shape."""

    def on_error(error: UpstreamStreamError) -> Sequence[Event]:
        LOG.warning("stream broken", extra={"fields": {"error": str(error)}})
        return call.dialect.error_events(error.kind, str(error))

    return StreamObserver(partial(call.dialect.visible_events, call), on_error=on_error)


def _with_form(response: Response, form: tuple[tuple[str, str], ...], body: FullBody | EventStream) -> Response:
    retained = tuple((name, value) for name, value in response.headers if name.lower() not in FORM_HEADERS)
    return Response(response.status, retained + form, body, response.provenance)


def _with_body(response: Response, body: Body) -> Response:
    return Response(response.status, response.headers, body, response.provenance)
