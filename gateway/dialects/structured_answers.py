"""Read the form that a request demands of its answer, and the texts and tool calls of an answer. Pure.

Chat completions state a form in `response_format`, responses in `text.format`, messages in `output_config.format` or in
the older `output_format`. All of them name the schemas of tools in `tools`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from gateway.dialects.json_body import load_json
from gateway.errors import MalformedResponse
from gateway.messages import Call

Schema = Mapping[str, Any] | bool
"""A JSON Schema."""

TOOL_FIELDS = frozenset({"tools", "functions"})  # of a request
FORM_FIELDS = TOOL_FIELDS | {"response_format", "text", "output_config", "output_format"}


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call of a tool in an answer. `arguments` are parsed; a text that is not JSON stays a text."""

    name: str
    arguments: Any
    by_server: bool = False  # the backend has run the tool, so the request has no schema for it

    @property
    def is_readable(self) -> bool:
        """Whether the backend sent a name and arguments of the types that its protocol demands."""
        return isinstance(self.name, str) and self.name != "" and (self.by_server or self.arguments is not None)


@dataclass(frozen=True, slots=True)
class AnswerParts:
    """The parts of an answer that a schema can describe. A choice has a text unless it calls tools."""

    texts: tuple[str, ...] = ()
    tool_calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class DemandedForm:
    """The schemas that a request names. `text` None: its answer's text is free."""

    text: Schema | None
    tools: Mapping[str, Schema]

    def __bool__(self) -> bool:
        return self.text is not None or bool(self.tools)


def demanded_form(call: Call) -> DemandedForm:
    """Return the form that a call demands. A malformed field demands nothing."""
    body = call.body
    if call.operation == "chat.completions":
        wrapped = _dict(body.get("response_format"))
        given = _dict(wrapped.get("json_schema")) | {"type": wrapped.get("type")}
        functions = [_dict(tool).get("function") for tool in _list(body.get("tools"))]
        return DemandedForm(_schema_of(given), _tool_schemas([*functions, *_list(body.get("functions"))], "parameters"))
    if call.operation == "responses":
        given = _dict(_dict(body.get("text")).get("format"))
        return DemandedForm(_schema_of(given), _tool_schemas(_list(body.get("tools")), "parameters"))
    if call.operation == "messages":
        given = _dict(_dict(body.get("output_config")).get("format")) or _dict(body.get("output_format"))
        return DemandedForm(_schema_of(given), _tool_schemas(_list(body.get("tools")), "input_schema"))
    return DemandedForm(None, {})


def _schema_of(given: Mapping[str, Any]) -> Schema | None:
    schema = given.get("schema")
    return schema if given.get("type") == "json_schema" and isinstance(schema, dict | bool) else None


def _tool_schemas(tools: Sequence[Any], key: str) -> dict[str, Schema]:
    named = ((tool.get("name"), tool.get(key)) for tool in tools if isinstance(tool, dict))
    last = {name: schema for name, schema in named if isinstance(name, str)}
    return {name: schema for name, schema in last.items() if isinstance(schema, dict | bool)}


def read_answer(call: Call, payload: Sequence[bytes], streamed: bool) -> AnswerParts | None:
    """Return the parts of a complete answer; None: it cannot be read. `payload` as in `Entry`."""
    reader = _READERS.get(call.operation)
    if reader is None:
        return AnswerParts()
    try:
        answer = reader(load_json(call.dialect.whole(call, payload) if streamed else payload[0]))
    except (MalformedResponse, orjson.JSONDecodeError, KeyError, TypeError, AttributeError, IndexError):
        return None
    return answer if all(made.is_readable for made in answer.tool_calls) else None


def _read_chat(body: Mapping[str, Any]) -> AnswerParts:
    texts: list[str] = []
    calls: list[ToolCall] = []
    for choice in body["choices"]:
        message = choice["message"]
        made = [_chat_tool_call(tool) for tool in message.get("tool_calls") or ()]
        if legacy := message.get("function_call"):
            made.append(ToolCall(legacy["name"], _parsed(legacy["arguments"])))
        calls += made
        if not made:
            texts.append(_text_of(message.get("content")))
    return AnswerParts(tuple(texts), tuple(calls))


def _chat_tool_call(tool: Mapping[str, Any]) -> ToolCall:
    if custom := tool.get("custom"):
        return ToolCall(custom["name"], _parsed(custom["input"]))
    return ToolCall(tool["function"]["name"], _parsed(tool["function"]["arguments"]))


def _read_response(body: Mapping[str, Any]) -> AnswerParts:
    calls = tuple(_response_tool_calls(body["output"]))
    messages = [item for item in body["output"] if item["type"] == "message"]
    texts = ["".join(part.get("text") or "" for part in item["content"]) for item in messages[-1:]]
    return AnswerParts(() if calls and not texts else tuple(texts or [""]), calls)


def _response_tool_calls(items: Sequence[Mapping[str, Any]]) -> Iterator[ToolCall]:
    for item in items:
        kind = item["type"]
        if kind in ("function_call", "custom_tool_call"):
            yield ToolCall(item["name"], _parsed(item["arguments" if kind == "function_call" else "input"]))
        elif kind.endswith("_call"):  # such as web_search_call
            yield ToolCall(item.get("name") or kind.removesuffix("_call"), item.get("arguments"), by_server=True)


def _read_message(body: Mapping[str, Any]) -> AnswerParts:
    blocks = body["content"]
    used = [block for block in blocks if block["type"].endswith("tool_use")]
    calls = tuple(ToolCall(block["name"], _object(block.get("input")), block["type"] != "tool_use") for block in used)
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    stopped_to_call = any(not made.by_server for made in calls)
    return AnswerParts(() if stopped_to_call else (text,), calls)


_READERS = {"chat.completions": _read_chat, "responses": _read_response, "messages": _read_message}


def _parsed(arguments: Any) -> Any:
    """Return a text of arguments as a value; None: it is no text, or null. A text that is not JSON stays a text."""
    if not isinstance(arguments, str):
        return None
    try:
        return load_json(arguments or "{}")
    except orjson.JSONDecodeError:
        return arguments


def _object(arguments: Any) -> Any:
    return arguments if isinstance(arguments, dict) else None


def _text_of(content: Any) -> str:
    """Return a text, or the joined texts of a list of parts."""
    if isinstance(content, str):
        return content
    return "".join(part["text"] for part in _list(content) if _dict(part).get("type") == "text")


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []
