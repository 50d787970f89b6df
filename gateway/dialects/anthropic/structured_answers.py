"""The form that a request of messages demands, and the texts and tool calls of a message. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.dialect_traits import AnswerParts, DemandedForm, ToolCall
from gateway.dialects.structured_answers import as_dict, as_list, schema_of, tool_schemas


def demanded_form(body: Mapping[str, Any]) -> DemandedForm:
    given = as_dict(as_dict(body.get("output_config")).get("format")) or as_dict(body.get("output_format"))
    return DemandedForm(schema_of(given), tool_schemas(as_list(body.get("tools")), "input_schema"))


def read_parts_of_message(body: Mapping[str, Any]) -> AnswerParts:
    blocks = body["content"]
    used = [block for block in blocks if block["type"].endswith("tool_use")]
    calls = tuple(ToolCall(block["name"], _object(block.get("input")), block["type"] != "tool_use") for block in used)
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    stopped_to_call = any(not made.by_server for made in calls)
    return AnswerParts(() if stopped_to_call else (text,), calls)


def _object(arguments: Any) -> Any:
    return arguments if isinstance(arguments, dict) else None
