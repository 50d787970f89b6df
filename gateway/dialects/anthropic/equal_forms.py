"""Requests of messages that mean the same in one form, for the cache keys. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gateway.dialects.equal_forms import (
    AUTO,
    LIST,
    NULLABLE,
    NUMBER,
    OFF,
    Table,
    as_text,
    leave_out_choice,
    with_defaults_left_out,
)

MESSAGES: Table = {
    "container": NULLABLE,
    "context_management": NULLABLE,
    "max_tokens": NUMBER,
    "mcp_servers": LIST,
    "service_tier": AUTO,  # "defaults to auto"
    "stop_sequences": LIST,
    "system": LIST,
    "temperature": NUMBER,
    "thinking": NULLABLE,
    "tool_choice": NULLABLE,
    "tools": LIST,
    "top_k": NUMBER,
    "top_p": NUMBER,
}
_TOOL_RESULT: Table = {"content": NULLABLE, "is_error": OFF}


def messages_form(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of a request of Anthropic's protocol, whose messages were checked. A text is the same as one
    block of text, says the reference."""
    plain = with_defaults_left_out(body, MESSAGES)
    plain["messages"] = [
        message if isinstance(message["content"], str) else _blocks_form(message) for message in body["messages"]
    ]
    if "system" in plain:
        plain["system"] = as_text(plain["system"], "text")
    if "tool_choice" in plain:
        leave_out_choice(plain, {"type": "auto"}, {"type": "none"}, ("mcp_servers", "container"))
    return plain


def _blocks_form(message: Mapping[str, Any]) -> Mapping[str, Any]:
    content = message["content"]
    if isinstance(content, str):
        return message
    blocks: Sequence[Any] = [_result(block) if block["type"] == "tool_result" else block for block in content]
    return {**message, "content": as_text(blocks, "text")}


def _result(block: Mapping[str, Any]) -> Mapping[str, Any]:
    plain = with_defaults_left_out(block, _TOOL_RESULT)
    if "content" in plain:
        plain["content"] = as_text(plain["content"], "text")
    return plain
