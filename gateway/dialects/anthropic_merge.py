"""The events of an Anthropic stream put together: what the same request without `stream` gets. Pure.

`message_start` holds the message without its content, each block of the content comes as a start, deltas and a stop,
`message_delta` and `message_stop` complete the message. What a delta of an unknown kind says follows a rule:
texts are joined, lists too, everything else is replaced.
https://platform.claude.com/docs/en/build-with-claude/streaming
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

DONE = b"[DONE]"  # some servers end with it, as OpenAI's streams do
# Delta -> the field of its block that it continues. What else stands in such a delta is about the delta (an estimate of
# its tokens, say): clients send blocks back in the next turn, and Anthropic refuses fields that it does not know.
CONTINUED = {"text_delta": "text", "thinking_delta": "thinking"}


def assembled(payload: Iterable[bytes]) -> dict[str, Any]:
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
            _complete(message, event)
    if "role" not in message:
        raise ValueError("a stream without a message")
    return {**message, "content": [blocks[index].finished() for index in sorted(blocks)]}


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
                    fields[key] = _joined(fields.get(key), value)

    def finished(self) -> dict[str, Any]:
        text = "".join(self._input)
        return {**self._fields, "input": orjson.loads(text)} if text else self._fields


def _joined(before: Any, value: Any) -> Any:
    same = isinstance(before, str | list) and type(before) is type(value)
    return before + value if same else value


def _complete(message: dict[str, Any], event: Mapping[str, Any]) -> None:
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
