"""Chats, completions and embeddings that mean the same in one form, for the cache keys. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialects.equal_forms import (
    AUTO,
    LIST,
    MAP,
    NO_TURN,
    NULLABLE,
    NUMBER,
    OFF,
    ONE,
    STOP,
    Field,
    Table,
    as_text,
    each_form,
    leave_out_choice,
    with_defaults_left_out,
)

_SAMPLING: Table = {
    "frequency_penalty": NUMBER,
    "logit_bias": MAP,
    "max_tokens": NUMBER,
    "n": ONE,  # "defaults to 1"
    "presence_penalty": NUMBER,
    "seed": NUMBER,
    "stop": STOP,
    "temperature": NUMBER,
    "top_p": NUMBER,
}
CHAT: Table = {
    **_SAMPLING,
    "audio": NULLABLE,
    "function_call": NULLABLE,
    "functions": LIST,
    "logprobs": OFF,  # "defaults to false"
    "max_completion_tokens": NUMBER,
    "modalities": Field((["text"],)),  # "the default: ["text"]"
    "parallel_tool_calls": NULLABLE,
    "prediction": NULLABLE,
    "reasoning_effort": NULLABLE,
    "response_format": Field(({"type": "text"},)),  # "the default response format"
    "service_tier": AUTO,  # "when not set, the default behavior is 'auto'"
    "store": NULLABLE,  # false: `gateway.dialects.openai` leaves it out
    "tool_choice": NULLABLE,
    "tools": LIST,
    "top_logprobs": NUMBER,
    "verbosity": NULLABLE,
    "web_search_options": NULLABLE,
}
COMPLETIONS: Table = {
    **_SAMPLING,
    "best_of": ONE,  # "defaults to 1"
    "echo": OFF,  # "defaults to false"
    "logprobs": NUMBER,
    "suffix": NULLABLE,
}
EMBEDDINGS: Table = {"dimensions": NUMBER, "encoding_format": Field(("float",))}  # "defaults to float"

# The parts of a chat. An assistant's message that a client sends back has null for all that it lacks.
_TURN: Table = {
    "audio": NULLABLE,
    "content": NULLABLE,
    "function_call": NULLABLE,
    "name": NULLABLE,
    "refusal": NULLABLE,
    "tool_calls": LIST,
}
_FUNCTION: Table = {"description": NULLABLE, "parameters": NULLABLE, "strict": OFF}  # "strict: defaults to false"


def chat_form(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the form of a chat of OpenAI's protocol, whose messages were checked."""
    plain = with_defaults_left_out(body, CHAT)
    plain["messages"] = messages = []
    for message in body["messages"]:
        is_text = message.keys() == NO_TURN and type(message["content"]) is str  # as most are
        messages.append(message if is_text else _turn(message))
    if "tools" in plain:
        plain["tools"] = each_form(plain["tools"], _chat_tool)
    if "tool_choice" in plain:
        leave_out_choice(plain, "auto", "none", ("functions", "web_search_options"))
    return plain


def _turn(message: Mapping[str, Any]) -> Mapping[str, Any]:
    plain = with_defaults_left_out(message, _TURN)
    if "content" in plain:
        plain["content"] = as_text(plain["content"], "text")
    return plain


def _chat_tool(tool: Mapping[str, Any]) -> Mapping[str, Any]:
    function = tool.get("function")
    return {**tool, "function": with_defaults_left_out(function, _FUNCTION)} if isinstance(function, dict) else tool
