"""Keep what a server attached to a tool call for itself in Anthropic's blocks. Pure.

Gemini's compatible endpoint signs its tool calls in `extra_content`, and refuses the next turn if the signature is
missing. Anthropic's blocks for tool calls have no field for it, and clients use their ids as file names. But clients
return thinking as they got it, so the field travels as the signature of an empty thinking block before its call.

Source: https://ai.google.dev/gemini-api/docs/thought-signatures
"""

from __future__ import annotations

import base64
from binascii import Error as NotBase64
from collections.abc import Mapping
from typing import Any

import orjson

from gateway.dialects.json_body import load_json

SEAL = "extra-content."  # start of the signature; no other signature has a dot


def sealed(extra_content: Any) -> str:
    """Return the signature that keeps the `extra_content` of a tool call; "" if there is none."""
    if not isinstance(extra_content, Mapping) or not extra_content:
        return ""
    return SEAL + base64.b64encode(orjson.dumps(extra_content)).decode()


def is_sealed(block: Mapping[str, Any]) -> bool:
    """Return whether a block was made of a signature by `sealed`."""
    signature = block.get("signature")
    return block.get("type") == "thinking" and isinstance(signature, str) and signature.startswith(SEAL)


def unsealed(block: Mapping[str, Any]) -> dict[str, Any]:
    """Return the field for the tool call that follows a sealed block; nothing if the client changed it."""
    try:
        extra_content = load_json(base64.b64decode(block["signature"].removeprefix(SEAL), validate=True))
    except (NotBase64, ValueError):
        return {}
    return {"extra_content": extra_content} if isinstance(extra_content, dict) else {}


def reads_extra_content(model: Any) -> bool:
    """Return whether a model wants `extra_content` back. Others refuse a field that they do not know."""
    return isinstance(model, str) and "gemini" in model.lower()
