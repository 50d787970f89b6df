"""Marks and keys for prompt caches in translated requests, and the cached tokens that come back."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dialects.prompt_tokens import PromptTokens, prompt_tokens
from tests.dialects.test_translation import to_claude, to_openai

MARK = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
SCHEMA = {"type": "object", "properties": {"cache_control": {"type": "string"}}}
MARKED_MESSAGE: dict[str, Any] = {
    "system": [{"type": "text", "text": "long"}, {"type": "text", "text": "rules", "cache_control": HOUR}],
    "tools": [{"name": "look", "input_schema": SCHEMA, "cache_control": MARK}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": MARK}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "look", "input": {}}]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "seen", "cache_control": MARK}],
        },
    ],
}


def sent(translated: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(translated.outgoing.body)
    return body


def marks(value: Any) -> int:
    """Return the number of marks; a property of a schema that has the name is none."""
    if isinstance(value, list):
        return sum(map(marks, value))
    if not isinstance(value, dict):
        return 0
    own = value.get("cache_control")
    return int(isinstance(own, dict) and own.get("type") == "ephemeral") + sum(map(marks, value.values()))


def test_marks_of_an_anthropic_client_survive_where_the_endpoint_understands_them() -> None:
    body = sent(to_openai(cache_control=True, **MARKED_MESSAGE))
    system, user, assistant, result = body["messages"]
    assert system["content"] == [
        {"type": "text", "text": "long"},
        {"type": "text", "text": "rules", "cache_control": HOUR},
    ]
    assert user["content"] == [{"type": "text", "text": "hi", "cache_control": MARK}]
    assert "cache_control" not in assistant
    assert result == {
        "role": "tool",
        "tool_call_id": "t1",
        "content": [{"type": "text", "text": "seen", "cache_control": MARK}],
    }
    assert body["tools"][0]["cache_control"] == MARK
    assert marks(body) == marks(MARKED_MESSAGE) == 4


def test_marks_are_left_out_where_the_endpoint_would_refuse_them() -> None:
    body = sent(to_openai(cache_control=False, **MARKED_MESSAGE, **{"metadata": {"user_id": "u"}}))
    assert marks(body) == 0
    assert [message["content"] for message in body["messages"]] == ["long\nrules", "hi", None, "seen"]
    assert body["tools"][0]["function"]["parameters"] == SCHEMA  # the key of a schema is no mark


@pytest.mark.parametrize("cache_control", [False, True])
def test_the_mark_of_a_whole_request_and_the_key_survive(cache_control: bool) -> None:
    body = sent(to_openai(cache_control=cache_control, prompt_cache_key="k", prompt_cache_retention="24h"))
    assert (body["prompt_cache_key"], body["prompt_cache_retention"]) == ("k", "24h")


def test_there_and_back_all_marks_are_where_they_were() -> None:
    chat = sent(to_openai(cache_control=True, **MARKED_MESSAGE))
    again = sent(to_claude(**{key: chat[key] for key in ("messages", "tools")}))
    assert again["system"] == MARKED_MESSAGE["system"]
    assert again["tools"][0]["cache_control"] == MARK
    assert again["messages"][0] == MARKED_MESSAGE["messages"][0]
    result = again["messages"][2]["content"][0]
    assert result["cache_control"] == MARK  # Anthropic refuses a mark within the content of a result
    assert marks(result["content"]) == 0


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": "hi", "cache_control": MARK},
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": MARK}]},
    ],
)
def test_a_mark_on_a_message_or_on_its_part_marks_the_block(message: dict[str, Any]) -> None:
    assert sent(to_claude(messages=[message]))["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "hi", "cache_control": MARK}]}
    ]


@pytest.mark.parametrize(("retention", "ttl"), [({}, "5m"), ({"prompt_cache_retention": "24h"}, "1h")])
def test_a_key_marks_the_end_of_the_conversation(retention: dict[str, str], ttl: str) -> None:
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    body = sent(to_claude(messages=turns, prompt_cache_key="k", **retention))
    assert "prompt_cache_key" not in body
    assert body["messages"][-1]["content"][-1]["cache_control"] == {"type": "ephemeral", "ttl": ttl}
    assert marks(body) == 1


def test_a_key_adds_no_mark_to_the_clients_own() -> None:
    system = {"role": "system", "content": [{"type": "text", "text": "rules", "cache_control": HOUR}]}
    body = sent(to_claude(messages=[system, {"role": "user", "content": "a"}], prompt_cache_key="k"))
    assert marks(body) == 1
    assert body["system"][0]["cache_control"] == HOUR


ANTHROPIC = {"input_tokens": 3, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 5, "output_tokens": 1}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}}, (9, 4)),
        ({"usage": {"prompt_tokens": 9}}, (9, 0)),
        ({"usage": {"input_tokens": 9, "input_tokens_details": {"cached_tokens": 4}}}, (9, 4)),
        ({"type": "response.completed", "response": {"usage": {"input_tokens": 9}}}, (9, 0)),
        ({"type": "message_start", "message": {"usage": ANTHROPIC}}, (10, 5)),
        ({"type": "message_delta", "usage": {"output_tokens": 7}}, (0, 0)),
        ({"usage": None}, (0, 0)),
        ({"usage": {"prompt_tokens": "many"}}, (0, 0)),
        ({"usage": {"prompt_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}}}, (2, 2)),
        ([{"usage": 1}], (0, 0)),
    ],
)
def test_input_tokens_are_read_in_every_dialect(body: Any, expected: tuple[int, int]) -> None:
    assert prompt_tokens(json.dumps(body).encode()) == PromptTokens(*expected)
