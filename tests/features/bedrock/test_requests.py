"""What Bedrock gets for requests of OpenAI's and Anthropic's clients. Most cases are reports of other gateways."""

from __future__ import annotations

import json
from importlib import import_module
from typing import Any

import pytest

from gateway.dialects.anthropic.dialect import Anthropic
from gateway.dialects.known import DIALECTS
from gateway.dialects.translation.neutral import translation_between
from gateway.errors import BadRequest
from gateway.features.bedrock.dialect import Bedrock, ConverseAnswer
from tests.fixtures.aws import LACKING
from tests.fixtures.bedrock import faults_of, whole

CLAUDE = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
PICTURE = "iVBORw0KGgo="
CALL = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Łódź"}'}}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {}}}


def sent(client: str, body: dict[str, Any], model: str = CLAUDE, **settings: Any) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of the request for Bedrock, which finds no fault in it."""
    dialect = Anthropic() if client == "anthropic" else DIALECTS["openai"]
    path = "/v1/messages" if client == "anthropic" else "/v1/chat/completions"
    call = dialect.parse(path, json.dumps({"model": "m", **body}).encode(), {})
    translation = translation_between(dialect, Bedrock())
    assert translation is not None
    outgoing = translation(call, model=model, created=1, **settings).outgoing
    asked = json.loads(outgoing.body)
    assert not faults_of(asked)
    if not LACKING:
        _validate(model, asked)
    return outgoing.path, asked


def _validate(model: str, asked: dict[str, Any]) -> None:
    """Check a request as AWS's own library does."""
    session = import_module("botocore.session").get_session()
    shape = session.get_service_model("bedrock-runtime").operation_model("ConverseStream").input_shape
    report = import_module("botocore.validate").ParamValidator().validate({"modelId": model, **asked}, shape)
    assert not report.has_errors(), report.generate_report()


def chat(*messages: Any, **fields: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": each} if isinstance(each, str) else each for each in messages]
    return {"messages": turns, **fields}


def test_a_plain_chat_has_no_limit_that_its_client_has_not_set() -> None:
    path, asked = sent("openai", chat({"role": "system", "content": "Be brief."}, "Hi"))
    assert path == "/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse"
    assert asked == {"system": [{"text": "Be brief."}], "messages": [{"role": "user", "content": [{"text": "Hi"}]}]}


def test_settings_have_their_places() -> None:
    path, asked = sent(
        "openai", chat("Hi", max_tokens=9, temperature=1.5, top_p=0.5, stop=["END", " "], stream=True, user="u")
    )
    assert path.endswith("/converse-stream")
    assert asked["inferenceConfig"] == {"maxTokens": 9, "temperature": 1, "topP": 0.5, "stopSequences": ["END"]}
    assert asked.keys() == {"inferenceConfig", "messages"}


def test_an_arn_is_one_part_of_the_path() -> None:
    """vercel/ai 14117, ruby_llm 803: a slash in an ARN cut the model's id, or broke the signature."""
    arn = "arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/abc123xyz"
    path, _ = sent("openai", chat("Hi"), arn)
    part = "arn%3Aaws%3Abedrock%3Aus-east-1%3A123456789012%3Aapplication-inference-profile%2Fabc123xyz"
    assert path == f"/model/{part}/converse"


def test_results_of_parallel_calls_are_in_one_turn_and_before_the_text_about_them() -> None:
    """mlflow 24296, HolmesGPT 127: each result had a turn of its own, "Expected toolResult blocks"."""
    calls = [{**CALL, "id": f"call_{n}"} for n in range(2)]
    _, asked = sent(
        "openai",
        chat(
            "Weather?",
            {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_0", "content": "sunny"},
            {"role": "user", "content": "And tomorrow?"},
            {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
            tools=[TOOL],
        ),
    )
    results = [block["toolResult"]["toolUseId"] for block in asked["messages"][2]["content"][:2]]
    assert results == ["call_0", "call_1"]
    assert asked["messages"][2]["content"][2] == {"text": "And tomorrow?"}


def test_text_of_a_turn_comes_before_its_calls() -> None:
    """LiteLLM 24361: a text after a call hides the call from its result."""
    use = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "sunny"}
    _, asked = sent(
        "anthropic",
        chat(
            "Weather?",
            {"role": "assistant", "content": [use, {"type": "text", "text": "I look it up."}]},
            {"role": "user", "content": [result]},
            max_tokens=9,
        ),
    )
    assert [*map(next, map(iter, asked["messages"][1]["content"]))] == ["text", "toolUse"]


@pytest.mark.parametrize("blank", ["", " ", "\n\t"])
def test_texts_in_which_nobody_sees_anything_are_left_out(blank: str) -> None:
    """OpenHands 5339, pi 3443, hermes-agent 41985: empty texts, and then a space in their place, were refused."""
    _, asked = sent(
        "openai",
        chat(
            {"role": "system", "content": blank},
            {"role": "user", "content": [{"type": "text", "text": blank}, {"type": "text", "text": "Weather?"}]},
            {"role": "assistant", "content": blank, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": blank},
            {"role": "assistant", "content": blank},
            "Go on.",
        ),
    )
    assert "system" not in asked
    assert asked["messages"][2]["content"] == [
        {"toolResult": {"toolUseId": "call_1", "content": [{"text": "(empty)"}]}},
        {"text": "Go on."},
    ]


def test_tools_that_were_called_are_declared_although_this_call_has_none() -> None:
    """LiteLLM and others: "The toolConfig field must be defined when using toolUse and toolResult content blocks"."""
    _, asked = sent(
        "openai",
        chat("Weather?", {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1"}, "OK"),
    )
    assert asked["toolConfig"] == {
        "tools": [{"toolSpec": {"name": "weather", "inputSchema": {"json": {"type": "object"}}}}]
    }


def test_a_call_with_an_empty_id_gets_one() -> None:
    """DashScope's calls come back in the history of a conversation that another model goes on with."""
    call = {**CALL, "id": ""}
    _, asked = sent(
        "openai", chat("Hi", {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": ""})
    )
    ids = [turn["content"][0] for turn in asked["messages"][1:]]
    assert ids[0]["toolUse"]["toolUseId"] == ids[1]["toolResult"]["toolUseId"] != ""


def test_a_tool_without_a_description_has_none_and_a_long_name_fits() -> None:
    """LiteLLM 24668: "toolSpec.description failed to satisfy constraint: Member must have length greater than 0"."""
    long = "mcp__server__" + "x" * 100
    tools = [
        {"type": "function", "function": {"name": "a.b", "description": "", "parameters": {"type": "object"}}},
        {"type": "function", "function": {"name": long, "description": "d", "strict": True}},
    ]
    _, asked = sent("openai", chat("Hi", tools=tools, tool_choice={"type": "function", "function": {"name": long}}))
    first, second = (tool["toolSpec"] for tool in asked["toolConfig"]["tools"])
    assert "description" not in first
    assert first["name"].startswith("a_b_")
    assert len(second["name"]) == 64
    assert second["strict"] is True
    assert asked["toolConfig"]["toolChoice"] == {"tool": {"name": second["name"]}}


def test_pictures_and_documents_go_in_the_request() -> None:
    parts = [
        {"type": "image_url", "image_url": {"url": f"data:image/jpeg;base64,{PICTURE}"}},
        {"type": "file", "file": {"filename": "Q3/report_v2.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
        {"type": "file", "file": {"filename": "Q3/report_v2.pdf", "file_data": "data:application/pdf;base64,JVBERg=="}},
        {"type": "text", "text": "Compare."},
    ]
    _, asked = sent("openai", chat({"role": "user", "content": parts}))
    picture, first, second, _ = asked["messages"][0]["content"]
    assert picture == {"image": {"format": "jpeg", "source": {"bytes": PICTURE}}}
    assert first == {"document": {"format": "pdf", "name": "Q3 report v2 pdf", "source": {"bytes": "JVBERg=="}}}
    assert second["document"]["name"] == "Q3 report v2 pdf (2)"


def test_thinking_goes_back_with_its_signature_and_what_nobody_signed_does_not() -> None:
    blocks = [
        {"type": "thinking", "thinking": "Hm.", "signature": "c2ln"},
        {"type": "thinking", "thinking": "of another model", "signature": ""},
        {"type": "redacted_thinking", "data": "cmVk"},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Łódź"}},
    ]
    error = {"type": "tool_result", "tool_use_id": "t1", "is_error": True, "content": [{"type": "text", "text": "no"}]}
    _, asked = sent(
        "anthropic",
        chat(
            "Weather?",
            {"role": "assistant", "content": blocks},
            {"role": "user", "content": [error]},
            max_tokens=5000,
            thinking={"type": "enabled", "budget_tokens": 2000},
            tools=[{"name": "weather", "input_schema": {"type": "object", "properties": {}}}],
            tool_choice={"type": "auto", "disable_parallel_tool_use": True},
            output_config={"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
        ),
    )
    assert asked["messages"][1]["content"][:2] == [
        {"reasoningContent": {"reasoningText": {"text": "Hm.", "signature": "c2ln"}}},
        {"reasoningContent": {"redactedContent": "cmVk"}},
    ]
    assert asked["messages"][2]["content"][0]["toolResult"]["status"] == "error"
    fields = asked["additionalModelRequestFields"]
    assert fields["thinking"] == {"type": "enabled", "budget_tokens": 2000}
    assert fields["tool_choice"] == {"type": "auto", "disable_parallel_tool_use": True}
    assert asked["outputConfig"]["effort"] == "low"
    assert asked["outputConfig"]["textFormat"]["structure"]["jsonSchema"]["schema"] == '{"type":"object"}'


MARK = {"cache_control": {"type": "ephemeral"}}


def marked() -> dict[str, Any]:
    return chat(
        {
            "role": "user",
            "content": [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral", "ttl": "1h"}}],
        },
        system=[{"type": "text", "text": "s", **MARK}],
        tools=[{"name": "t", "input_schema": {"type": "object"}, **MARK}],
        max_tokens=9,
    )


@pytest.mark.parametrize(
    ("model", "settings", "marks"),
    [
        (CLAUDE, {}, True),
        ("amazon.nova-pro-v1:0", {}, True),
        ("meta.llama3-70b-instruct-v1:0", {}, False),
        ("arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/a", {}, False),
        ("arn:aws:bedrock:us-east-1:123456789012:application-inference-profile/a", {"cache_control": True}, True),
    ],
)
def test_marks_for_the_prompt_cache_reach_the_models_that_have_one(
    model: str, settings: dict[str, Any], marks: bool
) -> None:
    _, asked = sent("anthropic", marked(), model, **settings)
    point = [{"cachePoint": {"type": "default"}}] if marks else []
    assert asked["system"] == [{"text": "s"}, *point]
    assert asked["toolConfig"]["tools"][1:] == point
    assert asked["messages"][0]["content"][1:] == ([{"cachePoint": {"type": "default", "ttl": "1h"}}] if marks else [])


def test_turns_of_one_side_become_one() -> None:
    _, asked = sent("anthropic", chat("a", "b", {"role": "assistant", "content": ""}, "c", max_tokens=9))
    assert asked["messages"] == [{"role": "user", "content": [{"text": "a"}, {"text": "b"}, {"text": "c"}]}]


def test_fields_of_converse_itself_go_upstream_as_they_are() -> None:
    guard = {"guardrailIdentifier": "abc", "guardrailVersion": "1", "trace": "enabled"}
    own = {
        "guardrailConfig": guard,
        "additionalModelRequestFields": {"top_k": 5},
        "requestMetadata": {"team": "search"},
    }
    for client in ("openai", "anthropic"):
        _, asked = sent(client, chat("Hi", max_tokens=9, top_k=3, **own))
        assert {key: asked[key] for key in own} == own


CANNOT: dict[str, tuple[str, dict[str, Any], str]] = {
    "a picture elsewhere": (
        "openai",
        chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://h/a.png"}}]}),
        "expected one in the request, of png, jpeg, gif, webp",
    ),
    "a picture of another kind": (
        "openai",
        chat({"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:image/bmp;base64,AA=="}}]}),
        "an image of this kind",
    ),
    "several answers": ("openai", chat("Hi", n=2), "'n' above 1 cannot be translated to Bedrock's Converse"),
    "a tool of Anthropic": (
        "anthropic",
        chat("Hi", max_tokens=9, tools=[{"type": "web_search_20250305", "name": "web_search"}]),
        "a tool of the type 'web_search_20250305' cannot be translated to Bedrock's Converse",
    ),
    "no tool after calls": (
        "openai",
        chat("Hi", {"role": "assistant", "tool_calls": [CALL]}, tools=[TOOL], tool_choice="none"),
        "tool_choice 'none' after calls of tools",
    ),
    "a broken block": ("anthropic", chat({"role": "user", "content": [{"type": "image"}]}, max_tokens=9), "is missing"),
}


@pytest.mark.parametrize(("client", "body", "words"), CANNOT.values(), ids=CANNOT)
def test_what_converse_cannot_express_is_refused(client: str, body: dict[str, Any], words: str) -> None:
    with pytest.raises(BadRequest, match=words):
        sent(client, body)


def test_answers_of_one_second_have_ids_of_their_own() -> None:
    ids = set()
    for text in ("a", "b"):
        dialect = Anthropic()
        call = dialect.parse("/v1/messages", json.dumps({"model": "m", **chat(text, max_tokens=9)}).encode(), {})
        answer = ConverseAnswer(call, model=CLAUDE, created=1).whole(json.dumps(whole([{"text": "x"}])).encode())
        ids.add(json.loads(answer)["id"])
    assert len(ids) == 2
    assert all(each.startswith("msg_") for each in ids)


def test_no_tool_may_be_called_by_a_call_that_forbids_it() -> None:
    _, asked = sent("openai", chat("Hi", tools=[TOOL], tool_choice="none"))
    assert "toolConfig" not in asked
