"""The form that a chat demands of its answer, and the texts and tool calls of a chat completion. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialect_traits import AnswerParts, DemandedForm, ToolCall
from gateway.dialects.structured_answers import as_dict, as_list, parsed_arguments, schema_of, tool_schemas


def demanded_form(body: Mapping[str, Any]) -> DemandedForm:
    wrapped = as_dict(body.get("response_format"))
    given = as_dict(wrapped.get("json_schema")) | {"type": wrapped.get("type")}
    functions = [as_dict(tool).get("function") for tool in as_list(body.get("tools"))]
    return DemandedForm(schema_of(given), tool_schemas([*functions, *as_list(body.get("functions"))], "parameters"))


def read_parts_of_chat(body: Mapping[str, Any]) -> AnswerParts:
    texts: list[str] = []
    calls: list[ToolCall] = []
    for choice in body["choices"]:
        message = choice["message"]
        made = [_chat_tool_call(tool) for tool in message.get("tool_calls") or ()]
        if legacy := message.get("function_call"):
            made.append(ToolCall(legacy["name"], parsed_arguments(legacy["arguments"])))
        calls += made
        if not made:
            texts.append(_text_of(message.get("content")))
    return AnswerParts(tuple(texts), tuple(calls))


def _chat_tool_call(tool: Mapping[str, Any]) -> ToolCall:
    if custom := tool.get("custom"):
        return ToolCall(custom["name"], parsed_arguments(custom["input"]))
    return ToolCall(tool["function"]["name"], parsed_arguments(tool["function"]["arguments"]))


def _text_of(content: Any) -> str:
    """Return a text, or the joined texts of a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in as_list(content) if as_dict(part).get("type") == "text")
