"""A stored tool call is served for named tools only, and never with another request's identifiers."""

from __future__ import annotations

from typing import Any

import pytest

from gateway.cache.tool_calls import refuse_tool_calls
from gateway.features.tool_calls.identifiers import identifiers_of
from gateway.features.tool_calls.rule import NamedTools
from gateway.outcomes import Admission
from tests.features.answer_schemas.test_validator import (
    CHAT,
    MESSAGES,
    RESPONSES,
    TOOLS,
    call_of,
    text_of,
    tool_call_of,
)

ANY = NamedTools(("*",))
UUID = "3f2b8c1e-0d4a-4c3b-9e57-6a1f0b2c4d5e"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"session": UUID}, {UUID}),
        ({"order": "A-1001"}, {"a-1001"}),
        ({"order": 1234567}, {"1234567"}),
        ({"path": "/home/u7/report.pdf"}, {"home/u7/report.pdf"}),
        ({"query": "select * from orders where id = 'ord_93'"}, {"ord_93"}),
        ({"hash": "d41d8cd98f00b204"}, {"d41d8cd98f00b204"}),
        ({"day": "2026-11-24"}, {"2026-11-24"}),
        ({"deep": [{"mail": "ann7@example.com"}]}, {"ann7@example.com"}),
        ({"cust-77": True}, {"cust-77"}),
        ({"city": "Rome", "days": 3, "unit": "celsius", "year": 2026, "share": "12.5"}, set()),
        ({"model": "gpt4", "size": "5cm"}, set()),
        (None, set()),
    ],
)
def test_identifiers_are_words_with_a_digit_and_more(arguments: Any, expected: set[str]) -> None:
    assert set(identifiers_of(arguments)) == expected


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize(
    ("tools", "name", "expected"),
    [
        ((), "weather", Admission.TOOLS),
        (("weather",), "weather", None),
        (("get_*",), "weather", Admission.TOOLS),
        (("wea*", "get_*"), "weather", None),
        (("*",), "weather", None),
        (("weather",), "transfer", Admission.TOOLS),
    ],
)
def test_the_policy_names_the_tools(path: str, tools: tuple[str, ...], name: str, expected: Admission | None) -> None:
    call, answer = call_of(path, **TOOLS[path]), tool_call_of(path, {"city": "Rome"}, name)
    assert refuse_tool_calls(NamedTools(tools) if tools else None, call, (answer,), False) is expected


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize("name", [None, "", ["weather"], {"weather": 1}, 7])
def test_a_call_without_a_name_is_malformed(path: str, name: Any) -> None:
    call, answer = call_of(path, **TOOLS[path]), tool_call_of(path, {"city": "Rome"}, name)
    assert refuse_tool_calls(ANY, call, (answer,), False) is Admission.MALFORMED


@pytest.mark.parametrize(
    ("question", "refused"),
    [
        ("Where is order A-1001?", False),
        ("Where is order a-1001, please?", False),
        ("Where is order A-10012?", True),
        ("Where is order XA-1001?", True),
        ("Where is my order?", True),
    ],
)
def test_an_identifier_must_stand_in_the_request_itself(question: str, refused: bool) -> None:
    messages = [{"role": "user", "content": [{"type": "text", "text": question}]}]
    call, answer = call_of(CHAT, messages=messages), tool_call_of(CHAT, {"order": "A-1001"})
    expected = Admission.FOREIGN_ID if refused else None
    assert refuse_tool_calls(ANY, call, (answer,), False) is expected


def test_an_identifier_of_an_earlier_turn_or_of_the_instructions_is_the_requests_own() -> None:
    answer, rules = tool_call_of(RESPONSES, {"session": UUID}), ANY
    assert refuse_tool_calls(rules, call_of(RESPONSES, instructions=f"Session {UUID}."), (answer,), False) is None
    tools = [{"type": "function", "name": "f", "description": UUID}]  # says nothing about the session
    refused = refuse_tool_calls(rules, call_of(RESPONSES, tools=tools), (answer,), False)
    assert refused is Admission.FOREIGN_ID


def test_an_answer_in_words_about_tools_is_no_tool_call() -> None:
    assert refuse_tool_calls(None, call_of(CHAT), (text_of(CHAT, "the tool A-1001"),), False) is None
