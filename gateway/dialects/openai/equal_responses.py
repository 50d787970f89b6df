"""Requests of the Responses API that mean the same in one form, for the cache keys. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects.equal_forms import (
    AUTO,
    LIST,
    NO_TURN,
    NULLABLE,
    NUMBER,
    OFF,
    Field,
    Table,
    as_text,
    leave_out_choice,
    with_defaults_left_out,
)

RESPONSES: Table = {
    "background": OFF,  # "defaults to false"
    "conversation": NULLABLE,
    "include": LIST,
    "instructions": NULLABLE,
    "max_output_tokens": NUMBER,
    "max_tool_calls": NUMBER,
    "parallel_tool_calls": NULLABLE,
    "previous_response_id": NULLABLE,
    "prompt": NULLABLE,
    "reasoning": NULLABLE,
    "service_tier": AUTO,
    "store": Field((True,)),  # "defaults to true"
    "temperature": NUMBER,
    "text": Field(({}, {"format": {"type": "text"}})),  # "the default format"
    "tool_choice": NULLABLE,
    "tools": LIST,
    "top_logprobs": NUMBER,
    "top_p": NUMBER,
    "truncation": Field(("disabled",)),  # "disabled (default)"
}


def responses_form(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of a request of the Responses API, whose items were checked. A text as input is the same as one
    of the role `user`, says the reference."""
    plain = with_defaults_left_out(body, RESPONSES)
    given = plain.get("input")
    if isinstance(given, list):
        items = [_item(item) for item in given]
        plain["input"] = items[0]["content"] if len(items) == 1 and _is_user_text(items[0]) else items
    if "tool_choice" in plain:
        leave_out_choice(plain, "auto", "none", ("prompt", "conversation", "previous_response_id"))
    return plain


def _is_user_text(item: Mapping[str, Any]) -> bool:
    return item.keys() == NO_TURN and item["role"] == "user" and isinstance(item["content"], str)


def _item(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """An item of an input. Its type is `message` unless it says otherwise."""
    if item.get("type", "message") != "message":
        return item
    plain = {name: value for name, value in item.items() if name != "type"}
    content = plain.get("content")
    if isinstance(content, list) and item.get("role") != "assistant":
        plain["content"] = as_text(content, "input_text")
    return plain
