"""Estimate the tokens of Anthropic's messages, for backends that cannot count them. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects.prompt_tokens import BYTES_A_TOKEN

COUNT_TOKENS = "/v1/messages/count_tokens"
COUNTED = ("system", "messages", "tools")
# Of a picture that Anthropic scales to its largest size; a page of a document takes about as many.
# https://platform.claude.com/docs/en/build-with-claude/vision
ATTACHMENT_TOKENS = 1600


def estimate_tokens(body: Mapping[str, Any]) -> int:
    """Estimate the input tokens of a message request, at least 1: of its texts, tools and attachments."""
    size, attachments = 0, 0
    left: list[Any] = [body.get(key) for key in COUNTED]
    while left:
        value = left.pop()
        if isinstance(value, str):
            size += len(value.encode("utf-8", "surrogatepass"))
        elif isinstance(value, list):
            left += value
        elif isinstance(value, dict):
            if value.get("type") == "base64" and "data" in value:
                attachments += 1
                continue
            left += value.values()
            if "input_schema" in value or "properties" in value:  # the names in a schema are read, too
                size += sum(map(len, value))
    return max(1, size // BYTES_A_TOKEN + attachments * ATTACHMENT_TOKENS)
