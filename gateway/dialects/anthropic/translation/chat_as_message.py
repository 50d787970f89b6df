"""Translate OpenAI's response to a messages request into Anthropic's message: complete, or event by event. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import Any

import orjson

from gateway.calls import Call, Outgoing
from gateway.dialects.anthropic.answers import PREFIX, message_of
from gateway.dialects.anthropic.errors import error, kind_for_status, sentence_of
from gateway.dialects.anthropic.translation.call_ids import UniqueIds, call_ids
from gateway.dialects.anthropic.translation.messages_to_chat import chat_request, own_stops
from gateway.dialects.anthropic.translation.sealed_calls import sealed
from gateway.dialects.json_body import count_of, dump_json, load_json
from gateway.dialects.openai.answers import DONE, cached_tokens, reading, usage_of, written_tokens
from gateway.dialects.openai.chat_deltas import REASONS, calls_of, texts_of, thought_of
from gateway.dialects.openai.dialect import CHAT
from gateway.dialects.openai.tool_call_deltas import ToolCallDeltas, arguments_text
from gateway.dialects.sse import encode_event
from gateway.dialects.translation.limits import OPENAI, fitting
from gateway.dialects.translation.reading import bad_request_if_unreadable, error_message, is_context_overflow
from gateway.dialects.translation.stops import ChatStops
from gateway.errors import MalformedResponse
from gateway.messages import Event

# Other reasons pass unchanged; none of them counts as finished.
STOPS = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
    "function_call": "tool_use",
    "content_filter": "refusal",
}
UNSIGNED = {"thinking": {"signature": ""}}  # kind of block -> the fields that it needs and OpenAI's protocol lacks


class ChatAnswer:
    """`ChatAnswer` implements `TranslatedCall`, and its class implements `Translation`."""

    def __init__(
        self,
        call: Call,
        *,
        model: str | None,
        created: int,
        cache_control: bool = False,
        reasoning_content: bool = False,
    ) -> None:
        fit = fitting(OPENAI)
        with bad_request_if_unreadable():
            request = chat_request(
                call.body, model, cache_control=cache_control, reasoning_content=reasoning_content, fit=fit
            )
            self.outgoing = Outgoing(CHAT, orjson.dumps(request))
            self._stops = ChatStops(own_stops(call.body))
        self._original = fit.original
        self._ids = UniqueIds(partial(call_ids, call.body))
        self._events = MessageEvents(call.model, fit.original, self._ids)

    def whole(self, data: bytes) -> bytes:
        with reading():
            body = load_json(data)
            if body.get("error") is not None:
                raise MalformedResponse(f"the response is an error: {error_message(200, data)}")
            choice = self._stops.whole(body["choices"][0])
            is_cut = choice.get("finish_reason") == "length"
            content = list(_content(choice["message"], self._original, self._ids, is_cut=is_cut))
            has_tool_calls = any(block["type"] == "tool_use" for block in content)
            has_refusal = bool(choice["message"].get("refusal"))
            fields = {"content": content, **_ending(choice, has_tool_calls=has_tool_calls, has_refusal=has_refusal)}
            usage = _usage(usage_of(body))
            message = message_of(_id(body.get("id")), body.get("model") or "", **fields, usage=usage)
            return dump_json(message)

    def events(self, event: Event) -> Sequence[Event]:
        with reading():
            if self._events.has_ended:
                return []  # notes of the server after the end
            if event.data == DONE:
                return [*self._held(), *self._events.end()]
            return [*self._events.of(self._stops.chunk(load_json(event.data)))]

    def _held(self) -> Iterator[Event]:
        """Yield the events of a text that was held back because a stop sequence could begin in it."""
        if rest := self._stops.rest():
            yield from self._events.of({"choices": [{"delta": {"content": rest}}]})

    def error(self, status: int, data: bytes) -> bytes:
        with reading():
            return error(kind_for_status(status), sentence_of(status, data))


@dataclass(slots=True)
class _Tool:
    """A tool call under construction."""

    id: Any = ""
    name: Any = ""
    arguments: list[str] = field(default_factory=list)
    seal: str = ""


class MessageEvents:
    """`MessageEvents` builds the events of one stream, with one open block at a time.

    A block of text ends when another kind begins. The first tool call is streamed as it arrives, once it has its id
    and name. Others may be interleaved, so they wait for the end. A text within the first one waits until its arguments
    are complete.
    """

    def __init__(self, model: str, original: Callable[[str], str] = str, ids: UniqueIds | None = None) -> None:
        self._model = model  # used if the backend names none
        self._original = original  # returns the client's name of a tool
        self._ids = ids or UniqueIds()
        self._started = False
        self.has_ended = False  # by its last event, or an error
        self._index = -1  # index of the last opened block
        self._open = ""  # kind of the open block
        self._deltas = ToolCallDeltas()
        self._tools: list[_Tool] = []
        self._first: _Tool | None = None  # the streamed tool call
        self._first_place = 0  # its place among all calls
        self._waiting: list[tuple[str, str]] = []  # kinds and texts that came within the streamed tool call
        self._refused = False
        self._ending: dict[str, Any] = {"stop_reason": None, "stop_sequence": None}
        self._usage: Mapping[str, Any] = {}

    def of(self, chunk: Mapping[str, Any]) -> Iterator[Event]:
        if chunk.get("error") is not None:
            self.has_ended = True
            data = dump_json(chunk)
            kind = "invalid_request_error" if is_context_overflow(data) else "api_error"
            yield Event(error(kind, sentence_of(200, data)), "error")
            return
        if not self._started and chunk.keys().isdisjoint(("choices", "usage")):
            return  # a sign of life of the server
        if not self._started:
            self._started = True
            start = message_of(_id(chunk.get("id")), chunk.get("model") or self._model, usage=_usage({}))
            yield encode_event({"type": "message_start", "message": start})
        self._usage = usage_of(chunk) or self._usage
        for choice in chunk.get("choices") or ():
            if choice.get("index"):
                continue  # the request has one choice
            yield from self._text_events(choice.get("delta") or {})
            if choice.get("finish_reason") is not None:
                self._ending = _ending(choice, has_tool_calls=bool(self._tools), has_refusal=self._refused)

    def end(self) -> Iterator[Event]:
        """Yield the final events. Raise `MalformedResponse` if there was no chunk."""
        if not self._started:
            raise MalformedResponse("the response is empty")
        self.has_ended = True
        yield from self._close()
        yield from self._waiting_texts()
        yield from self._close()
        for tool in self._tools:
            if tool is not self._first:
                yield from self._start_tool(tool)
                yield from self._close()
        if self._tools and self._ending["stop_reason"] is None:
            self._ending = {**self._ending, "stop_reason": "tool_use"}
        yield encode_event({"type": "message_delta", "delta": self._ending, "usage": _usage(self._usage)})
        yield encode_event({"type": "message_stop"})

    def _text_events(self, delta: Mapping[str, Any]) -> Iterator[Event]:
        self._refused = self._refused or bool(delta.get("refusal"))
        self._waiting += _texts(delta)
        if self._waiting and not (self._open == "tool_use" and not self._deltas.is_complete(self._first_place)):
            yield from self._waiting_texts()
        for call in calls_of(delta):
            yield from self._tool_call_events(call)

    def _waiting_texts(self) -> Iterator[Event]:
        for kind, text in self._waiting:
            if self._open != kind:
                yield from self._start(kind, {"type": kind, kind: "", **UNSIGNED.get(kind, {})})
            yield self._delta({"type": f"{kind}_delta", kind: text})
        self._waiting = []

    def _tool_call_events(self, call: Mapping[str, Any]) -> Iterator[Event]:
        place, function = self._deltas.place(call), call.get("function") or {}
        if self._deltas.is_renamed:
            raise MalformedResponse("the response gives one tool call two names")
        if place == len(self._tools):
            self._tools.append(_Tool())
        tool = self._tools[place]
        tool.id, tool.name = tool.id or call.get("id") or "", function.get("name") or tool.name
        tool.seal = tool.seal or sealed(call.get("extra_content"))
        arguments = arguments_text(function.get("arguments"))
        if self._first is None and tool.name and tool.id:
            self._first, self._first_place = tool, place
            tool.arguments.append(arguments)
            yield from self._start_tool(tool)
        elif tool is not self._first:
            tool.arguments.append(arguments)
        elif self._open != "tool_use":
            raise MalformedResponse("the response continues a tool call after another block has begun")
        elif arguments:
            yield self._delta({"type": "input_json_delta", "partial_json": arguments})

    def _start_tool(self, tool: _Tool) -> Iterator[Event]:
        if tool.seal:
            yield from self._start("thinking", {"type": "thinking", "thinking": "", "signature": ""})
            yield self._delta({"type": "signature_delta", "signature": tool.seal})
        tool_id = self._ids.take(tool.id or f"toolu_{self._index + 1}")
        name = _client_name(tool.name, self._original)
        yield from self._start("tool_use", {"type": "tool_use", "id": tool_id, "name": name, "input": {}})
        yield self._delta({"type": "input_json_delta", "partial_json": "".join(tool.arguments)})

    def _start(self, kind: str, block: Mapping[str, Any]) -> Iterator[Event]:
        yield from self._close()
        self._open, self._index = kind, self._index + 1
        yield encode_event({"type": "content_block_start", "index": self._index, "content_block": block})

    def _delta(self, delta: Mapping[str, Any]) -> Event:
        return encode_event({"type": "content_block_delta", "index": self._index, "delta": delta})

    def _close(self) -> Iterator[Event]:
        if self._open:
            self._open = ""
            yield encode_event({"type": "content_block_stop", "index": self._index})


def _content(
    message: Mapping[str, Any], original: Callable[[str], str], ids: UniqueIds, *, is_cut: bool
) -> Iterator[dict[str, Any]]:
    """Yield the blocks of a whole message. With `is_cut` the tokens ran out, perhaps within the arguments of a
    call."""
    for kind, text in _texts(message):
        yield {"type": kind, kind: text, **UNSIGNED.get(kind, {})}
    for i, call in enumerate(calls_of(message)):
        function = call.get("function") or {}
        arguments = _parsed(arguments_text(function.get("arguments")), is_cut=is_cut)
        if arguments is None or arguments == []:  # as some servers write no arguments
            arguments = {}
        if not isinstance(arguments, dict):
            raise TypeError("arguments that are not an object")
        if seal := sealed(call.get("extra_content")):
            yield {"type": "thinking", "thinking": "", "signature": seal}
        tool_id, name = ids.take(call.get("id") or f"toolu_{i}"), _client_name(function.get("name") or "", original)
        yield {"type": "tool_use", "id": tool_id, "name": name, "input": arguments}


def _parsed(arguments: str, *, is_cut: bool) -> Any:
    """Return arguments as a value. Those that were cut have none in Anthropic's protocol, whose clients see by the stop
    reason that the call is not to be made."""
    try:
        return load_json(arguments or "{}")
    except ValueError:
        if is_cut:
            return {}
        raise


def _client_name(name: Any, original: Callable[[str], str]) -> Any:
    """Return the client's name for a tool. A name that is no text is passed on."""
    return original(name) if isinstance(name, str) else name


def _texts(message: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the texts of a message or delta, each with the kind of its block. Those of one kind in a row are one."""
    thought = thought_of(message)
    texts = [("thinking", thought), *texts_of(message.get("content") or message.get("refusal"))]
    for kind, group in groupby([each for each in texts if each[1]], key=itemgetter(0)):
        yield kind, "".join(text for _, text in group)


def _ending(choice: Mapping[str, Any], *, has_tool_calls: bool, has_refusal: bool) -> dict[str, Any]:
    """Return the stop fields. vLLM reports the stop sequence as `stop_reason`."""
    given, sequence = choice.get("finish_reason"), choice.get("stop_reason")
    reason = REASONS.get(given, given) if isinstance(given, str) else given
    if reason == "stop" and (has_tool_calls or has_refusal):
        reason = "content_filter" if has_refusal else "tool_calls"
    if reason == "stop" and isinstance(sequence, str):
        return {"stop_reason": "stop_sequence", "stop_sequence": sequence}
    return {"stop_reason": STOPS.get(reason, reason) if reason else None, "stop_sequence": None}


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    read, written = cached_tokens(usage), written_tokens(usage)
    counts = {
        "input_tokens": max(0, count_of(usage.get("prompt_tokens")) - read - written),
        **({"cache_creation_input_tokens": written} if written else {}),
        "cache_read_input_tokens": read,
        "output_tokens": count_of(usage.get("completion_tokens")),
    }
    details = usage.get("completion_tokens_details")
    thinking = details.get("reasoning_tokens") if isinstance(details, Mapping) else None
    return counts if thinking is None else {**counts, "output_tokens_details": {"thinking_tokens": thinking}}


def _id(given: Any) -> str:
    """Return the id with the prefix of Anthropic's ids."""
    return PREFIX + str(given or "").removeprefix("chatcmpl-").removeprefix(PREFIX)
