"""Puts prompts and answers into the span of their request."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import replace

import orjson

from gateway.cache.redaction import Redaction
from gateway.cache.stored_parts import Part, Reach, UnreachedPart
from gateway.calls import Call
from gateway.config.policy.model import Policy, Route
from gateway.context import Handler, RequestContext, resolve_response
from gateway.dialects.json_body import well_formed
from gateway.feature import Runtime
from gateway.features.prompt_traces.rule import TraceRule
from gateway.messages import Event, EventStream, FullBody, Response
from gateway.outcomes import Admission
from gateway.streams import BufferedStream, StreamObserver, with_observer
from gateway.tracing import TraceRecorder

MAX_READ = 1024 * 1024  # bytes of an answer whose text is read
MAX_REDACTED = 32_768  # characters in which personal data is looked for, which takes 6 ms; a longer text is left out
THERE = "they are at the receiver of the traces, which keeps and erases them"
TRACED = Part(
    "traced",
    "prompts and answers in exported traces",
    (),
    (),
    Reach(erase=THERE, purge=THERE, export=THERE, explain="no decision reads them", simulate="no decision reads them"),
    counted=False,
    own=False,
)


class PromptTraces(Runtime):
    """The shared part of the feature: whether a policy in force uses it."""

    def __init__(self) -> None:
        self._is_used = False

    def in_force(self, policy: Policy) -> None:
        self._is_used = any(route.of(TraceRule) is not None for route in policy.routes)

    def stored_parts(self) -> Sequence[UnreachedPart]:
        return (UnreachedPart(TRACED, exists=self._is_used),)

    def texts(self, route: Route, inner: Handler) -> Handler:
        rule = route.of(TraceRule)
        return inner if rule is None else TracedTexts(rule, route.of(Redaction), inner).__call__


class TracedTexts:
    """Notes the texts of each traced request. No such request takes the fast path, which reads none."""

    def __init__(self, rule: TraceRule, redaction: Redaction | None, inner: Handler) -> None:
        self._rule = rule
        self._redaction = redaction
        self._inner = inner

    def __call__(self, request: RequestContext) -> Response | Awaitable[Response]:
        call, traced = request.call, request.traced
        if call is None or traced is None or not traced.sampled:
            return self._inner(request)
        request.on_written = None
        if self._rule.prompts and call.prompt:
            self._note(traced, "gen_ai.input.messages", "user", call.prompt)
        return self._watch(request, call, traced) if self._rule.answers else self._inner(request)

    async def _watch(self, request: RequestContext, call: Call, traced: TraceRecorder) -> Response:
        response = await resolve_response(self._inner(request))
        body = response.body
        if response.status != 200:
            return response
        if isinstance(body, FullBody):
            self._read(call, traced, (body.data,), streamed=False)
        elif isinstance(body, EventStream) and isinstance(body.events, BufferedStream):
            self._read(call, traced, [event.data for event in body.events.items], streamed=True)
        elif isinstance(body, EventStream):
            events = with_observer(body.events, self._observer(call, traced))
            return replace(response, body=EventStream(events))
        return response

    def _observer(self, call: Call, traced: TraceRecorder) -> StreamObserver[Event]:
        """Return an observer that keeps a stream, up to `MAX_READ` bytes, and reads it at its end."""
        payload, size = list[bytes](), 0

        def on_items(events: Sequence[Event]) -> Sequence[Event]:
            nonlocal size
            for event in events:
                size += len(event.data)
                if size <= MAX_READ:
                    payload.append(event.data)
            return events

        def on_complete() -> None:
            if size <= MAX_READ:
                self._read(call, traced, payload, streamed=True)

        return StreamObserver(on_items, on_complete)

    def _read(self, call: Call, traced: TraceRecorder, payload: Sequence[bytes], *, streamed: bool) -> None:
        if sum(map(len, payload)) <= MAX_READ and not call.embeds:
            text = call.dialect.answer_text(call, payload, streamed)
            if text:
                is_cut = call.dialect.inspect(call, payload, streamed).admission is Admission.INCOMPLETE
                finish = {"finish_reason": "length" if is_cut else "stop"}
                self._note(traced, "gen_ai.output.messages", "assistant", text, **finish)

    def _note(self, traced: TraceRecorder, name: str, role: str, text: str, **more: str) -> None:
        if self._redaction is not None:
            if len(text) > MAX_REDACTED:
                return
            text = self._redaction.redact(text)
        part = {"type": "text", "content": well_formed(text[: self._rule.max_chars])}
        traced.texts = {**traced.texts, name: orjson.dumps([{"role": role, "parts": [part], **more}]).decode()}
