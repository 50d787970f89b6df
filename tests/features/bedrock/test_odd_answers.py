"""Answers of servers and models that differ from Converse's reference: read, or refused with a reason."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import anthropic
import openai
import pytest

from tests.fixtures.bedrock import Bedrock, event, exception, text_stream, whole
from tests.fixtures.gateways import EXACT_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

LONG = 123456789012345678901234567890  # beyond 64 bits
START = event("messageStart", role="assistant")
USAGE = event("metadata", usage={"inputTokens": 3, "outputTokens": 4})
CALLED, ENDED = (
    [event("messageStop", stopReason="tool_use"), USAGE],
    [event("messageStop", stopReason="end_turn"), USAGE],
)


@pytest.fixture
def bedrock(upstream: Upstream) -> Bedrock:
    return Bedrock(upstream)


@pytest.fixture
async def served(bedrock: Bedrock, tmp_path: Path) -> AsyncIterator[Served]:
    backend = {"adapter": "bedrock", "url": bedrock.url, "model": "m", "retries": {"attempts": 1}}
    async with gateway_of(config_of(tmp_path, {"main": backend}), EXACT_CACHE) as served:
        yield served


def asked(text: str, **more: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": text}], "max_tokens": 9, **more}


def delta(index: int, **piece: Any) -> bytes:
    return event("contentBlockDelta", contentBlockIndex=index, delta=piece)


def call(*pieces: Any, identity: str = "tooluse_1", stops: bool = True) -> list[bytes]:
    """Return the frames of a call at the index 0."""
    return [
        event("contentBlockStart", contentBlockIndex=0, start={"toolUse": {"toolUseId": identity, "name": "f"}}),
        *(delta(0, toolUse={"input": piece}) for piece in pieces),
        *([event("contentBlockStop", contentBlockIndex=0)] if stops else []),
    ]


CALLS: dict[str, tuple[Sequence[bytes], list[tuple[str, Any]]]] = {
    "no arguments": ([START, *call(), *CALLED], [("tooluse_1", {})]),
    "empty pieces": ([START, *call("", ""), *CALLED], [("tooluse_1", {})]),
    "a null piece": ([START, *call(None, '{"a": 1}'), *CALLED], [("tooluse_1", {"a": 1})]),
    "a long integer": ([START, *call(f'{{"n": {LONG}}}'), *CALLED], [("tooluse_1", {"n": LONG})]),
    "arguments as an object": ([START, *call({"n": 1}), *CALLED], [("tooluse_1", {"n": 1})]),
    "two calls with one index": (
        [START, *call('{"a": 1}', stops=False), *call('{"b": 2}', identity="tooluse_2"), *CALLED],
        [("tooluse_1", {"a": 1}), ("tooluse_2", {"b": 2})],
    ),
}


async def test_calls_in_streams_reach_both_official_clients(bedrock: Bedrock, served: Served) -> None:
    async with (
        openai.AsyncOpenAI(base_url=served.url + "/v1", api_key="k", max_retries=0) as chats,
        anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as messages,
    ):
        for name, (frames, expected) in CALLS.items():
            bedrock.frames = frames
            question: list[Any] = asked(name)["messages"]
            async with chats.chat.completions.stream(model="m", messages=question) as chat:
                made = (await chat.get_final_completion()).choices[0].message.tool_calls or ()
            assert [(each.id, json.loads(each.function.arguments)) for each in made] == expected, name
            async with messages.messages.stream(model="m", messages=question, max_tokens=9) as stream:
                blocks = (await stream.get_final_message()).content
            assert [(block.id, block.input) for block in blocks if block.type == "tool_use"] == expected, name


WHOLE_CALLS: dict[str, tuple[Mapping[str, Any], Any]] = {
    "a long integer": ({"input": {"n": LONG}}, {"n": LONG}),
    "no arguments": ({}, {}),
    "null": ({"input": None}, {}),
    "a text with an object": ({"input": '{"n": 1}'}, {"n": 1}),
    "a text without one": ({"input": '{"n":'}, '{"n":'),
    "a list": ({"input": [1]}, [1]),
}


async def test_a_whole_call_has_its_arguments(bedrock: Bedrock, served: Served) -> None:
    for name, (given, expected) in WHOLE_CALLS.items():
        bedrock.body = whole([{"toolUse": {"toolUseId": "t", "name": "f", **given}}], "tool_use")
        message = await served.post("/v1/messages", asked(name))
        assert message.json["content"] == [{"type": "tool_use", "id": "t", "name": "f", "input": expected}]
        chat = await served.post("/v1/chat/completions", asked(name))
        (made,) = chat.json["choices"][0]["message"]["tool_calls"]
        assert json.loads(made["function"]["arguments"]) == expected


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_an_answer_without_text_is_passed_on_and_not_stored(bedrock: Bedrock, served: Served, path: str) -> None:
    for name, content in {"none": [], "null": None, "empty": [{"text": ""}], "null text": [{"text": None}]}.items():
        bedrock.body = whole(content or [])
        if content is None:
            bedrock.body = {**bedrock.body, "output": {"message": {"role": "assistant", "content": None}}}
        bedrock.frames = [START, *(delta(0, **each) for each in content or ()), *ENDED]
        for stream in (False, True):
            answer = await served.post(path, asked(name, stream=stream))
            assert (answer.status, answer.cache_status) == (200, "nearhit; fwd=miss")
            assert '"text":null' not in answer.body.decode()
            assert '"error"' not in answer.body.decode()


async def test_a_stream_without_its_first_event_or_a_zero_is_a_whole_message(bedrock: Bedrock, served: Served) -> None:
    bedrock.frames = [event("contentBlockDelta", delta={"text": "Hello"}), *ENDED]
    streamed = await served.post("/v1/messages", asked("a", stream=True))
    names = [line[7:] for line in streamed.body.decode().splitlines() if line.startswith("event: ")]
    assert names == [
        "message_start", "content_block_start", "content_block_delta", "content_block_stop", "message_delta",
        "message_stop",
    ]  # fmt: skip
    replayed = await served.post("/v1/messages", asked("a"))
    assert "; hit" in replayed.cache_status
    assert replayed.json["content"] == [{"type": "text", "text": "Hello"}]


async def test_an_error_within_a_stream_has_a_type_of_the_clients_protocol(bedrock: Bedrock, served: Served) -> None:
    for kind, expected in {
        "throttlingException": "rate_limit_error",
        "modelStreamErrorException": "api_error",
        "ValidationException": "invalid_request_error",
    }.items():
        bedrock.frames = [*text_stream("Hel")[:2], exception(kind, "boom")]
        answer = await served.post("/v1/messages", asked(kind, stream=True))
        last = [json.loads(line[6:]) for line in answer.body.decode().splitlines() if line.startswith("data: ")][-1]
        assert last == {"type": "error", "error": {"type": expected, "message": "boom"}}


async def test_arguments_of_a_call_that_has_not_begun_are_an_error_with_its_reason(
    bedrock: Bedrock, served: Served
) -> None:
    bedrock.frames = [START, delta(0, toolUse={"input": "{}"}), *CALLED]
    answer = await served.chat("a", stream=True)
    assert "arguments of a call that has not begun" in answer.body.decode()
