"""An answer is checked by the JSON Schema of its request, within bounds."""

from __future__ import annotations

import time
from typing import Any

import orjson
import pytest

from gateway.cache.schema_checks import Validity
from gateway.calls import Call
from gateway.dialect_traits import AnswerParts, ToolCall
from gateway.dialects.known import find_dialect
from gateway.features.answer_schemas.pattern_cost import is_cheap
from gateway.features.answer_schemas.validator import MAX_ANSWER_BYTES, SchemaValidator

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
ASKED: dict[str, dict[str, Any]] = {
    CHAT: {"messages": [{"role": "user", "content": "Where?"}]},
    RESPONSES: {"input": "Where?"},
    MESSAGES: {"messages": [{"role": "user", "content": "Where?"}], "max_tokens": 9},
}
FORMS: dict[str, dict[str, Any]] = {
    CHAT: {"response_format": {"type": "json_schema", "json_schema": {"name": "a", "schema": CITY}}},
    RESPONSES: {"text": {"format": {"type": "json_schema", "name": "a", "schema": CITY}}},
    MESSAGES: {"output_config": {"format": {"type": "json_schema", "schema": CITY}}},
}
TOOLS: dict[str, dict[str, Any]] = {
    CHAT: {"tools": [{"type": "function", "function": {"name": "weather", "parameters": CITY}}]},
    RESPONSES: {"tools": [{"type": "function", "name": "weather", "parameters": CITY}]},
    MESSAGES: {"tools": [{"name": "weather", "input_schema": CITY}]},
}


def call_of(path: str, **body: Any) -> Call:
    dialect = find_dialect("POST", path)
    assert dialect is not None
    return dialect.parse(path, orjson.dumps({"model": "m", **ASKED[path], **body}), {})


def text_of(path: str, text: str) -> bytes:
    if path == CHAT:
        choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
        return orjson.dumps({"choices": [choice]})
    if path == RESPONSES:
        part = {"type": "output_text", "text": text}
        return orjson.dumps({"output": [{"type": "message", "role": "assistant", "content": [part]}]})
    return orjson.dumps({"content": [{"type": "text", "text": text}]})


def tool_call_of(path: str, arguments: Any, name: str = "weather") -> bytes:
    written = arguments if isinstance(arguments, str) else orjson.dumps(arguments).decode()
    if path == CHAT:
        made = {"id": "c", "type": "function", "function": {"name": name, "arguments": written}}
        return orjson.dumps({"choices": [{"message": {"content": None, "tool_calls": [made]}}]})
    if path == RESPONSES:
        return orjson.dumps({"output": [{"type": "function_call", "name": name, "arguments": written}]})
    return orjson.dumps({"content": [{"type": "tool_use", "name": name, "input": arguments}]})


def fit_of(call: Call, answer: bytes) -> Validity:
    return SchemaValidator().check(call.dialect.demanded_form(call), call, (answer,), False)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('{"city": "Rome"}', Validity.VALID),
        ('{"city": 7}', Validity.INVALID),
        ("{}", Validity.INVALID),
        ('```json\n{"city": "Rome"}\n```', Validity.INVALID),
        ("", Validity.INVALID),
    ],
)
def test_a_text_must_be_json_of_the_schema_in_every_dialect(path: str, text: str, expected: Validity) -> None:
    assert fit_of(call_of(path, **FORMS[path]), text_of(path, text)) is expected


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    ("arguments", "expected"), [({"city": "Rome"}, Validity.VALID), ({"city": 7}, Validity.INVALID)]
)
def test_the_arguments_of_a_tool_call_must_fit_the_tool_in_every_dialect(
    path: str, arguments: Any, expected: Validity
) -> None:
    call = call_of(path, **TOOLS[path])
    assert fit_of(call, tool_call_of(path, arguments)) is expected
    assert fit_of(call, text_of(path, "a text is free where only tools have schemas")) is Validity.VALID
    assert fit_of(call_of(path, **TOOLS[path], **FORMS[path]), tool_call_of(path, arguments)) is expected


def test_arguments_that_are_no_json_do_not_fit() -> None:
    assert fit_of(call_of(CHAT, **TOOLS[CHAT]), tool_call_of(CHAT, '{"city": "Ro')) is Validity.INVALID


def test_the_older_field_of_messages_and_functions_is_read() -> None:
    call = call_of(MESSAGES, output_format={"type": "json_schema", "schema": CITY})
    assert call.dialect.demanded_form(call).text == CITY
    call = call_of(CHAT, functions=[{"name": "f", "parameters": CITY}])
    assert call.dialect.demanded_form(call).tools == {"f": CITY}


@pytest.mark.parametrize(
    "body",
    [
        {},
        {"response_format": {"type": "json_object"}},
        {"response_format": "json_schema"},
        {"response_format": {"type": "json_schema", "json_schema": []}},
        {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
        {"tools": "all"},
        {"functions": [{"name": {}, "parameters": CITY}, {"name": [], "parameters": CITY}]},
        {"tools": [{"type": "function", "function": {"name": {"f": 1}, "parameters": CITY}}]},
    ],
)
def test_a_request_without_a_readable_schema_demands_nothing(body: dict[str, Any]) -> None:
    call = call_of(CHAT, **body)
    assert not call.dialect.demanded_form(call)


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"$schema": "http://json-schema.org/draft-07/schema#", **CITY}, {"city": 1}, Validity.INVALID),
        ({"$ref": "#/$defs/c", "$defs": {"c": CITY}}, {"city": "Rome"}, Validity.VALID),
        ({"$ref": "#/$defs/c", "$defs": {"c": CITY}}, {"city": 1}, Validity.INVALID),
        ({"$ref": "http://127.0.0.1:9/schema.json"}, {}, Validity.BAD_SCHEMA),
        ({"$ref": "file:///etc/passwd"}, {}, Validity.BAD_SCHEMA),
        ({"$ref": "#/$defs/none"}, {}, Validity.BAD_SCHEMA),
        ({"$ref": "#"}, {}, Validity.BAD_SCHEMA),
        ({"type": "strin"}, {}, Validity.BAD_SCHEMA),
        ({"required": "city"}, {}, Validity.BAD_SCHEMA),
        ({"properties": {"a": {"$schema": "http://json-schema.org/draft-07/schema#"}}}, {}, Validity.BAD_SCHEMA),
        ({"patternProperties": {"(a+)+$": {}}}, {"a" * 40 + "b": 1}, Validity.BAD_SCHEMA),
        ({"description": "x" * 40_000}, {}, Validity.BAD_SCHEMA),
        ({"pattern": r"^\d{5}$"}, "1234x", Validity.INVALID),
        ({"pattern": "(a+)+$"}, "a" * 40 + "b", Validity.VALID),  # left out: it could take years
        ({"uniqueItems": True}, [{"a": 1}, {"a": 1}], Validity.INVALID),
        ({"uniqueItems": True}, [1, True, "1"], Validity.VALID),
        (True, 1, Validity.VALID),
        (False, 1, Validity.INVALID),
    ],
)
def test_a_schema_is_used_as_far_as_it_is_safe(schema: Any, value: Any, expected: Validity) -> None:
    assert SchemaValidator().fit(schema, value) is expected


def doubled(levels: int) -> dict[str, Any]:
    """A schema whose references double the work at each level."""
    pair = {f"l{i}": {"allOf": [{"$ref": f"#/$defs/l{i + 1}"}] * 2} for i in range(levels)}
    return {"$ref": "#/$defs/l0", "$defs": {**pair, f"l{levels}": {"type": "object"}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (doubled(40), {}),
        ({"items": {"anyOf": [{"const": i} for i in range(400)]}}, [399] * 1000),
        ({"anyOf": [{"type": "string"}] * 500}, {"a": "x" * 100_000}),
    ],
    ids=["references", "choices", "messages"],
)
def test_a_costly_check_ends_early(schema: Any, value: Any) -> None:
    started = time.process_time()
    assert SchemaValidator().fit(schema, value) is Validity.TOO_COSTLY
    assert time.process_time() - started < 5.0


def test_a_huge_answer_is_not_checked_and_a_schema_is_compiled_once() -> None:
    call, validator = call_of(CHAT, **FORMS[CHAT]), SchemaValidator()
    huge = text_of(CHAT, "x" * MAX_ANSWER_BYTES)
    assert validator.check(call.dialect.demanded_form(call), call, (huge,), False) is Validity.TOO_COSTLY
    assert validator._validator(CITY) is validator._validator(dict(CITY))


@pytest.mark.parametrize(
    ("pattern", "characters", "cheap"),
    [
        (r"^\d{4}-\d{2}-\d{2}$", 10, True),
        (r"^[a-z]+$", 100_000, True),
        (r"^[^@\s]+@[^@\s]+\.[^@\s]+$", 50, True),
        (r"^[^@\s]+@[^@\s]+\.[^@\s]+$", 5000, False),
        (r"^(\d{1,3}\.){3}\d{1,3}$", 15, True),
        (r"^(red|green|blue)$", 5, True),
        (r"(a+)+$", 30, False),
        (r"(a|a){30}$", 40, False),
        (r"a?" * 25 + "a" * 25, 40, False),
        (r"(?=a)b", 3, False),
        (r"(a)\1", 3, False),
        ("[", 3, False),
        ("a" * 2000, 3, False),
    ],
)
def test_the_work_of_a_pattern_is_bounded_before_it_runs(pattern: str, characters: int, cheap: bool) -> None:
    assert is_cheap(pattern, characters) is cheap


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
def test_the_parts_of_an_answer_are_read_from_a_stream_too(path: str) -> None:
    call = call_of(path)
    if path == RESPONSES:  # its events carry a whole response, which these short answers are not
        assert call.dialect.answer_parts(call, (b"{",), False) is None
        return
    whole = orjson.loads(text_of(path, "hi"))
    whole |= {
        "id": "i",
        "model": "m",
        "role": "assistant",
        "type": "message",
        "created": 1,
        "object": "chat.completion",
    }
    whole |= {"stop_reason": "end_turn", "usage": {"input_tokens": 1, "output_tokens": 1}}
    events = call.dialect.events(call, orjson.dumps(whole))
    assert call.dialect.answer_parts(call, tuple(event.data for event in events), True) == AnswerParts(("hi",))


def test_tools_that_the_backend_runs_are_told_apart() -> None:
    item = {"type": "web_search_call", "status": "completed"}
    answer = orjson.dumps({"output": [item, {"type": "message", "content": [{"type": "output_text", "text": "hi"}]}]})
    made = ToolCall("web_search", None, by_server=True)
    call = call_of(RESPONSES)
    assert call.dialect.answer_parts(call, (answer,), False) == AnswerParts(("hi",), (made,))
