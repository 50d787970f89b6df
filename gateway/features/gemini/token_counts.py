"""Estimate the tokens of Gemini's content, for backends that cannot count them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects.prompt_tokens import BYTES_A_TOKEN
from gateway.features.gemini.requests import camel_case, in_lists

# Of a picture up to 384 pixels wide and high, and of a page. https://ai.google.dev/gemini-api/docs/tokens
ATTACHMENT_TOKENS = 258
DATA = ("inlineData", "fileData")


def estimate_tokens(body: Mapping[str, Any]) -> int | None:
    """Estimate the input tokens of a count request, at least 1; None if it is none."""
    plain = camel_case(dict(body))
    whole = plain.get("generateContentRequest")
    request = in_lists(whole if isinstance(whole, dict) else plain)
    if not isinstance(request.get("contents"), list):
        return None
    size, attachments = 0, 0
    left: list[Any] = [request.get(key) for key in ("contents", "systemInstruction", "tools")]
    while left:
        value = left.pop()
        if isinstance(value, str):
            size += len(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            attachments += sum(key in value for key in DATA)
            left += [each for key, each in value.items() if key not in (*DATA, "role", "thoughtSignature")]
    return max(1, size // BYTES_A_TOKEN + attachments * ATTACHMENT_TOKENS)
