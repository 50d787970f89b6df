"""Reports about gateways, rebuilt: translation of long conversations, lists of models, and what errors tell."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.anthropic_upstream import anthropic as speaking_anthropic
from tests.fixtures.anthropic_upstream import refusal
from tests.fixtures.gateways import BOTH_CACHES, NO_CACHE, TIERS, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, completion, stream
from tests.wires.test_reports_gateways_usage import ASK, CLAUDE, METERED

PICTURE = "iVBORw0KGgo="
KEY = {"Authorization": "Bearer k"}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/threads/t/runs"])
async def test_streams_tell_a_proxy_in_front_not_to_buffer_them(served: Served, upstream: Upstream, path: str) -> None:
    """mostlygeek/llama-swap #236: nginx holds the events back until its buffer is full. One path passes through."""
    headed = asyncio.Event()

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, "in the shed", between=headed.wait)

    upstream.answer = answer
    headers = CLAUDE if path == "/v1/messages" else None
    async with served.session.post(served.url + path, json={**ASK, "stream": True}, headers=headers) as live:
        headed.set()
        assert live.headers.getall("x-accel-buffering") == ["no"]
        assert b"shed" in await live.read()


async def test_what_a_backend_says_about_buffering_stays(served: Served, upstream: Upstream) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, "in the shed", headers={"X-Accel-Buffering": "yes"})

    upstream.answer = answer
    live = await served.chat("Where?", stream=True)
    assert live.headers["x-accel-buffering"] == "yes"


async def test_pictures_in_the_result_of_a_tool_reach_claude(upstream: Upstream, tmp_path: Path) -> None:
    """BerriAI/litellm #6953: of a result with a text and a picture only the text arrives."""
    speaking_anthropic(upstream)
    tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    seen = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{PICTURE}"}}
    turns = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": [{"type": "text", "text": "a page"}, seen]},
    ]
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": upstream.url}})
    async with gateway_of(config, NO_CACHE) as served:
        answer = await served.post("/v1/chat/completions", {"model": "m", "messages": turns, "tools": tools}, KEY)
    assert answer.status == 200
    (result,) = upstream.calls[-1].json["messages"][-1]["content"]
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    assert result["content"] == [{"type": "text", "text": "a page"}, {"type": "image", "source": source}]


async def test_turns_of_several_texts_reach_claude(upstream: Upstream, tmp_path: Path) -> None:
    """miruamel/xuan #191: turns whose content is a list are left out without a word."""
    speaking_anthropic(upstream)
    turns = [
        {"role": role, "content": [{"type": "text", "text": f"{role} one"}, {"type": "text", "text": f"{role} two"}]}
        for role in ("system", "user", "assistant", "user")
    ]
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": upstream.url}})
    async with gateway_of(config, NO_CACHE) as served:
        assert (await served.post("/v1/chat/completions", {"model": "m", "messages": turns}, KEY)).status == 200
    sent = upstream.calls[-1].json
    assert [block["text"] for block in sent["system"]] == ["system one", "system two"]
    assert [block["text"] for turn in sent["messages"] for block in turn["content"]] == [
        "user one", "user two", "assistant one", "assistant two", "user one", "user two",
    ]  # fmt: skip


async def test_pictures_in_the_result_of_a_tool_reach_an_openai_backend(served: Served, upstream: Upstream) -> None:
    """BerriAI/litellm #23712: Claude Code reads a picture, and the model of another provider never sees it."""
    source = {"type": "base64", "media_type": "image/png", "data": PICTURE}
    turns = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}]},
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "toolu_1",
                    "content": [{"type": "text", "text": "a page"}, {"type": "image", "source": source}],
                }
            ],
        },
    ]
    tools = [{"name": "look", "input_schema": {"type": "object"}}]
    answer = await served.post("/v1/messages", {**ASK, "messages": turns, "tools": tools}, CLAUDE)
    assert answer.status == 200
    *_, told, shown = upstream.calls[-1].json["messages"]
    assert told == {"role": "tool", "tool_call_id": "toolu_1", "content": "a page"}
    url = f"data:image/png;base64,{PICTURE}"
    assert shown == {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}


async def test_earlier_reasoning_goes_on_to_a_backend_of_the_same_protocol(served: Served, upstream: Upstream) -> None:
    """maximhq/bifrost #2093: `reasoning_content` of earlier turns is stripped, and thinking models refuse the next."""
    call = {"id": "call_1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": None, "reasoning_content": "I have to look.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "a page"},
    ]
    await served.post("/v1/chat/completions", {"model": "m", "messages": turns})
    assert upstream.calls[-1].json["messages"] == turns


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("speaks", ["openai", "anthropic"])
async def test_when_a_backend_may_be_asked_again_is_told(
    upstream: Upstream, tmp_path: Path, path: str, speaks: str
) -> None:
    """api7/aisix #144, BerriAI/litellm #21553: a backend's `Retry-After` is lost, and clients come back too soon."""
    limits = {"Retry-After": "7", "x-ratelimit-remaining-requests": "0"}

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if speaks == "anthropic":
            return refusal(429, "rate_limit_error", "slow down", limits)
        return web.json_response({"error": {"message": "slow down", "code": "rpm"}}, status=429, headers=limits)

    upstream.answer = answer
    config = config_of(tmp_path, {"main": {"adapter": speaks, "url": upstream.url, "retries": {"attempts": 1}}})
    async with gateway_of(config, BOTH_CACHES) as served:
        for streamed in (False, True):  # the second is refused by the gateway itself, which knows of the pause
            told = await served.post(path, {**ASK, "stream": streamed}, CLAUDE if path == "/v1/messages" else KEY)
            assert told.status == 429
            assert 1 <= int(told.headers["retry-after"]) <= 7
            assert told.json["error"]["message"]
            assert ("type" in told.json) == (path == "/v1/messages")


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_refusal_of_the_gateway_tells_why_and_until_when(upstream: Upstream, tmp_path: Path, path: str) -> None:
    """agentgateway/agentgateway #3329: a 429 without a body, and without `Retry-After`."""
    policy = METERED.replace("{tokens: {rate: 1M/day}}", "{requests: 1/h}")
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy) as served:
        headers = CLAUDE if path == "/v1/messages" else KEY
        first, second = [await served.post(path, {**ASK, "max_tokens": size}, headers) for size in (1, 2)]
    assert (first.status, second.status) == (200, 429)
    assert int(second.headers["retry-after"]) > 0
    assert "requests" in second.json["error"]["message"]
    assert second.json["error"]["type"] == "rate_limit_error" or path != "/v1/messages"


async def test_a_model_of_two_backends_is_listed_once(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    """tashfeenahmed/freellmapi #203: clients that keep models by their id fail at duplicates."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"object": "list", "data": [{"id": "same", "object": "model", "created": 1}]})

    light.answer = large.answer = answer
    backends = {name: {"adapter": "openai", "url": each.url} for name, each in (("light", light), ("large", large))}
    async with gateway_of(config_of(tmp_path, backends), TIERS) as served:
        listed = await served.get("/v1/models", KEY)
    assert [model["id"] for model in listed.json["data"]] == ["same"]


@pytest.mark.parametrize("place", ["use", "result"])
async def test_blocks_of_the_other_protocol_are_never_lost_in_silence(
    upstream: Upstream, tmp_path: Path, place: str
) -> None:
    """BerriAI/litellm #25669: a chat with Anthropic's blocks loses its calls and results, and the model calls again."""
    speaking_anthropic(upstream)
    use = {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "a page"}
    turns = [
        {"role": "user", "content": "Look."},
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [result]},
    ]
    if place == "result":
        turns = [turns[0], turns[2]]
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": upstream.url}})
    async with gateway_of(config, NO_CACHE) as served:
        answer = await served.post("/v1/chat/completions", {"model": "m", "messages": turns}, KEY)
    if answer.status == 200:
        assert b"tool_use" in upstream.calls[-1].body
        assert b"tool_result" in upstream.calls[-1].body
    else:
        assert answer.status == 400
        assert "tool_" in json.dumps(answer.json)


THOUGHTFUL: list[dict[str, Any]] = [
    {"role": "user", "content": "Look."},
    {
        "role": "assistant",
        "content": [
            {"type": "redacted_thinking", "data": "c2VjcmV0"},
            {"type": "thinking", "thinking": "I have to look.", "signature": ""},
            {"type": "tool_use", "id": "toolu_1", "name": "look", "input": {}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "a page"}]},
    {"role": "assistant", "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}]},
    {"role": "user", "content": "Well?"},
]


@pytest.mark.parametrize("streamed", [False, True])
async def test_thoughts_of_earlier_turns_go_back_to_a_backend_that_needs_them(
    upstream: Upstream, tmp_path: Path, streamed: bool
) -> None:
    """maximhq/bifrost #3802: thinking models refuse a turn with tool calls whose `reasoning_content` is missing."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        for turn in call["messages"]:
            if turn.get("tool_calls") and not turn.get("reasoning_content"):
                return web.json_response({"error": {"message": "reasoning_content is missing"}}, status=400)
        return await stream(request, call, "Done.") if streamed else web.json_response(completion(call, "Done."))

    upstream.answer = answer
    backend = {"adapter": "openai", "url": upstream.url, "reasoning_content": True}
    ask = {**ASK, "messages": THOUGHTFUL, "tools": [{"name": "look", "input_schema": {"type": "object"}}]}
    async with gateway_of(config_of(tmp_path, {"main": backend}), NO_CACHE) as served:
        answered = await served.post("/v1/messages", {**ask, "stream": streamed}, CLAUDE)
    assert answered.status == 200
    _, looked, *rest = upstream.calls[0].json["messages"]
    assert (looked["content"], looked["reasoning_content"]) == (None, "I have to look.")
    assert [turn["role"] for turn in rest] == ["tool", "user"]  # a turn of thinking alone says nothing


async def test_other_backends_get_no_thoughts_of_earlier_turns(served: Served, upstream: Upstream) -> None:
    """OpenAI refuses fields that it does not know."""
    ask = {**ASK, "messages": THOUGHTFUL, "tools": [{"name": "look", "input_schema": {"type": "object"}}]}
    assert (await served.post("/v1/messages", ask, CLAUDE)).status == 200
    assert b"reasoning_content" not in upstream.calls[0].body
