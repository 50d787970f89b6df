"""Anthropic messages: judged, taken apart into events, put together from events, made from plain text. Pure.

`payload` is the data of a stream's events in order, or one element: a whole body.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import orjson

from gateway.dialects.anthropic_errors import sentence_of
from gateway.dialects.anthropic_merge import DONE, assembled
from gateway.dialects.anthropic_pieces import events_of
from gateway.dialects.named_events import named, written
from gateway.dialects.openai_answers import reading
from gateway.errors import Malformed
from gateway.messages import Admission, Event, Inspection, Token

MESSAGES = "messages"
FINISHED = ("end_turn", "stop_sequence")
PREFIX = "msg_"
STOP_REASONS = {"stop": "end_turn", "length": "max_tokens"}


def inspect(payload: Sequence[bytes], streamed: bool) -> Inspection:
    """Whether the answer is complete enough to be stored, and the tokens that it cost."""
    try:
        body = assembled(payload) if streamed else orjson.loads(payload[0])
        tokens = tokens_of(body.get("usage") or {})
        if body.get("type") == "error":
            return Inspection(Admission.ERROR_STATUS, *tokens)
        if streamed and not _ended(payload):
            return Inspection(Admission.CUT, *tokens)
        return Inspection(_judge(body), *tokens)
    except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, ValueError, IndexError):
        return Inspection(Admission.MALFORMED if not streamed or _ended(payload) else Admission.CUT, 0, 0)


def tokens_of(usage: Mapping[str, Any]) -> tuple[int, int]:
    """-> (input, output). What was read from Anthropic's prompt cache, or put there, is input too."""
    read = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
    return sum(int(usage.get(key) or 0) for key in read), int(usage.get("output_tokens") or 0)


def _ended(payload: Sequence[bytes]) -> bool:
    for data in reversed(payload):
        kind = named(data).name
        if kind != "ping" and data != DONE:
            return kind == "message_stop"
    return False


def _judge(body: Mapping[str, Any]) -> Admission:
    """Raises `TypeError` or `KeyError` on what could not be said as a stream."""
    content = body["content"]
    kinds = [block["type"] for block in content]
    if body["role"] != "assistant" or not all(isinstance(kind, str) for kind in kinds):
        raise TypeError("not a message of an assistant")
    if not content or body["stop_reason"] not in (*FINISHED, "tool_use"):
        return Admission.INCOMPLETE
    # A tool that the server runs, such as a search of the web, is a tool too: its results age.
    used = body["stop_reason"] == "tool_use" or any(kind.endswith(("tool_use", "tool_result")) for kind in kinds)
    return Admission.TOOLS if used else Admission.STORED


def text(whole: bytes) -> str | None:
    """What a whole body says, its texts joined (citations part them); None where it says anything in another way.
    Thoughts are no part of it. Raises `Malformed`."""
    with reading():
        content = orjson.loads(whole)["content"]
        if any(block["type"] not in ("text", "thinking", "redacted_thinking") for block in content):
            return None
        return "".join(block["text"] for block in content if block["type"] == "text") or None


def assemble(payload: Iterable[bytes]) -> bytes:
    """The events of a stream -> the body that the same request without `stream` gets. Raises `Malformed`."""
    with reading():
        body = assembled(payload)
        _check_error(body)
        return orjson.dumps(body)


def split(whole: bytes) -> tuple[Event, ...]:
    """A whole body -> the stream that the same request with `stream` gets. Raises `Malformed`."""
    with reading():
        body = orjson.loads(whole)
        _check_error(body)
        return tuple(map(written, events_of(body)))


def _check_error(body: Mapping[str, Any]) -> None:
    if body.get("type") == "error":
        raise Malformed(f"the answer is an error: {sentence_of(body)}")


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
            written({"type": "message_start", "message": message_of(self._id, self._model, usage=usage)}),
            written({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}),
        ]

    def delta(self, text: str, tokens: Sequence[Token] = ()) -> Event:
        return written({"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": text}})

    def finish(self, reason: str, input_tokens: int, output_tokens: int) -> Sequence[Event]:
        delta = {"stop_reason": STOP_REASONS.get(reason, reason), "stop_sequence": None}
        usage = {"input_tokens": input_tokens, "output_tokens": output_tokens}
        return [
            written({"type": "content_block_stop", "index": 0}),
            written({"type": "message_delta", "delta": delta, "usage": usage}),
            written({"type": "message_stop"}),
        ]


def message_of(answer_id: str, model: str, **fields: Any) -> dict[str, Any]:
    """A message with all that the protocol requires; without anything else it is what a stream starts with."""
    empty: dict[str, Any] = {"content": [], "stop_reason": None, "stop_sequence": None}
    return {"id": answer_id, "type": "message", "role": "assistant", "model": model, **empty, **fields}
