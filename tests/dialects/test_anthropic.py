"""What of a request to Anthropic's protocol decides the answer, and what of it is the question."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from multidict import CIMultiDict

from gateway.calls import Call
from gateway.dialects.anthropic.dialect import Anthropic
from gateway.dialects.anthropic.errors import error, kind_for_status
from gateway.dialects.known import error_dialect, find_dialect
from gateway.errors import BadRequest
from gateway.outcomes import Bypass

PATH = "/v1/messages"


def parsed(**fields: Any) -> Call:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}
    return Anthropic().parse(PATH, orjson.dumps(body), CIMultiDict())


def user(*blocks: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": list(blocks)}]


def text(said: str, **fields: Any) -> dict[str, Any]:
    return {"type": "text", "text": said, **fields}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
OTHER = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aG8="}}
MARK = {"cache_control": {"type": "ephemeral"}}


def test_messages_are_its_own_and_what_counts_or_batches_them_is_not() -> None:
    assert find_dialect("POST", PATH) is not None
    for method, path in (("GET", PATH), ("POST", f"{PATH}/count_tokens"), ("POST", f"{PATH}/batches")):
        assert find_dialect(method, path) is None


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"stream": True}, {"stream": False}),
        ({"metadata": {"user_id": "a"}}, {"metadata": {"user_id": "b"}}),
        ({"messages": user(text("hi", **MARK))}, {"messages": user(text("hi"))}),
        ({"system": [text("be brief", **MARK)]}, {"system": [text("be brief")]}),
        ({"tools": [{"name": "f", "input_schema": {}, **MARK}]}, {"tools": [{"name": "f", "input_schema": {}}]}),
        ({"cache_control": {"type": "ephemeral"}}, {}),
        (
            {"messages": user({"type": "tool_result", "tool_use_id": "t", "content": [text("x", **MARK)]})},
            {"messages": user({"type": "tool_result", "tool_use_id": "t", "content": [text("x")]})},
        ),
    ],
)
def test_framing_who_asks_and_marks_of_the_prompt_cache_do_not_decide(
    one: dict[str, Any], other: dict[str, Any]
) -> None:
    assert parsed(**one).canonical == parsed(**other).canonical
    assert parsed(**one).context == parsed(**other).context


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 10},
        {"system": "be brief"},
        {"temperature": 0.5},
        {"thinking": {"type": "adaptive"}},
        {"stop_sequences": ["x"]},
        {"service_tier": "standard_only"},
        {"of_the_future": 1},
        {"tools": [{"name": "f", "input_schema": {}}]},
    ],
)
def test_everything_else_decides_and_parts_the_scope(fields: dict[str, Any]) -> None:
    assert parsed(**fields).canonical != parsed().canonical
    assert parsed(**fields).context != parsed().context


def test_a_word_of_the_prompt_cache_within_a_schema_or_an_input_decides() -> None:
    schema = {"type": "object", "properties": {"cache_control": {"type": "string"}}}
    one, other = ({"tools": [{"name": "f", "input_schema": s}]} for s in (schema, {"type": "object", "properties": {}}))
    assert parsed(**one).canonical != parsed(**other).canonical
    uses = [user(text("q")), [{"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "f"}]}]]
    given = [
        *uses[0],
        {"role": "assistant", "content": [{**uses[1][0]["content"][0], "input": MARK}]},
        *user(text("a")),
    ]
    bare = [*uses[0], {"role": "assistant", "content": [{**uses[1][0]["content"][0], "input": {}}]}, *user(text("a"))]
    assert parsed(messages=given).canonical != parsed(messages=bare).canonical


def test_the_question_is_the_text_of_the_last_turn_and_the_rest_has_to_be_equal() -> None:
    one = parsed(messages=user(IMAGE, text("what is it?")))
    assert one.question == "what is it?"
    assert one.context == parsed(messages=user(IMAGE, text("what is that?"))).context
    assert one.context != parsed(messages=user(OTHER, text("what is it?"))).context
    assert one.context != parsed(messages=user(text("what is it?"), IMAGE)).context
    assert parsed(messages=user(text("a"), text("b"))).question == "a\nb"
    assert parsed(messages=user(text("hi"))).context == parsed().context


@pytest.mark.parametrize(
    "messages",
    [
        user(IMAGE),
        user({"type": "tool_result", "tool_use_id": "t", "content": "42"}),
        [*user(text("go on")), {"role": "assistant", "content": "The answer is"}],
    ],
)
def test_a_turn_without_a_text_of_the_user_is_no_question(messages: list[Any]) -> None:
    assert (parsed(messages=messages).question, parsed(messages=messages).no_question) == (None, Bypass.NO_TEXT)


def test_what_else_the_gateway_reads() -> None:
    call = parsed(system="be brief", metadata={"user_id": "u"}, stream=True)
    assert (call.user, call.stream, call.max_tokens, call.model) == ("u", True, 9, "m")
    assert call.prompt == "system: be brief\n\nuser: hi"
    assert parsed().prompt == "hi"
    sent = Anthropic().outgoing(PATH, call, model="other", kept=True)
    assert orjson.loads(sent.body) == {**call.body, "model": "other"}


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"model": ""}, "model"),
        ({"max_tokens": "9"}, "max_tokens"),
        ({"temperature": True}, "temperature"),
        ({"stream": 1}, "stream"),
        ({"metadata": []}, "metadata"),
        ({"metadata": {"user_id": 5}}, "metadata.user_id"),
        ({"system": 5}, "system"),
        ({"messages": []}, "messages"),
        ({"messages": ["hi"]}, r"messages\[0\]"),
        ({"messages": [{"role": "user"}]}, r"messages\[0\].content"),
        ({"messages": user({"text": "hi"})}, r"messages\[0\].content\[0\]"),
        ({"messages": user({"type": "text"})}, r"messages\[0\].content\[0\].text"),
    ],
)
def test_what_the_gateway_relies_on_is_checked(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(BadRequest, match=said):
        parsed(**fields)


def test_errors_are_of_kinds_that_anthropic_knows() -> None:
    def kind(given: str) -> str:
        return str(orjson.loads(error(given, "no"))["error"]["type"])

    assert kind("overloaded_error") == "overloaded_error"
    assert kind("latency_budget_error") == "timeout_error"
    assert kind("upstream_error") == kind("internal_error") == "api_error"
    assert [kind_for_status(status) for status in (401, 418, 429, 500, 529)] == [
        "authentication_error", "invalid_request_error", "rate_limit_error", "api_error", "overloaded_error",
    ]  # fmt: skip


def test_errors_of_what_passes_through_are_told_in_the_clients_shape() -> None:
    headers = CIMultiDict({"Anthropic-Version": "2023-06-01"})
    assert error_dialect("POST", f"{PATH}/count_tokens", headers).name == "anthropic"
    assert error_dialect("POST", PATH, {}).name == "anthropic"
    assert error_dialect("POST", "/v1/chat/completions", headers).name == "openai"
    assert error_dialect("GET", "/", {}).name == "openai"
