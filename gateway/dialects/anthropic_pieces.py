"""A whole Anthropic message taken apart into the events of a stream. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import orjson

from gateway.dialects.pieces import pieces_of

# What only the end of a stream tells: in the delta of `message_delta`, and beside it. Readers take it from there.
LATE = ("stop_reason", "stop_sequence", "stop_details", "container")
LATE_BESIDE = ("context_management",)


def events_of(message: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Each with its `type`, which is its name too. Raises what reading a malformed answer raises."""
    late = {key: None for key in LATE + LATE_BESIDE if key in message}
    usage = message.get("usage")
    written = usage.get("output_tokens") if isinstance(usage, dict) else 0  # a reader relies on a count at the end
    begun = {"usage": {**usage, "output_tokens": 0}} if isinstance(usage, dict) and type(written) is int else {}
    yield {"type": "message_start", "message": {**message, **late, **begun, "content": []}}
    for index, block in enumerate(message["content"]):
        start, deltas = _parts(block)
        yield {"type": "content_block_start", "index": index, "content_block": start}
        for delta in deltas:
            yield {"type": "content_block_delta", "index": index, "delta": delta}
        yield {"type": "content_block_stop", "index": index}
    end: dict[str, Any] = {"type": "message_delta", "delta": {key: message[key] for key in LATE if key in message}}
    end |= {key: message[key] for key in LATE_BESIDE if key in message}
    end["usage"] = {"output_tokens": written} if type(written) is int else {}
    yield end
    yield {"type": "message_stop"}


def _parts(block: Mapping[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """-> (how the block starts, its deltas). What no delta is known for comes whole with the start."""
    start, kind, deltas = dict(block), block["type"], list[dict[str, Any]]()
    if kind == "text" and isinstance(block.get("text"), str):
        start["text"] = ""
        deltas += [{"type": "text_delta", "text": piece} for piece in pieces_of(block["text"])]
        if isinstance(block.get("citations"), list):
            start["citations"] = []
            deltas += [{"type": "citations_delta", "citation": citation} for citation in block["citations"]]
    elif kind == "thinking" and isinstance(block.get("thinking"), str):
        start["thinking"] = ""
        deltas += [{"type": "thinking_delta", "thinking": piece} for piece in pieces_of(block["thinking"])]
        if isinstance(block.get("signature"), str):
            start["signature"] = ""
            deltas.append({"type": "signature_delta", "signature": block["signature"]})
    elif isinstance(kind, str) and kind.endswith("tool_use") and isinstance(block.get("input"), dict):
        start["input"] = {}
        pieces = pieces_of(orjson.dumps(block["input"]).decode()) if block["input"] else [""]
        deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return start, deltas
