"""Anthropic messages: judged, taken apart into events, put together from events, made from plain text. Pure.

`payload` is the data of a stream's events in order, or one element: a whole body.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import orjson

from gateway.dialects.anthropic_errors import error_sentence
from gateway.dialects.conversation import split_pieces
from gateway.dialects.openai_answers import reading
from gateway.dialects.sse import encode_event, with_event_name
from gateway.errors import MalformedResponse
from gateway.messages import Admission, Event, Inspection, Token

# A whole Anthropic message taken apart into the events of a stream. Pure.

# What only the end of a stream tells: in the delta of `message_delta`, and beside it. Readers take it from there.
FINAL_FIELDS = ("stop_reason", "stop_sequence", "stop_details", "container")

FINAL_EVENT_FIELDS = ("context_management",)


def events_of(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each with its `type`, which is its name too. Raises what reading a malformed answer raises."""
    late = {key: None for key in FINAL_FIELDS + FINAL_EVENT_FIELDS if key in message}
    usage = message.get("usage")
    encode_event = usage.get("output_tokens") if isinstance(usage, dict) else 0  # a reader relies on a count at the end
    begun = {"usage": {**usage, "output_tokens": 0}} if isinstance(usage, dict) and type(encode_event) is int else {}
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
    end["usage"] = {"output_tokens": encode_event} if type(encode_event) is int else {}
    yield end
    yield {"type": "message_stop"}


def _parts(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """-> (how the block starts, its deltas). What no delta is known for comes whole with the start."""
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
        pieces = split_pieces(orjson.dumps(block["input"]).decode()) if block["input"] else [""]
        deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return start, deltas


# The events of an Anthropic stream put together: what the same request without `stream` gets. Pure.
#
# `message_start` holds the message without its content, each block of the content comes as a start, deltas and a stop,
# `message_delta` and `message_stop` complete the message. What a delta of an unknown kind says follows a rule:
# texts are joined, lists too, everything else is replaced.
# https://platform.claude.com/docs/en/build-with-claude/streaming

DONE = b"[DONE]"  # some servers end with it, as OpenAI's streams do

# Delta -> the field of its block that it continues. What else stands in such a delta is about the delta (an estimate of
# its tokens, say): clients send blocks back in the next turn, and Anthropic refuses fields that it does not know.
CONTINUED = {"text_delta": "text", "thinking_delta": "thinking"}


def assemble_message(payload: Iterable[bytes]) -> dict[str, Any]:
    """Of the data of all events; an `error` among them is the answer. Raises what reading a malformed answer raises:
    `ValueError`, `TypeError`, `AttributeError`, `KeyError`."""
    message: dict[str, Any] = {}
    blocks: dict[int, _Block] = {}
    for data in payload:
        event = {} if data == DONE else orjson.loads(data)
        kind = event.pop("type", None)
        if kind == "error":
            return {"type": "error", **event}
        if kind == "message_start":
            if message or event["message"].get("content"):
                raise ValueError("a stream that starts twice, or in the middle")
            message = event["message"]
        elif kind == "content_block_start":
            if event["index"] in blocks:
                raise ValueError("two blocks of one index")
            blocks[event["index"]] = _Block(event["content_block"])
        elif kind == "content_block_delta":
            blocks[event["index"]].add(event["delta"])
        elif kind in ("message_delta", "message_stop"):
            _apply_message_event(message, event)
    if "role" not in message:
        raise ValueError("a stream without a message")
    return {**message, "content": [blocks[index].to_block() for index in sorted(blocks)]}


class _Block:
    """A block of the content as far as it has come."""

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
        return {**self._fields, "input": orjson.loads(text)} if text else self._fields


def _append(before: Any, value: Any) -> Any:
    same = isinstance(before, str | list) and type(before) is type(value)
    return before + value if same else value


def _apply_message_event(message: dict[str, Any], event: Mapping[str, Any]) -> None:
    """What is said of the message; counts of tokens are totals, not additions, and nothing is taken back."""
    for key, value in event.items():
        if key == "delta":
            _replace(message, value)
        elif key == "usage" and isinstance(message.get("usage"), dict):
            _replace(message["usage"], value)
        else:
            _replace(message, {key: value})


def _replace(fields: dict[str, Any], given: Mapping[str, Any]) -> None:
    for key, value in given.items():
        if value is not None or key not in fields:
            fields[key] = value


MESSAGES = "messages"

FINAL_STOP_REASONS = ("end_turn", "stop_sequence")

PREFIX = "msg_"

STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


def inspect(payload: Sequence[bytes], streamed: bool) -> Inspection:
    """Whether the answer is complete enough to be stored, and the tokens that it cost."""
    try:
        body = assemble_message(payload) if streamed else orjson.loads(payload[0])
        tokens = count_tokens(body.get("usage") or {})
        if body.get("type") == "error":
            return Inspection(Admission.ERROR_STATUS, *tokens)
        if streamed and not _is_complete(payload):
            return Inspection(Admission.CUT, *tokens)
        return Inspection(_admission(body), *tokens)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError, IndexError):
        return Inspection(Admission.MALFORMED if not streamed or _is_complete(payload) else Admission.CUT, 0, 0)


def count_tokens(usage: Mapping[str, Any]) -> tuple[int, int]:
    """-> (input, output). What was read from Anthropic's prompt cache, or put there, is input too."""
    read = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(int(usage.get(key) or 0) for key in read), int(usage.get("output_tokens") or 0)


def _is_complete(payload: Sequence[bytes]) -> bool:
    for data in reversed(payload):
        kind = with_event_name(data).name
        if kind != "ping" and data != DONE:
            return kind == "message_stop"
    return False


def _admission(body: Mapping[str, Any]) -> Admission:
    """Raises `TypeError` or `KeyError` on what could not be said as a stream."""
    content = body["content"]
    kinds = [block["type"] for block in content]
    if body["role"] != "assistant" or not all(isinstance(kind, str) for kind in kinds):
        raise TypeError("not a message of an assistant")
    if not content or body["stop_reason"] not in (*FINAL_STOP_REASONS, "tool_use"):
        return Admission.INCOMPLETE
    # A tool that the server runs, such as a search of the web, is a tool too: its results age.
    used = body["stop_reason"] == "tool_use" or any(kind.endswith(("tool_use", "tool_result")) for kind in kinds)
    return Admission.TOOLS if used else Admission.STORED


def text(whole: bytes) -> str | None:
    """What a whole body says, its texts joined (citations part them); None where it says anything in another way.
    Thoughts are no part of it. Raises `MalformedResponse`."""
    with reading():
        content = orjson.loads(whole)["content"]
        if any(block["type"] not in ("text", "thinking", "redacted_thinking") for block in content):
            return None
        return "".join(block["text"] for block in content if block["type"] == "text") or None


def assemble(payload: Iterable[bytes]) -> bytes:
    """The events of a stream -> the body that the same request without `stream` gets. Raises `MalformedResponse`."""
    with reading():
        body = assemble_message(payload)
        _check_error(body)
        return orjson.dumps(body)


def split(whole: bytes) -> tuple[Event, ...]:
    """A whole body -> the stream that the same request with `stream` gets. Raises `MalformedResponse`."""
    with reading():
        body = orjson.loads(whole)
        _check_error(body)
        return tuple(map(encode_event, events_of(body)))


def _check_error(body: Mapping[str, Any]) -> None:
    if body.get("type") == "error":
        raise MalformedResponse(f"the answer is an error: {error_sentence(body)}")


def renewed(data: bytes, answer_id: str) -> bytes:
    """A whole body, or the data of the event that carries it, under another id; anything else as it is."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError:
        return data
    if not isinstance(body, dict):
        return data
    if isinstance(message := body.get("message"), dict) and "id" in message:
        return orjson.dumps({**body, "message": {**message, "id": answer_id}})
    return orjson.dumps({**body, "id": answer_id}) if "id" in body else data


class AnthropicTextAnswer:
    """Plain text -> events, for backends that know nothing but text."""

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
    """A message with all that the protocol requires; without anything else it is what a stream starts with."""
    empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    return {"id": answer_id, "type": "message", "role": "assistant", "model": model, **empty, **fields}
