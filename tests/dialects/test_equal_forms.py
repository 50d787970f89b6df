"""Requests that mean the same have one key, and others have their own. The backend gets each of them as it came."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call
from gateway.dialects.known import find_dialect

CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
GENERATE, PREDICT = "/v2/models/m/generate", "/v1/models/m:predict"
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
FLAT = {"type": "function", "name": "f", "parameters": {"type": "object"}, "strict": True}
CLAUDE_TOOL = {"name": "f", "input_schema": {"type": "object"}}
PLAIN: Mapping[str, dict[str, Any]] = {
    CHAT: {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    COMPLETIONS: {"model": "m", "prompt": "hi"},
    EMBEDDINGS: {"model": "m", "input": "hi"},
    RESPONSES: {"model": "m", "input": "hi"},
    MESSAGES: {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]},
    GENERATE: {"text_input": "hi"},
    PREDICT: {"instances": [1.5]},
}


def call_of(path: str, body: Any) -> Call:
    dialect = find_dialect("POST", path)
    assert dialect is not None
    return dialect.parse(path, body if isinstance(body, bytes) else orjson.dumps(body), {})


def keys_of(path: str, body: Any) -> tuple[bytes, bytes, str | None]:
    call = call_of(path, body)
    return call.canonical, call.context, call.question


def turn(content: Any, role: str = "user", **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


def text(words: str, kind: str = "text") -> list[dict[str, str]]:
    return [{"type": kind, "text": words}]


def with_tools(path: str, **more: Any) -> dict[str, Any]:
    tool = {CHAT: TOOL, RESPONSES: FLAT, MESSAGES: CLAUDE_TOOL}[path]
    return PLAIN[path] | {"tools": [tool]} | more


EQUAL: list[tuple[str, Any, Any]] = [
    *((path, PLAIN[path], PLAIN[path] | {"stream": False}) for path in (CHAT, COMPLETIONS, RESPONSES, MESSAGES)),
    *(
        (CHAT, PLAIN[CHAT], PLAIN[CHAT] | {name: value})
        for name, value in [
            ("n", 1), ("n", None), ("tools", []), ("tools", None), ("functions", []), ("stop", None),
            ("stop", []), ("logprobs", False), ("logprobs", None), ("logit_bias", {}), ("seed", None), ("user", None),
            ("response_format", {"type": "text"}), ("service_tier", "auto"), ("modalities", ["text"]),
            ("tool_choice", "none"), ("tool_choice", None), ("temperature", None), ("top_p", None), ("audio", None),
            ("max_tokens", None), ("max_completion_tokens", None), ("reasoning_effort", None), ("store", False),
            ("stream_options", None), ("presence_penalty", None), ("parallel_tool_calls", None),
        ]
    ),
    *(
        (CHAT, PLAIN[CHAT] | {name: whole}, PLAIN[CHAT] | {name: float(whole)})
        for name, whole in [("temperature", 0), ("temperature", 1), ("top_p", 1), ("presence_penalty", -2), ("seed", 7)]
    ),
    (CHAT, PLAIN[CHAT] | {"stop": "x"}, PLAIN[CHAT] | {"stop": ["x"]}),
    (CHAT, PLAIN[CHAT], PLAIN[CHAT] | {"messages": [turn(text("hi"))]}),
    (CHAT, PLAIN[CHAT], PLAIN[CHAT] | {"messages": [turn("hi", name=None)]}),
    (
        CHAT,
        PLAIN[CHAT] | {"messages": [turn("be brief", "system"), turn("a", "assistant"), turn("hi")]},
        PLAIN[CHAT] | {
            "messages": [
                turn(text("be brief"), "system"),
                turn("a", "assistant", refusal=None, tool_calls=[], function_call=None, audio=None),
                turn(text("hi")),
            ]
        },
    ),
    (CHAT, with_tools(CHAT), with_tools(CHAT, tool_choice="auto")),
    (
        CHAT,
        with_tools(CHAT),
        with_tools(CHAT, tools=[{**TOOL, "function": {**TOOL["function"], "description": None, "strict": False}}]),
    ),
    (CHAT, b'{"model":"m","messages":[{"role":"user","content":"hi"}]}',
     b'{ "messages": [{"content": "\\u0068i", "role": "user"}], "mod\\u0065l": "m" }'),
    *(
        (COMPLETIONS, PLAIN[COMPLETIONS], PLAIN[COMPLETIONS] | {name: value})
        for name, value in [("n", 1), ("best_of", 1), ("echo", False), ("suffix", None), ("logprobs", None)]
    ),
    (EMBEDDINGS, PLAIN[EMBEDDINGS], PLAIN[EMBEDDINGS] | {"encoding_format": "float", "dimensions": None}),
    (EMBEDDINGS, PLAIN[EMBEDDINGS] | {"dimensions": 8}, PLAIN[EMBEDDINGS] | {"dimensions": 8.0}),
    *(
        (RESPONSES, PLAIN[RESPONSES], PLAIN[RESPONSES] | {name: value})
        for name, value in [
            ("input", [turn("hi")]), ("input", [turn(text("hi", "input_text"))]), ("tools", []), ("store", True),
            ("input", [turn("hi", type="message")]), ("text", {"format": {"type": "text"}}), ("text", {}),
            ("truncation", "disabled"), ("background", False), ("include", []), ("instructions", None),
            ("previous_response_id", None), ("reasoning", None), ("service_tier", "auto"), ("tool_choice", "none"),
        ]
    ),
    (RESPONSES, with_tools(RESPONSES), with_tools(RESPONSES, tool_choice="auto")),
    (RESPONSES, PLAIN[RESPONSES] | {"temperature": 0}, PLAIN[RESPONSES] | {"temperature": 0.0}),
    *(
        (MESSAGES, PLAIN[MESSAGES], PLAIN[MESSAGES] | {name: value})
        for name, value in [
            ("messages", [turn(text("hi"))]), ("stop_sequences", []), ("tools", []), ("system", None),
            ("thinking", None),
            ("service_tier", "auto"), ("tool_choice", {"type": "none"}), ("max_tokens", 9.0), ("top_k", None),
        ]
    ),
    (MESSAGES, PLAIN[MESSAGES] | {"system": "be brief"}, PLAIN[MESSAGES] | {"system": text("be brief")}),
    (MESSAGES, with_tools(MESSAGES), with_tools(MESSAGES, tool_choice={"type": "auto"})),
    (
        MESSAGES,
        PLAIN[MESSAGES] | {"messages": [turn([{"type": "tool_result", "tool_use_id": "t", "content": "4"}])]},
        PLAIN[MESSAGES] | {
            "messages": [
                turn([{"type": "tool_result", "tool_use_id": "t", "content": text("4"), "is_error": False}])
            ]
        },
    ),
    (GENERATE, PLAIN[GENERATE] | {"temperature": 0}, PLAIN[GENERATE] | {"temperature": 0.0, "parameters": {}}),
    (GENERATE, PLAIN[GENERATE] | {"parameters": {"k": 1}}, PLAIN[GENERATE] | {"parameters": {"k": 1.0}}),
    (PREDICT, PLAIN[PREDICT], PLAIN[PREDICT] | {"signature_name": "serving_default"}),
]  # fmt: skip

DIFFERENT: list[tuple[str, Any, Any]] = [
    *(
        (CHAT, PLAIN[CHAT], PLAIN[CHAT] | {name: value})
        for name, value in [
            ("n", 2), ("temperature", 1), ("temperature", 0), ("top_p", 1), ("presence_penalty", 0),
            ("stop", ""),
            ("stop", ["x"]), ("logprobs", True), ("logit_bias", {"1": 1}), ("tool_choice", "auto"), ("unknown", None),
            ("response_format", {"type": "json_object"}), ("service_tier", "flex"), ("modalities", ["text", "audio"]),
            ("parallel_tool_calls", True), ("reasoning_effort", "medium"), ("chat_template_kwargs", None), ("top_k", 0),
            ("max_tokens", 1), ("verbosity", "medium"), ("seed", 0), ("unknown", False), ("store", True),
        ]
    ),
    (CHAT, with_tools(CHAT), with_tools(CHAT, tool_choice="none")),
    (CHAT, with_tools(CHAT), with_tools(CHAT, tool_choice="required")),
    (CHAT, PLAIN[CHAT] | {"temperature": 0.1}, PLAIN[CHAT] | {"temperature": 0.10000000000000002}),
    (CHAT, PLAIN[CHAT], PLAIN[CHAT] | {"messages": [turn([*text("h"), *text("i")])]}),
    (CHAT, PLAIN[CHAT], PLAIN[CHAT] | {"messages": [turn([{"type": "text", "text": "hi", "x": 1}])]}),
    (CHAT, PLAIN[CHAT], PLAIN[CHAT] | {"messages": [turn("hi", x=None)]}),
    (CHAT, PLAIN[CHAT] | {"messages": [turn("a", "system"), turn("hi")]},
     PLAIN[CHAT] | {"messages": [turn("a", "developer"), turn("hi")]}),
    (
        CHAT,
        with_tools(CHAT, tools=[{**TOOL, "function": {"name": "f", "parameters": {"default": None}}}]),
        with_tools(CHAT, tools=[{**TOOL, "function": {"name": "f", "parameters": {}}}]),
    ),
    (
        CHAT,
        with_tools(CHAT, tools=[{**TOOL, "function": {"name": "f", "parameters": {"minimum": 0}}}]),
        with_tools(CHAT, tools=[{**TOOL, "function": {"name": "f", "parameters": {"minimum": 0.0}}}]),
    ),
    (CHAT, b'{"model":"m","messages":[{"role":"user","content":"hi"}],"seed":9007199254740993}',
     b'{"model":"m","messages":[{"role":"user","content":"hi"}],"seed":9007199254740992}'),
    (CHAT, b'{"model":"m","messages":[{"role":"user","content":"hi"}],"seed":100000000000000000000001}',
     b'{"model":"m","messages":[{"role":"user","content":"hi"}],"seed":100000000000000000000002}'),
    (EMBEDDINGS, PLAIN[EMBEDDINGS], PLAIN[EMBEDDINGS] | {"encoding_format": "base64"}),
    *(
        (RESPONSES, PLAIN[RESPONSES], PLAIN[RESPONSES] | {name: value})
        for name, value in [
            ("input", [turn("hi", "system")]), ("store", False), ("truncation", "auto"), ("temperature", 1),
            ("input", [turn(text("hi", "output_text"), "assistant")]), ("parallel_tool_calls", True),
            ("text", {"verbosity": "low"}), ("instructions", ""), ("input", [turn("hi"), turn("hi")]),
        ]
    ),
    (RESPONSES, PLAIN[RESPONSES] | {"prompt": {"id": "p"}},
     PLAIN[RESPONSES] | {"prompt": {"id": "p"}, "tool_choice": "none"}),
    *(
        (MESSAGES, PLAIN[MESSAGES], PLAIN[MESSAGES] | {name: value})
        for name, value in [
            ("temperature", 1), ("system", ""), ("tool_choice", {"type": "auto"}), ("thinking", {"type": "disabled"}),
            ("messages", [turn([*text("h"), *text("i")])]), ("top_k", 0),
        ]
    ),
    (MESSAGES, with_tools(MESSAGES),
     with_tools(MESSAGES, tool_choice={"type": "auto", "disable_parallel_tool_use": True})),
    (GENERATE, PLAIN[GENERATE], PLAIN[GENERATE] | {"stream": False}),
    (PREDICT, PLAIN[PREDICT], PLAIN[PREDICT] | {"signature_name": "other"}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "one", "other"), EQUAL)
def test_equal_requests_have_one_key(path: str, one: Any, other: Any) -> None:
    assert keys_of(path, one) == keys_of(path, other)


@pytest.mark.parametrize(("path", "one", "other"), DIFFERENT)
def test_other_requests_have_keys_of_their_own(path: str, one: Any, other: Any) -> None:
    assert keys_of(path, one)[0] != keys_of(path, other)[0]


@pytest.mark.parametrize(("path", "one", "other"), EQUAL)
def test_the_backend_gets_a_request_as_it_came(path: str, one: Any, other: Any) -> None:
    call = call_of(path, other)
    sent = orjson.loads(call.dialect.outgoing(path, call, model=None, kept=False).body)
    assert sent == (orjson.loads(other) if isinstance(other, bytes) else other)


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_two_temperatures_share_a_key_only_if_they_are_equal(one: float, other: float) -> None:
    keys = [keys_of(CHAT, PLAIN[CHAT] | {"temperature": value})[0] for value in (one, other)]
    assert (keys[0] == keys[1]) == (one == other)
