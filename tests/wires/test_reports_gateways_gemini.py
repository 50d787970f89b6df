"""Reports about gateways, rebuilt: Gemini's compatible endpoint, which signs its tool calls and wants to see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from anthropic import AsyncAnthropic

from tests.fixtures.anthropic_upstream import anthropic as speaking_anthropic
from tests.fixtures.gateways import BOTH_CACHES, NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, chunk, completion

WITH_FALLBACK = NO_CACHE.replace("{backend: main}", "{backend: main, fallback: [other]}")
TEXT_EVENTS = {"Content-Type": "text/event-stream"}
LOOK: dict[str, Any] = {"name": "look", "input_schema": {"type": "object"}}
START: list[dict[str, Any]] = [{"role": "user", "content": "Look."}]


def signed(name: str) -> dict[str, Any]:
    return {"google": {"thought_signature": f"CiQB+{name}/0vw=="}}


def signing(upstream: Upstream, calls: int) -> None:
    """Answer with calls of a tool, of which the first of each turn is signed, as Gemini does."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        turn = len(upstream.calls)
        said: list[dict[str, Any]] = [
            {"id": f"call_{turn}{i}", "type": "function", "function": {"name": "look", "arguments": "{}"}}
            for i in range(calls)
        ]
        said[0]["extra_content"] = signed(str(turn))
        if not call.get("stream"):
            return web.json_response(completion(call, "", "tool_calls", tool_calls=said))
        parts = [*(chunk(call, {"tool_calls": [{"index": i, **each}]}) for i, each in enumerate(said))]
        return web.Response(
            body=b"".join([*parts, chunk(call, {}, "tool_calls"), b"data: [DONE]\n\n"]), headers=TEXT_EVENTS
        )

    upstream.answer = answer


def client_of(served: Served) -> AsyncAnthropic:
    return AsyncAnthropic(api_key="k", base_url=served.url, max_retries=0)


async def broken(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
    return web.json_response({"error": {"message": "overloaded"}}, status=503)


async def turn_of(client: AsyncAnthropic, turns: list[dict[str, Any]], streamed: bool) -> list[dict[str, Any]]:
    """Return the turns with one more of the model and the results of its calls, as Anthropic's SDK reads it."""
    asked: Any = {"model": "m", "max_tokens": 64, "messages": turns, "tools": [LOOK]}
    if streamed:
        async with client.messages.stream(**asked) as stream:
            told = await stream.get_final_message()
    else:
        told = await client.messages.create(**asked)
    content = [block.model_dump(exclude_none=True) for block in told.content]
    uses = [block for block in content if block["type"] == "tool_use"]
    results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "a page"} for use in uses]
    return [*turns, {"role": "assistant", "content": content}, {"role": "user", "content": results}]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("policy", [BOTH_CACHES, NO_CACHE], ids=["cached", "not cached"])
@pytest.mark.parametrize("calls", [1, 2])
async def test_a_signed_call_goes_back_with_its_signature(
    upstream: Upstream, tmp_path: Path, streamed: bool, policy: str, calls: int
) -> None:
    """BerriAI/litellm #16893, Gitlawb/openclaude #67, securo-finance/securo #884: `extra_content` is lost on the way,
    and Gemini refuses the turn after the first call of a tool: the call is missing its `thought_signature`."""
    signing(upstream, calls)
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url, "model": "gemini-3-pro"}})
    async with gateway_of(config, policy) as served, client_of(served) as client:
        turns = START
        for _ in range(3):
            turns = await turn_of(client, turns, streamed)
    last = upstream.calls[-1].json["messages"]
    sent = [each.get("extra_content") for turn in last for each in turn.get("tool_calls", ())]
    assert sent == [signed("1"), *[None] * (calls - 1), signed("2"), *[None] * (calls - 1)]
    assert [turn["role"] for turn in last] == ["user", *["assistant", *["tool"] * calls] * 2]
    assert not any("reasoning_content" in turn for turn in last)


@pytest.mark.parametrize("more", [{}, {"reasoning_content": True}], ids=["plain", "with thinking"])
async def test_other_models_never_see_it(
    light: Upstream, large: Upstream, tmp_path: Path, more: dict[str, Any]
) -> None:
    """OpenAI refuses a field of a call that it does not know."""
    signing(light, 1)
    config = config_of(
        tmp_path,
        {
            "main": {"adapter": "openai", "url": light.url, "model": "gemini-3-pro"},
            "other": {"adapter": "openai", "url": large.url, "model": "gpt-5", **more},
        },
    )
    async with gateway_of(config, WITH_FALLBACK) as served, client_of(served) as client:
        turns = await turn_of(client, START, False)
        light.answer = broken
        await client.messages.create(model="m", max_tokens=64, messages=turns, tools=[LOOK])  # type: ignore[arg-type]
    [call] = large.calls[-1].json["messages"][1]["tool_calls"]
    assert call == {"id": "call_10", "type": "function", "function": {"name": "look", "arguments": "{}"}}


async def test_claude_never_sees_it(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    """Anthropic refuses thinking that it has not signed."""
    signing(light, 1)
    speaking_anthropic(large)
    config = config_of(
        tmp_path,
        {
            "main": {"adapter": "openai", "url": light.url, "model": "gemini-3-pro"},
            "other": {"adapter": "anthropic", "url": large.url},
        },
    )
    async with gateway_of(config, WITH_FALLBACK) as served, client_of(served) as client:
        turns = await turn_of(client, START, False)
        light.answer = broken
        await client.messages.create(model="m", max_tokens=64, messages=turns, tools=[LOOK])  # type: ignore[arg-type]
    assert [block["type"] for block in large.calls[-1].json["messages"][1]["content"]] == ["tool_use"]


@pytest.mark.parametrize("signature", ["extra-content.%%%", "extra-content.WzFd", "extra-content."])
async def test_a_seal_that_was_changed_is_left_out(upstream: Upstream, tmp_path: Path, signature: str) -> None:
    block = {"type": "thinking", "thinking": "", "signature": signature}
    use = {"type": "tool_use", "id": "call_1", "name": "look", "input": {}}
    result = {"type": "tool_result", "tool_use_id": "call_1", "content": "a page"}
    turns = [*START, {"role": "assistant", "content": [block, use]}, {"role": "user", "content": [result]}]
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url, "model": "gemini-3-pro"}})
    async with gateway_of(config, NO_CACHE) as served:
        ask = {"model": "m", "max_tokens": 64, "messages": turns, "tools": [LOOK]}
        told = await served.post("/v1/messages", ask, {"x-api-key": "k", "anthropic-version": "2023-06-01"})
    assert told.status == 200
    [call] = upstream.calls[-1].json["messages"][1]["tool_calls"]
    assert call.keys() == {"id", "type", "function"}
