"""Translate Anthropic's response to a chat request into a chat completion: complete, or chunk by chunk. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from gateway.calls import Call, Outgoing
from gateway.dialects.anthropic.requests import LIMITS
from gateway.dialects.anthropic.translation.chat_to_messages import messages_request, own_stops
from gateway.dialects.anthropic.translation.stops import MessageStops
from gateway.dialects.json_body import dump_json, escape_line_ends, load_json
from gateway.dialects.known import MESSAGES
from gateway.dialects.openai.answers import CHAT, DONE, reading, usage_of
from gateway.dialects.prompt_tokens import count_tokens
from gateway.dialects.translation.limits import fitting
from gateway.dialects.translation.reading import bad_request_if_unreadable, error_message, is_context_overflow
from gateway.errors import BadRequest, MalformedResponse
from gateway.messages import Event

# Other reasons pass unchanged; none of them counts as finished.
FINISHES = {
    "end_turn": "stop",
    "stop_sequence": "stop",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "tool_use": "tool_calls",
    "refusal": "content_filter",
}
DROPPED_BLOCKS = ("redacted_thinking",)


class MessageAnswer:
    """`MessageAnswer` implements `TranslatedCall`, and its class implements `Translation`. The backend always
    understands `cache_control`, and never `reasoning_content`."""

    def __init__(
        self,
        call: Call,
        *,
        model: str | None,
        created: int,
        cache_control: bool = True,
        reasoning_content: bool = False,
    ) -> None:
        if call.operation != CHAT:
            raise BadRequest(f"{call.operation} cannot be translated to Anthropic's protocol, which the backend speaks")
        fit = fitting(LIMITS)
        with bad_request_if_unreadable():
            self.outgoing = Outgoing(MESSAGES, orjson.dumps(messages_request(call.body, model, fit=fit)))
            self._stops = MessageStops(own_stops(call.body))
        self._original = fit.original
        self._head = {"id": f"chatcmpl-{created}", "model": call.model}  # for servers that leave these out
        self._chunks = ChatChunks(created, fit.original, self._head)
        self._created = created

    def whole(self, data: bytes) -> bytes:
        with reading():
            body = load_json(data)
            if body.get("type") == "error":
                raise MalformedResponse(f"the response is an error: {error_message(200, data)}")
            body = self._stops.whole(body)
            head = {**self._head, **_given(body, self._head)}
            head |= {"object": "chat.completion", "created": self._created}
            choice = {
                "index": 0,
                "message": _message(body["content"], self._original),
                "logprobs": None,
                "finish_reason": _finish(body.get("stop_reason")),
            }
            return dump_json({**head, "choices": [choice], "usage": _usage(usage_of(body))})

    def events(self, event: Event) -> Sequence[Event]:
        with reading():
            if event.data == DONE or self._chunks.has_ended:
                return []  # notes of the server after the end
            return [chunk for each in self._stops.events(load_json(event.data)) for chunk in self._chunks.of(each)]

    def error(self, status: int, data: bytes) -> bytes:
        with reading():
            return _error(status, data)


class ChatChunks:
    """`ChatChunks` builds the chunks of one stream. It keeps the state that later events need."""

    def __init__(self, created: int, original: Callable[[str], str], head: Mapping[str, Any]) -> None:
        """`head` has the id and the model for a message that names none."""
        self._original = original  # returns the client's name of a tool
        self._head: dict[str, Any] = {**head, "object": "chat.completion.chunk", "created": created}
        self.has_ended = False
        self._usage: dict[str, Any] = {}
        self._calls: dict[int, int] = {}  # index of a block -> index of its tool call, the last one of that index
        self._count = 0  # of tool calls
        self._start_arguments: dict[int, str] = {}  # arguments from the block's start, sent if no delta has any

    def of(self, event: Mapping[str, Any]) -> Iterator[Event]:
        kind = event.get("type")
        if kind == "message_start":
            message = event["message"]
            self._head |= _given(message, ("id", "model"))
            self._usage |= usage_of(message)
            yield self._chunk({"role": "assistant", "content": ""})
        elif kind == "content_block_start":
            yield from self._block_start(event["index"], event["content_block"])
        elif kind == "content_block_delta":
            yield from self._block_delta(event["index"], event["delta"])
        elif kind == "content_block_stop" and event["index"] in self._start_arguments:
            yield self._arguments(event["index"], self._start_arguments.pop(event["index"]))
        elif kind == "message_delta":
            for index, arguments in self._start_arguments.items():  # of blocks that the server did not stop
                yield self._arguments(index, arguments)
            self._start_arguments = {}
            self._usage |= {key: value for key, value in usage_of(event).items() if value is not None}
            if (reason := (event.get("delta") or {}).get("stop_reason")) is not None:
                yield self._chunk({}, _finish(reason))
        elif kind == "message_stop":
            self.has_ended = True
            yield Event(orjson.dumps({**self._head, "choices": [], "usage": _usage(self._usage)}))
            yield Event(DONE)
        elif kind == "error":
            yield Event(_error(200, dump_json(event)))

    def _chunk(self, delta: Mapping[str, Any], finish: str | None = None) -> Event:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return Event(escape_line_ends(dump_json({**self._head, "choices": [choice]})))

    def _block_start(self, index: int, block: Mapping[str, Any]) -> Iterator[Event]:
        kind = block["type"]
        if kind == "tool_use":
            self._calls[index], self._count = self._count, self._count + 1
            self._start_arguments[index] = dump_json(block.get("input") or {}).decode()
            function = {"name": self._original(block["name"]), "arguments": ""}
            call = {"index": self._calls[index], "id": block["id"], "type": "function", "function": function}
            yield self._chunk({"tool_calls": [call]})
        elif kind == "text":
            yield from self._text_chunk("content", block.get("text"))
        elif kind == "thinking":
            yield from self._text_chunk("reasoning_content", block.get("thinking"))
        elif kind not in DROPPED_BLOCKS:
            raise MalformedResponse(
                f"the response has a block of the type {str(kind)[:40]!r}, which OpenAI's protocol lacks"
            )

    def _block_delta(self, index: int, delta: Mapping[str, Any]) -> Iterator[Event]:
        kind = delta["type"]
        if kind == "text_delta":
            yield from self._text_chunk("content", delta["text"])
        elif kind == "thinking_delta":
            yield from self._text_chunk("reasoning_content", delta["thinking"])
        elif kind == "input_json_delta" and index in self._calls and delta["partial_json"]:
            self._start_arguments.pop(index, None)
            yield self._arguments(index, delta["partial_json"])

    def _text_chunk(self, field: str, text: str | None) -> Iterator[Event]:
        if text:
            yield self._chunk({field: text})

    def _arguments(self, index: int, text: str) -> Event:
        return self._chunk({"tool_calls": [{"index": self._calls[index], "function": {"arguments": text}}]})


def _message(content: Sequence[Mapping[str, Any]], original: Callable[[str], str]) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in content:
        kind = block["type"]
        if kind == "text":
            texts.append(block["text"])
        elif kind == "thinking":
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            function = {"name": original(block["name"]), "arguments": dump_json(block.get("input") or {}).decode()}
            calls.append({"id": block["id"], "type": "function", "function": function})
        elif kind not in DROPPED_BLOCKS:
            raise MalformedResponse(
                f"the response has a block of the type {str(kind)[:40]!r}, which OpenAI's protocol lacks"
            )
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) if texts or not calls else None}
    if thoughts:
        message["reasoning_content"] = "".join(thoughts)
    return message | ({"tool_calls": calls} if calls else {})


def _given(message: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    return {key: message[key] for key in keys if message.get(key)}


def _finish(reason: str | None) -> str | None:
    return None if reason is None else FINISHES.get(reason, reason)


def _usage(usage: Mapping[str, Any]) -> dict[str, Any]:
    read, written = count_tokens(usage)
    counts: dict[str, Any] = {"prompt_tokens": read, "completion_tokens": written, "total_tokens": read + written}
    details = {"cached_tokens": "cache_read_input_tokens", "cache_write_tokens": "cache_creation_input_tokens"}
    if given := {key: usage[theirs] for key, theirs in details.items() if usage.get(theirs) is not None}:
        counts["prompt_tokens_details"] = given
    given_details = usage.get("output_tokens_details")
    thinking = given_details.get("thinking_tokens") if isinstance(given_details, Mapping) else None
    if thinking is not None:
        counts["completion_tokens_details"] = {"reasoning_tokens": thinking}
    return counts


def _error(status: int, data: bytes) -> bytes:
    """Return an error body. Anthropic's error types equal OpenAI's if both have one."""
    try:
        kind = load_json(data)["error"]["type"]
    except (ValueError, TypeError, KeyError):
        kind = "upstream_error"
    code = "context_length_exceeded" if is_context_overflow(data) else None  # agents look for it, to compact
    error = {"message": error_message(status, data), "type": str(kind)[:80], "param": None, "code": code}
    return dump_json({"error": error})
