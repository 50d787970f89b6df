"""Reports about gateways, rebuilt: coding agents in long conversations with a backend of the other protocol."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.anthropic_upstream import anthropic as speaking_anthropic
from tests.fixtures.anthropic_upstream import refusal
from tests.fixtures.gateways import BOTH_CACHES, NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, chunk, completion, frame
from tests.wires.test_reports_gateways_usage import ASK, CLAUDE, events_in

KEY = {"Authorization": "Bearer k"}
TEXT_EVENTS = {"Content-Type": "text/event-stream"}
LOOK = {"name": "look", "input_schema": {"type": "object"}}
FUNCTION = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}

OVERFLOWS = {
    "OpenAI": {"message": "Your input exceeds the context window of this model.", "code": "context_length_exceeded"},
    "GPT-4": {
        "message": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000."
    },
    "vLLM": {
        "message": "The decoder prompt (length 9000) is longer than the maximum model length of 8192.",
        "code": 400,
    },
    "SGLang": {"message": "The input (9000 tokens) is longer than the model's context length (8192 tokens)."},
    "llama.cpp": {"message": "the request exceeds the available context size", "type": "exceed_context_size_error"},
    "xAI": {"message": "This model's maximum prompt length is 8192 but the request contains 9000 tokens."},
    "Mistral": {"message": "Prompt contains 9000 tokens, too large for model with 8192 maximum context length"},
}
OTHERS = {
    "a field": {"message": "Unknown field: context_length"},
    "a tool": {"message": "tools[0].name is longer than 64 characters"},
    "what was asked": {"message": "no such role", "input": "What is the maximum context length?"},
    "a quota": {"message": "You exceeded your current quota", "code": "insufficient_quota"},
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("error", OVERFLOWS.values(), ids=OVERFLOWS)
async def test_claude_code_learns_that_its_conversation_is_too_long(
    served: Served, upstream: Upstream, error: dict[str, Any], streamed: bool
) -> None:
    """Yeachan-Heo/oh-my-claudecode #3574: it compacts a conversation if the error is Anthropic's sentence only."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": error}, status=400)

    upstream.answer = answer
    told = await served.post("/v1/messages", {**ASK, "stream": streamed}, CLAUDE)
    assert (told.status, told.json["error"]["type"]) == (400, "invalid_request_error")
    assert told.json["error"]["message"] == f"prompt is too long: {error['message']}"


@pytest.mark.parametrize("error", OTHERS.values(), ids=OTHERS)
async def test_other_errors_keep_their_words(served: Served, upstream: Upstream, error: dict[str, Any]) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": error}, status=400)

    upstream.answer = answer
    told = await served.post("/v1/messages", ASK, CLAUDE)
    assert told.json["error"]["message"] == error["message"]


@pytest.mark.parametrize(
    "sentence",
    [
        "prompt is too long: 215692 tokens > 200000 maximum",
        "input length and `max_tokens` exceed context limit: 196655 + 21333 > 200000, decrease input length",
    ],
)
async def test_openais_agents_learn_it_by_its_code(upstream: Upstream, tmp_path: Path, sentence: str) -> None:
    """The other way round: agents look for `context_length_exceeded`."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return refusal(400, "invalid_request_error", sentence)

    upstream.answer = answer
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": upstream.url}})
    async with gateway_of(config, NO_CACHE) as served:
        told = await served.chat("Where?", headers=KEY)
    assert (told.status, told.json["error"]["code"]) == (400, "context_length_exceeded")
    assert told.json["error"]["message"] == sentence


def called(call: dict[str, Any], *ids: str | None) -> list[dict[str, Any]]:
    """Return the tool calls of an answer; those without an id have none."""
    function = {"name": "look", "arguments": "{}"}
    return [{**({"id": each} if each else {}), "type": "function", "function": function} for each in ids]


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("policy", [BOTH_CACHES, NO_CACHE], ids=["cached", "not cached"])
@pytest.mark.parametrize("ids", [("call_0",), ("call_0", "call_1"), (None,)], ids=["one", "two", "none"])
async def test_a_call_of_a_tool_has_an_id_of_its_own_in_its_conversation(
    upstream: Upstream, tmp_path: Path, streamed: bool, policy: str, ids: tuple[str | None, ...]
) -> None:
    """NVIDIA-NeMo/Switchyard #502: a backend begins with `call_0` in each turn, and Claude Code, which knows calls by
    their ids alone, calls for ever."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        calls = called(call, *ids)
        if not call.get("stream"):
            return web.json_response(completion(call, "", "tool_calls", tool_calls=calls))
        deltas = [chunk(call, {"tool_calls": [{"index": i, **each}]}) for i, each in enumerate(calls)]
        parts = [*deltas, chunk(call, {}, "tool_calls"), b"data: [DONE]\n\n"]
        return web.Response(body=b"".join(parts), headers=TEXT_EVENTS)

    upstream.answer = answer
    turns: list[dict[str, Any]] = [{"role": "user", "content": "Look."}]
    seen: list[str] = []
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy) as served:
        for _ in range(4):
            ask = {**ASK, "messages": turns, "tools": [LOOK], "stream": streamed}
            told = await served.post("/v1/messages", ask, CLAUDE)
            assert told.status == 200
            starts = [each["content_block"] for each in events_in(told.body) if each["type"] == "content_block_start"]
            uses = [{**use, "input": {}} for use in (starts if streamed else told.json["content"])]
            assert len(uses) == len(ids)
            seen += [use["id"] for use in uses]
            results = [{"type": "tool_result", "tool_use_id": use["id"], "content": "a page"} for use in uses]
            turns += [{"role": "assistant", "content": uses}, {"role": "user", "content": results}]
    assert len(set(seen)) == len(seen)
    assert seen[0] == (ids[0] or seen[0])  # an id that is new stays as it is
    last = upstream.calls[-1].json["messages"]
    asked = [call["id"] for turn in last for call in turn.get("tool_calls", ())]
    assert asked == [turn["tool_call_id"] for turn in last if turn["role"] == "tool"] == seen[: len(asked)]


@pytest.mark.parametrize("ids", [("call_0", "call_0"), ("call_0", "call_1", "call_0", "call_1")], ids=str)
@pytest.mark.parametrize("together", [1, 2])
async def test_claude_gets_an_id_for_each_call(
    upstream: Upstream, tmp_path: Path, ids: tuple[str, ...], together: int
) -> None:
    """BerriAI/litellm #23510, trycua/cua #524: "`tool_use` ids must be unique"."""
    speaking_anthropic(upstream)
    turns: list[dict[str, Any]] = [{"role": "user", "content": "Look."}]
    for at in range(0, len(ids), together):
        calls = called({}, *ids[at : at + together])
        turns.append({"role": "assistant", "content": None, "tool_calls": calls})
        turns += [
            {"role": "tool", "tool_call_id": call["id"], "content": f"page {at + i}"} for i, call in enumerate(calls)
        ]
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": upstream.url}})
    async with gateway_of(config, NO_CACHE) as served:
        ask = {"model": "m", "messages": turns, "tools": [FUNCTION]}
        assert (await served.post("/v1/chat/completions", ask, KEY)).status == 200
    blocks = [block for turn in upstream.calls[-1].json["messages"] for block in turn["content"]]
    uses = [block["id"] for block in blocks if block["type"] == "tool_use"]
    results = [block for block in blocks if block["type"] == "tool_result"]
    assert len(set(uses)) == len(ids)
    assert [block["tool_use_id"] for block in results] == uses
    assert [block["content"][0]["text"] for block in results] == [f"page {i}" for i in range(len(ids))]


async def test_a_stream_that_says_it_late_says_it_in_anthropics_words(served: Served, upstream: Upstream) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        error = frame({"error": {"message": "the request exceeds the available context size", "code": 400}})
        return web.Response(body=chunk(call, {"role": "assistant", "content": "I"}) + error, headers=TEXT_EVENTS)

    upstream.answer = answer
    told = await served.post("/v1/messages", {**ASK, "stream": True}, CLAUDE)
    last = events_in(told.body)[-1]["error"]
    assert last["type"] == "invalid_request_error"
    assert last["message"].startswith("prompt is too long: ")
    assert json.dumps(last)
