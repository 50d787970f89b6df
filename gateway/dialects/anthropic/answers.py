"""Anthropic messages: inspect them, split them into events, join events, and build them from plain text. Pure.

`payload` is the data of a stream's events in order, or one element: a complete body.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from gateway.calls import Inspection, Token
from gateway.dialects.anthropic.errors import error_sentence
from gateway.dialects.conversation import is_blank, split_pieces
from gateway.dialects.json_body import count_of, dump_json, escape_line_ends, load_json
from gateway.dialects.openai.answers import reading, reasoning_tokens, usage_of, written_tokens
from gateway.dialects.prompt_tokens import count_tokens
from gateway.dialects.sse import encode_event, with_event_name
from gateway.errors import MalformedResponse
from gateway.messages import Event
from gateway.outcomes import Admission

# Split a complete message into the events of a stream. Pure.

# Fields that a stream sends only at its end: in the delta of `message_delta`, and next to that delta.
FINAL_FIELDS = ("stop_reason", "stop_sequence", "stop_details", "container")

FINAL_EVENT_FIELDS = ("context_management",)

# Fields of the usage at the end of a stream. Those of `LATE_USAGE` are known only there.
LATE_USAGE = ("server_tool_use", "output_tokens_details", "iterations")
FINAL_USAGE = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens", *LATE_USAGE)


def events_of(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the events. The `type` of each is also its name. Malformed messages raise `KeyError` and the like."""
    late = {key: None for key in FINAL_FIELDS + FINAL_EVENT_FIELDS if key in message}
    begun, final = _split_usage(message.get("usage"))
    yield {"type": "message_start", "message": {**message, **late, **begun, "content": []}}
    for index, block in enumerate(message["content"]):
        start, deltas = _parts(block)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end: dict[str, Any] = {
        "type": "message_delta",
        "delta": {key: message[key] for key in FINAL_FIELDS if key in message},
    }
    end |= {key: message[key] for key in FINAL_EVENT_FIELDS if key in message}
    end["usage"] = final
    yield end
    yield {"type": "message_stop"}


def _split_usage(usage: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return (the field `usage` at the start, the usage at the end). The counts at the end are totals: LangChain reads
    only these."""
    if not isinstance(usage, dict) or type(usage.get("output_tokens")) is not int:
        return {}, {}
    begun = {key: value for key, value in usage.items() if key not in LATE_USAGE}
    return {"usage": {**begun, "output_tokens": 0}}, {key: usage[key] for key in FINAL_USAGE if key in usage}


def _parts(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Return (the block at its start, its deltas). Content without a known delta comes complete with the start."""
    start, kind, deltas = dict(block), block["type"], list[dict[str, Any]]()
    if kind == "text" and isinstance(block.get("text"), str):
        start["text"] = ""
        deltas += [{"type": "text_delta", "text": piece} for piece in split_pieces(block["text"])]
        if isinstance(block.get("citations"), list):
            start["citations"] = []
            deltas += [{"type": "citations_delta", "citation": citation} for citation in block["citations"]]
    elif kind == "thinking" and isinstance(block.get("thinking"), str):
        start["thinking"] = ""
        deltas += [{"type": "thinking_delta", "thinking": piece} for piece in split_pieces(block["thinking"])]
        if isinstance(block.get("signature"), str):
            start["signature"] = ""
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif isinstance(kind, str) and kind.endswith("tool_use") and isinstance(block.get("input"), dict):
        start["input"] = {}
        pieces = split_pieces(dump_json(block["input"]).decode()) if block["input"] else []
        deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in ("", *pieces)]
    return start, deltas


# Join the events of a stream into the body that the same request without `stream` gets. Pure.
#
# `message_start` has the message without content. Each content block comes as a start, deltas and a stop.
# `message_delta` and `message_stop` complete the message. For deltas of an unknown type, texts and lists are joined and
# anything else is replaced. https://platform.claude.com/docs/en/build-with-claude/streaming

DONE = b"[DONE]"  # some servers end with it, as OpenAI's streams do

# Delta type -> the block field that it continues. Other keys of such a delta describe the delta (a token estimate,
# say). They are dropped, because clients send blocks back in the next turn and Anthropic refuses unknown fields.
CONTINUED = {"text_delta": "text", "thinking_delta": "thinking"}


def assemble_message(payload: Iterable[bytes]) -> dict[str, Any]:
    """Join the data of all events; an `error` event replaces the message.

    Malformed streams raise `ValueError`, `TypeError`, `AttributeError` or `KeyError`.
    """
    message: dict[str, Any] = {}
    blocks = _Blocks()
    for data in payload:
        event = {} if data == DONE else load_json(data)
        kind = event.pop("type", None)
        if kind == "error":
            return {"type": "error", **event}
        if kind == "message_start":
            if message or event["message"].get("content"):
                raise ValueError("a stream that starts twice, or in the middle")
            message = event["message"]
        elif kind == "content_block_start":
            blocks.start(event["index"], event["content_block"])
        elif kind == "content_block_delta":
            blocks.add(event["index"], event["delta"])
        elif kind == "content_block_stop":
            blocks.stop(event.get("index"))
        elif kind in ("message_delta", "message_stop"):
            _apply_message_event(message, event)
            if kind == "message_stop":
                break  # notes of the server may follow
    if "role" not in message:
        raise ValueError("a stream without a message")
    return {**message, "content": blocks.to_list()}


class _Blocks:
    """The content blocks of a stream. Some servers give each block the index 0; then one follows the other."""

    def __init__(self) -> None:
        self._blocks: dict[int, _Block] = {}  # the last one of each index
        self._replaced: list[_Block] = []
        self._stopped: set[int | None] = set()

    def start(self, index: int, block: dict[str, Any]) -> None:
        """Raise `ValueError` if the block cannot be told from another one of its index."""
        if (earlier := self._blocks.pop(index, None)) is not None:
            if index not in self._stopped or self._blocks:
                raise ValueError("two blocks of one index")
            self._replaced.append(earlier)
        self._stopped.discard(index)
        self._blocks[index] = _Block(block)

    def add(self, index: int, delta: Mapping[str, Any]) -> None:
        self._blocks[index].add(delta)

    def stop(self, index: int | None) -> None:
        self._stopped.add(index)

    def to_list(self) -> list[dict[str, Any]]:
        last = [self._blocks[index] for index in sorted(self._blocks)]
        return [block.to_block() for block in (*self._replaced, *last)]


class _Block:
    """A content block under construction."""

    def __init__(self, start: dict[str, Any]) -> None:
        self._fields = start
        self._input: list[str] = []

    def add(self, delta: Mapping[str, Any]) -> None:
        fields, kind = self._fields, delta["type"]
        if kind in CONTINUED:
            key = CONTINUED[kind]
            fields[key] = (fields.get(key) or "") + delta[key]
        elif kind == "input_json_delta":
            self._input.append(delta["partial_json"])
        elif kind == "signature_delta":
            fields["signature"] = delta["signature"]
        elif kind == "citations_delta":
            fields["citations"] = [*(fields.get("citations") or ()), delta["citation"]]
        else:
            for key, value in delta.items():
                if key != "type":
                    fields[key] = _append(fields.get(key), value)

    def to_block(self) -> dict[str, Any]:
        text = "".join(self._input)
        return {**self._fields, "input": load_json(text)} if text else self._fields


def _append(before: Any, value: Any) -> Any:
    same = isinstance(before, str | list) and type(before) is type(value)
    return before + value if same else value


def _apply_message_event(message: dict[str, Any], event: Mapping[str, Any]) -> None:
    """Apply the fields of an event. Token counts are totals, and a null removes nothing."""
    for key, value in event.items():
        if key == "delta":
            _replace(message, value or {})
        elif key == "usage" and isinstance(message.get("usage"), dict):
            _replace(message["usage"], value or {})
        else:
            _replace(message, {key: value})


def _replace(fields: dict[str, Any], settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        if value is not None or key not in fields:
            fields[key] = value


MESSAGES = "messages"

FINAL_STOP_REASONS = ("end_turn", "stop_sequence")

PREFIX = "msg_"

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


def inspect(payload: Sequence[bytes], streamed: bool) -> Inspection:
    """Return whether the response is complete enough to be stored, and its token counts."""
    try:
        body = assemble_message(payload) if streamed else load_json(payload[0])
        usage = usage_of(body)
        tokens = (
            *count_tokens(usage),
            count_of(usage.get("cache_read_input_tokens")),
            written_tokens(usage),
            reasoning_tokens(usage),
        )
        if body.get("type") == "error":
            return Inspection(Admission.ERROR_STATUS, *tokens)
        if streamed and not _is_complete(payload):
            return Inspection(Admission.CUT, *tokens)
        return Inspection(_admission(body), *tokens)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError, IndexError):
        return Inspection(Admission.MALFORMED if not streamed or _is_complete(payload) else Admission.CUT, 0, 0)


def _is_complete(payload: Sequence[bytes]) -> bool:
    return any(with_event_name(data).name == "message_stop" for data in reversed(payload))


def is_finished(data: bytes) -> bool:
    """Return whether an event gives the reason why the model stopped: nothing but the end marker follows."""
    try:
        event = load_json(data)
        return bool(event["type"] == "message_delta" and event["delta"]["stop_reason"] is not None)
    except (ValueError, KeyError, TypeError):
        return False


def _admission(body: Mapping[str, Any]) -> Admission:
    """Return the admission. Raise `TypeError` or `KeyError` for messages that could not be streamed."""
    content = body["content"]
    kinds = [block["type"] for block in content]
    if body["role"] != "assistant" or not all(isinstance(kind, str) for kind in kinds):
        raise TypeError("not a message of an assistant")
    if body["stop_reason"] == "refusal":
        return Admission.REFUSED
    if body["stop_reason"] not in (*FINAL_STOP_REASONS, "tool_use"):
        return Admission.INCOMPLETE
    if all(_is_blank(block) for block in content):
        return Admission.EMPTY
    # Tools that the server runs, such as a web search, count too: their results age.
    used = body["stop_reason"] == "tool_use" or any(kind.endswith(("tool_use", "tool_result")) for kind in kinds)
    return Admission.TOOLS if used else Admission.STORED


def _is_blank(block: Mapping[str, Any]) -> bool:
    """Return whether a block is reasoning, or a text in which nobody sees anything."""
    kind = block["type"]
    return kind in ("thinking", "redacted_thinking") or (kind == "text" and is_blank(block.get("text")))


def text(whole: bytes) -> str | None:
    """Return the text of a complete body, with its text blocks joined; None if it has other content.

    Citations split a text into blocks. Thinking is left out. Raise `MalformedResponse`.
    """
    with reading():
        content = load_json(whole)["content"]
        if any(block["type"] not in ("text", "thinking", "redacted_thinking") for block in content):
            return None
        return "".join(block["text"] for block in content if block["type"] == "text") or None


def assemble(payload: Iterable[bytes]) -> bytes:
    """Join a stream into the body that the same request without `stream` gets. Raise `MalformedResponse`."""
    with reading():
        body = assemble_message(payload)
        _check_error(body)
        return dump_json(body)


def split(whole: bytes) -> tuple[Event, ...]:
    """Split a body into the stream that the same request with `stream` gets. Raise `MalformedResponse`."""
    with reading():
        body = load_json(whole)
        _check_error(body)
        return tuple(map(encode_event, events_of(body)))


def _check_error(body: Mapping[str, Any]) -> None:
    if body.get("type") == "error":
        raise MalformedResponse(f"the response is an error: {error_sentence(body)}")


def renew(data: bytes, answer_id: str) -> bytes:
    """Return a body, or the event data that carries the message, with another id; anything else unchanged."""
    try:
        body = load_json(data)
    except orjson.JSONDecodeError:
        return data
    if not isinstance(body, dict):
        return data
    if isinstance(message := body.get("message"), dict) and "id" in message:
        return escape_line_ends(dump_json({**body, "message": {**message, "id": answer_id}}))
    return escape_line_ends(dump_json({**body, "id": answer_id})) if "id" in body else data


class AnthropicTextAnswer:
    """`AnthropicTextAnswer` builds events from plain text, for backends that return only text."""

    def __init__(self, answer_id: str, model: str) -> None:
        self._id = PREFIX + answer_id
        self._model = model

    def start(self) -> Sequence[Event]:
        usage = {"input_tokens": 0, "output_tokens": 0}
        return [
            encode_event({"type": "message_start", "message": message_of(self._id, self._model, usage=usage)}),
            encode_event({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        ]

    def delta(self, text: str, tokens: Sequence[Token] = ()) -> Event:
        return encode_event({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})

    def finish(self, reason: str, input_tokens: int, output_tokens: int) -> Sequence[Event]:
        delta = {"stop_reason": STOP_REASONS.get(reason, reason), "stop_sequence": None}
        usage = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        return [
            encode_event({"type": "content_block_stop", "index": 0}),
            encode_event({"type": "message_delta", "delta": delta, "usage": usage}),
            encode_event({"type": "message_stop"}),
        ]


def message_of(answer_id: str, model: str, **fields: Any) -> dict[str, Any]:
    """Return a message with all required fields; without `fields` it is the one that starts a stream."""
    empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    return {"id": answer_id, "type": "message", "role": "assistant", "model": model, **empty, **fields}
