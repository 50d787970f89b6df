"""The form that a request of the Responses API demands, and the texts and tool calls of a response. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from gateway.dialect_traits import AnswerParts, DemandedForm, ToolCall
from gateway.dialects.structured_answers import as_dict, as_list, parsed_arguments, schema_of, tool_schemas


def demanded_form(body: Mapping[str, Any]) -> DemandedForm:
    given = as_dict(as_dict(body.get("text")).get("format"))
    return DemandedForm(schema_of(given), tool_schemas(as_list(body.get("tools")), "parameters"))


def read_parts_of_response(body: Mapping[str, Any]) -> AnswerParts:
    calls = tuple(_response_tool_calls(body["output"]))
    messages = [item for item in body["output"] if item["type"] == "message"]
    texts = ["".join(part.get("text") or "" for part in item["content"]) for item in messages[-1:]]
    return AnswerParts(() if calls and not texts else tuple(texts or [""]), calls)


def _response_tool_calls(items: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
    for item in items:
        kind = item["type"]
        if kind in ("function_call", "custom_tool_call"):
            yield ToolCall(item["name"], parsed_arguments(item["arguments" if kind == "function_call" else "input"]))
        elif kind.endswith("_call"):  # such as web_search_call
            yield ToolCall(item.get("name") or kind.removesuffix("_call"), item.get("arguments"), by_server=True)
