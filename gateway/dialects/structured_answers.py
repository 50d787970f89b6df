"""Read the form that a request demands of its answer, and the texts and tool calls of an answer. Pure.

Each dialect reads its own fields; these are the parts that they share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import orjson

from gateway.calls import Call
from gateway.dialect_traits import AnswerParts, Schema
from gateway.dialects.json_body import load_json
from gateway.errors import MalformedResponse

TOOL_FIELDS = frozenset({"tools", "functions"})  # of a request
FORM_FIELDS = TOOL_FIELDS | {"response_format", "text", "output_config", "output_format", "generationConfig"}


def read_parts(
    call: Call, payload: Sequence[bytes], streamed: bool, read: Callable[[Mapping[str, Any]], AnswerParts]
) -> AnswerParts | None:
    """Return the parts of a complete answer, or None if it cannot be read. `read` reads its whole body."""
    try:
        answer = read(load_json(call.dialect.whole(call, payload) if streamed else payload[0]))
    except (MalformedResponse, orjson.JSONDecodeError, KeyError, TypeError, AttributeError, IndexError):
        return None
    return answer if all(made.is_readable for made in answer.tool_calls) else None


def schema_of(settings: Mapping[str, Any]) -> Schema | None:
    """Return the JSON Schema in the format that a request states."""
    schema = settings.get("schema")
    return schema if settings.get("type") == "json_schema" and isinstance(schema, dict | bool) else None


def tool_schemas(tools: Sequence[Any], key: str) -> dict[str, Schema]:
    """Return the schemas of tools by their names. `key` is the field of a tool that has its schema."""
    named = ((tool.get("name"), tool.get(key)) for tool in tools if isinstance(tool, dict))
    last = {name: schema for name, schema in named if isinstance(name, str)}
    return {name: schema for name, schema in last.items() if isinstance(schema, dict | bool)}


def parsed_arguments(arguments: Any) -> Any:
    """Return a text of arguments as a value, or None if it is no text, or null. A text that is not JSON stays a
    text."""
    if not isinstance(arguments, str):
        return None
    try:
        return load_json(arguments or "{}")
    except orjson.JSONDecodeError:
        return arguments


def as_dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
