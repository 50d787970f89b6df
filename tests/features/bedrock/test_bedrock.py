"""Clients of OpenAI's and Anthropic's protocols before Bedrock: answers, streams, and errors before and within them."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.fixtures.aws import LACKING, signature_fault
from tests.fixtures.bedrock import Bedrock, event, exception, text_stream, whole
from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

MODEL = "us.anthropic.claude-sonnet-4-5-20250929-v1:0"
BLOCKS = [
    {"reasoningContent": {"reasoningText": {"text": "Their city is Łódź.", "signature": "c2ln"}}},
    {"text": "I look it up."},
    {"toolUse": {"toolUseId": "tooluse_1", "name": "weather", "input": {"city": "Łódź"}}},
]
FRAMES = [
    event("messageStart", role="assistant"),
    event("contentBlockDelta", contentBlockIndex=0, delta={"reasoningContent": {"text": "Their city "}}),
    event("contentBlockDelta", contentBlockIndex=0, delta={"reasoningContent": {"text": "is Łódź."}}),
    event("contentBlockDelta", contentBlockIndex=0, delta={"reasoningContent": {"signature": "c2ln"}}),
    event("contentBlockStop", contentBlockIndex=0),
    event("contentBlockDelta", contentBlockIndex=1, delta={"text": "I look "}),
    event("contentBlockDelta", contentBlockIndex=1, delta={"text": "it up."}),
    event("contentBlockStop", contentBlockIndex=1),
    event("contentBlockStart", contentBlockIndex=2, start={"toolUse": {"toolUseId": "tooluse_1", "name": "weather"}}),
    event("contentBlockDelta", contentBlockIndex=2, delta={"toolUse": {"input": '{"city": "Łó'}}),
    event("contentBlockDelta", contentBlockIndex=2, delta={"toolUse": {"input": 'dź"}'}}),
    event("contentBlockStop", contentBlockIndex=2),
    event("messageStop", stopReason="tool_use"),
    event(
        "metadata",
        usage={"inputTokens": 30, "outputTokens": 7, "cacheReadInputTokens": 12, "cacheWriteInputTokens": 4},
        metrics={"latencyMs": 5},
    ),
]
QUESTION: list[Any] = [{"role": "user", "content": "What is the weather?"}]


@pytest.fixture
def bedrock(upstream: Upstream) -> Bedrock:
    return Bedrock(upstream)


@pytest.fixture
async def served(bedrock: Bedrock, tmp_path: Path) -> AsyncIterator[Served]:
    backend = {"adapter": "bedrock", "url": bedrock.url, "model": MODEL, "retries": {"attempts": 1}}
    async with gateway_of(config_of(tmp_path, {"main": backend}), EXACT_CACHE) as served:
        yield served
    assert not bedrock.refused


async def test_openais_library_reads_answers_and_streams(bedrock: Bedrock, served: Served) -> None:
    bedrock.body, bedrock.frames = whole(BLOCKS, "tool_use"), FRAMES
    async with openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="bedrock-api-key", max_retries=0) as client:
        answer = await client.chat.completions.create(model="m", messages=QUESTION, seed=1)
        (choice,) = answer.choices
        assert choice.finish_reason == "tool_calls"
        assert choice.message.content == "I look it up."
        assert choice.message.model_dump()["reasoning_content"] == "Their city is Łódź."
        (call,) = choice.message.tool_calls or ()
        assert call.type == "function"
        assert (call.id, call.function.name, json.loads(call.function.arguments)) == (
            "tooluse_1",
            "weather",
            {"city": "Łódź"},
        )
        assert answer.usage is not None
        assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (42, 7)
        assert answer.usage.prompt_tokens_details is not None
        assert answer.usage.prompt_tokens_details.cached_tokens == 12
        async with client.chat.completions.stream(
            model="m",
            messages=QUESTION,
            seed=2,
            stream_options={"include_usage": True},
        ) as stream:
            final = await stream.get_final_completion()
    (streamed,) = final.choices
    assert (streamed.finish_reason, streamed.message.content) == ("tool_calls", "I look it up.")
    assert final.usage is not None
    assert (final.usage.prompt_tokens, final.usage.completion_tokens) == (46, 7)
    call = bedrock.upstream.calls[-1]
    assert call.path == "/model/us.anthropic.claude-sonnet-4-5-20250929-v1%3A0/converse-stream"
    assert call.headers["Authorization"] == "Bearer bedrock-api-key"
    assert call.headers["Accept"] == "application/vnd.amazon.eventstream"


async def test_anthropics_library_reads_answers_and_streams_with_signatures(bedrock: Bedrock, served: Served) -> None:
    bedrock.body, bedrock.frames = whole(BLOCKS, "tool_use"), FRAMES
    asked: dict[str, Any] = {"model": "m", "messages": QUESTION, "max_tokens": 99}
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key="bedrock-api-key", max_retries=0) as client:
        answer = await client.messages.create(**asked)
        async with client.messages.stream(**asked) as stream:
            final = await stream.get_final_message()
    for message in (answer, final):
        assert [block.model_dump(exclude_none=True) for block in message.content] == [
            {"type": "thinking", "thinking": "Their city is Łódź.", "signature": "c2ln"},
            {"type": "text", "text": "I look it up."},
            {"type": "tool_use", "id": "tooluse_1", "name": "weather", "input": {"city": "Łódź"}},
        ]
        assert message.stop_reason == "tool_use"
        assert (message.usage.input_tokens, message.usage.cache_read_input_tokens) == (30, 12)
    call = bedrock.upstream.calls[-1]
    assert not [name for name in call.headers if name.lower().startswith(("anthropic", "x-api-key"))]


async def test_a_stream_is_stored_and_answers_a_client_that_wants_it_whole(bedrock: Bedrock, served: Served) -> None:
    streamed = await served.chat("Hi", stream=True)
    assert streamed.headers["Content-Type"].startswith("text/event-stream")
    answer = await served.chat("Hi")
    assert answer.json["choices"][0]["message"]["content"] == "Hello there."
    assert "; hit" in answer.cache_status
    assert len(bedrock.upstream.calls) == 1


STOPS = {
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "stop_sequence": "stop",
    "guardrail_intervened": "content_filter",
    "content_filtered": "content_filter",
    "malformed_tool_use": "malformed_tool_use",
}


async def test_each_reason_to_stop_has_its_name_and_only_a_finished_answer_is_stored(
    bedrock: Bedrock, served: Served
) -> None:
    for theirs, ours in STOPS.items():
        bedrock.body = whole([{"text": "a"}], theirs)
        bedrock.frames = text_stream("a", stop=theirs)
        for stream in (False, True):
            answer = await served.chat(f"{theirs} {stream}", stream=stream)
            assert f'"finish_reason":"{ours}"' in answer.body.decode()
            again = await served.chat(f"{theirs} {stream}", stream=stream)
            assert ("; hit" in again.cache_status) is (ours == "stop")


async def test_what_a_guardrail_says_reaches_a_client_of_anthropics(bedrock: Bedrock, served: Served) -> None:
    trace = {"guardrail": {"inputAssessment": {"g1": {"topicPolicy": {"topics": []}}}}}
    bedrock.body = whole([{"text": "No."}], "guardrail_intervened", trace=trace)
    bedrock.frames = [
        *text_stream("No.", stop="guardrail_intervened")[:-1],
        event("metadata", usage={}, metrics={}, trace=trace),
    ]
    guard = {"guardrailIdentifier": "g1", "guardrailVersion": "DRAFT", "trace": "enabled"}
    asked = {"model": "m", "messages": QUESTION, "max_tokens": 9, "guardrailConfig": guard}
    answer = await served.post("/v1/messages", asked)
    assert (answer.json["stop_reason"], answer.json["trace"]) == ("refusal", trace)
    assert bedrock.asked["guardrailConfig"] == guard
    streamed = await served.post("/v1/messages", {**asked, "stream": True})
    assert '"stop_reason":"refusal"' in streamed.body.decode().replace(" ", "")
    assert '"guardrail"' in streamed.body.decode()


async def test_an_error_is_in_the_form_of_the_client_with_the_words_of_bedrock(
    bedrock: Bedrock, served: Served
) -> None:
    bedrock.status, bedrock.error_type = 400, "ValidationException:http://internal.amazon.com/coral/"
    bedrock.body = {"message": "Input is too long for requested model."}
    for stream in (False, True):
        answer = await served.chat("Hi", stream=stream)
        assert answer.status == 400
        assert answer.json["error"]["message"] == "prompt is too long: Input is too long for requested model."
        assert answer.json["error"]["code"] == "context_length_exceeded"
    bedrock.status, bedrock.body = 429, {"message": "Too many requests, please wait before trying again."}
    answer = await served.post("/v1/messages", {"model": "m", "messages": QUESTION, "max_tokens": 9})
    assert (answer.status, answer.json["error"]["type"]) == (429, "rate_limit_error")


FIRST = {
    "throttlingException": 429,
    "validationException": 400,
    "internalServerException": 500,
    "serviceUnavailableException": 503,
    "modelStreamErrorException": 502,
    "somethingNewException": 502,
}


async def test_an_exception_in_place_of_an_answer_has_its_status(bedrock: Bedrock, served: Served) -> None:
    """oh-my-pi 12449: each exception of a stream was a 400, so that nobody tried again."""
    for kind, status in FIRST.items():
        for before in ([], [event("messageStart", role="assistant")]):
            bedrock.frames = [b"".join([*before, exception(kind, "please wait")])]
            answer = await served.chat(f"{kind} {len(before)}", stream=True)
            assert (answer.status, answer.json["error"]["message"]) == (status, "please wait")


BROKEN: dict[str, tuple[list[bytes], bool, str]] = {
    "an exception": (
        [*text_stream("Hel")[:2], exception("throttlingException", "Too many tokens.")],
        False,
        "Too many tokens.",
    ),
    "the end without its reason": (text_stream("Hel")[:2], False, "ended the stream before its end marker"),
    "a broken connection": (text_stream("Hel")[:2], True, "broke off"),
    "half a message": ([*text_stream("Hel")[:2], text_stream("lo")[1][:-9]], False, "before its end marker"),
    "a damaged message": (
        [*text_stream("Hel")[:2], text_stream("lo")[1][:-9] + b"\0" * 9],
        False,
        "damaged event",
    ),
    "a part that no protocol has": (
        [*text_stream("Hel")[:2], event("contentBlockDelta", contentBlockIndex=1, delta={"image": {}})],
        False,
        "a block of the type 'image'",
    ),
}


@pytest.mark.parametrize(("frames", "cut", "words"), BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_stream_that_breaks_ends_with_an_error_and_is_not_stored(
    bedrock: Bedrock, served: Served, frames: list[bytes], cut: bool, words: str, path: str
) -> None:
    """goose 9579: exceptions within a stream were dropped, and half an answer looked like a whole one."""
    bedrock.frames, bedrock.cut = frames, cut
    asked = {"model": "m", "messages": QUESTION, "max_tokens": 9, "stream": True}
    for _ in range(2):
        answer = await served.post(path, asked)
        text = answer.body.decode()
        assert answer.status == 200
        assert "Hel" in text or "image" in text  # the gateway may read both parts at once
        assert words in text
        assert "[DONE]" not in text
        assert '"end_turn"' not in text
    assert len(bedrock.upstream.calls) == 2


async def test_a_stream_without_its_usage_is_whole(bedrock: Bedrock, served: Served) -> None:
    bedrock.frames = text_stream("Hello")[:-1]
    answer = await served.chat("Hi", stream=True)
    assert answer.body.decode().rstrip().endswith("data: [DONE]")
    assert '"finish_reason":"stop"' in answer.body.decode()


async def test_other_operations_say_that_they_are_not_of_converse(served: Served) -> None:
    for path, body in (("/v1/embeddings", {"input": "a"}), ("/v1/completions", {"prompt": "a"})):
        answer: Answer = await served.post(path, {"model": "m", **body})
        assert answer.status == 400
        assert "cannot be translated to Bedrock's Converse" in answer.json["error"]["message"]


OTHERS = {
    "/openai/deployments/m/chat/completions?api-version=2024-10-21": {"messages": QUESTION},
    "/v1beta/models/m:generateContent": {"contents": [{"role": "user", "parts": [{"text": "What is the weather?"}]}]},
    "/v1beta/models/m:streamGenerateContent?alt=sse": {"contents": [{"role": "user", "parts": [{"text": "Again?"}]}]},
}


@pytest.mark.parametrize(("path", "body"), OTHERS.items(), ids=OTHERS)
async def test_clients_of_other_protocols_reach_it_too(
    bedrock: Bedrock, served: Served, path: str, body: dict[str, Any]
) -> None:
    answer = await served.post(path, body)
    assert answer.status == 200
    assert "there." in answer.body.decode()
    assert "/converse" in bedrock.upstream.calls[-1].path


async def test_tokens_are_estimated_for_a_client_that_asks(served: Served) -> None:
    answer = await served.post("/v1/messages/count_tokens", {"model": "m", "messages": QUESTION})
    assert answer.status == 200
    assert answer.json["input_tokens"] > 3


@pytest.mark.skipif(bool(LACKING), reason=LACKING)
async def test_a_signed_call_of_a_model_with_an_arn_is_accepted(
    bedrock: Bedrock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OneUptime 3099: signers that encode the path once are refused for each model with a colon."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKID")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "s3cret")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "t0ken/+=")
    arn = "arn:aws:bedrock:eu-west-1:123456789012:application-inference-profile/abc"
    identity = {"type": "aws", "region": "eu-west-1"}
    backend = {"adapter": "bedrock", "url": bedrock.url, "models": {"m": arn}, "identity": identity}
    async with gateway_of(config_of(tmp_path, {"main": backend}), NO_CACHE) as served:
        for stream in (False, True):
            assert (await served.chat("Grüße", stream=stream)).status == 200
            call = bedrock.upstream.calls[-1]
            secrets = {"AKID": "s3cret"}
            assert not signature_fault(call.method, call.path, call.headers, call.body, secrets, "eu-west-1/bedrock")
            assert bedrock.model == arn
