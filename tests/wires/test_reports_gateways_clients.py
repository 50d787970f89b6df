"""Reports about gateways, rebuilt: clients that leave, what they send, and how answers end."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.anthropic_upstream import events_of, message
from tests.fixtures.anthropic_upstream import stream as anthropic_stream
from tests.fixtures.gateways import BOTH_CACHES, LOOSE, NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until
from tests.wires.test_reports_gateways_usage import ASK, CLAUDE, events_in

KEY = {"Authorization": "Bearer k"}


@pytest.mark.parametrize("policy", [BOTH_CACHES, NO_CACHE], ids=["cached", "not cached"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/rerank"])
@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_who_leaves_before_the_first_byte_ends_the_call(
    upstream: Upstream, tmp_path: Path, policy: str, path: str, streamed: bool
) -> None:
    """BerriAI/litellm #37140 and #31499: the backend goes on for nobody, if nothing has come yet."""
    upstream.gate.clear()
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy) as served:
        request = served.session.post(served.url + path, json={**ASK, "stream": streamed}, headers=CLAUDE)
        asking = asyncio.ensure_future(request.__aenter__())
        await upstream.arrived.wait()
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await upstream.left.wait()
        await until(lambda: sum(pool.inflight for pool in served.gateway.parts.pools.values()) == 0)
    assert upstream.cancelled == 1


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
async def test_half_an_emoji_is_refused_in_words(served: Served, upstream: Upstream, path: str) -> None:
    """BerriAI/litellm #24196: a text that is cut within a surrogate pair is a 500. OpenAI and Anthropic refuse it."""
    body = b'{"model": "m", "input": "hi", "messages": [{"role": "user", "content": "Where is \\ud83c it?"}]}'
    answer = await served.post(path, body, CLAUDE)
    assert answer.status == 400
    assert "surrogate" in answer.json["error"]["message"]
    assert upstream.calls == []


@pytest.mark.parametrize("size", [4090, 4093, 4096, 300_000])
async def test_a_long_call_of_a_tool_keeps_its_letters(served: Served, upstream: Upstream, size: int) -> None:
    """BerriAI/litellm #34917: a request of an MCP client is cut at 4,096 bytes, within a letter."""
    text = "x" * (size - 200) + "я" * 400
    call = {"name": "report", "arguments": {"text": text}}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}

    async def answer(request: web.Request, given: dict[str, Any]) -> web.StreamResponse:
        length = len(given["params"]["arguments"]["text"])
        result = {"content": [{"type": "text", "text": str(length)}]}
        return web.json_response({"jsonrpc": "2.0", "id": given["id"], "result": result})

    upstream.answer = answer
    raw = json.dumps(body, ensure_ascii=False).encode()
    headers = {"Content-Type": "application/json", "Accept": "application/json, text/event-stream"}
    answered = await served.post("/mcp", raw, headers)
    assert answered.status == 200
    assert answered.json["result"]["content"][0]["text"] == str(len(text))


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/chat/completions", "/v1/messages/count_tokens"])
@pytest.mark.parametrize("beta", ["context-1m-2025-08-07", "one-of-tomorrow-2027-01-01, another-2027-02-02"])
async def test_betas_reach_claude(upstream: Upstream, tmp_path: Path, path: str, beta: str) -> None:
    """BerriAI/litellm #9016 and #41202: `anthropic-beta` is dropped, or those of its names that the proxy knows not."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(message([{"type": "text", "text": "Here."}]))

    upstream.answer = answer
    headers = {**(KEY if path == "/v1/chat/completions" else CLAUDE), "anthropic-beta": beta}
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": upstream.url}})
    async with gateway_of(config, BOTH_CACHES) as served:
        assert (await served.post(path, ASK, headers)).status == 200
    sent = {name.lower(): value for name, value in upstream.calls[0].headers.items()}
    assert sent["anthropic-beta"] == beta


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/v1/moderations"])
async def test_headers_of_their_own_go_on_from_all_paths(served: Served, upstream: Upstream, path: str) -> None:
    """BerriAI/litellm #27410: `x-` headers go on from chats, and not from completions."""
    body = {**ASK, "prompt": "Where?", "input": "Where?"}
    await served.post(path, body, {"x-acme-call": "7", "OpenAI-Organization": "org-1"})
    sent = {name.lower(): value for name, value in upstream.calls[0].headers.items()}
    assert (sent["x-acme-call"], sent["openai-organization"]) == ("7", "org-1")


@pytest.mark.parametrize("role", ["system", "developer", "tool", "assistant"])
async def test_every_earlier_turn_is_a_part_of_the_question(upstream: Upstream, tmp_path: Path, role: str) -> None:
    """NVIDIA-NeMo/Guardrails #2360: the key has the turns of user and assistant, and another system prompt is a hit."""
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, LOOSE) as served:
        for text in ("Answer as a pirate.", "Answer as a judge."):
            earlier = {"role": role, "content": text} | ({"tool_call_id": "call_1"} if role == "tool" else {})
            turns = [{"role": "user", "content": "Hello"}, earlier, {"role": "user", "content": "Where is it?"}]
            answer = await served.post("/v1/chat/completions", {"model": "m", "messages": turns})
            assert answer.cache_status.startswith("nearhit; fwd=miss")


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize(
    ("reason", "told"), [("model_context_window_exceeded", "length"), ("refusal", "content_filter")]
)
async def test_why_claude_stopped_is_told_in_openais_words(
    upstream: Upstream, tmp_path: Path, streamed: bool, reason: str, told: str
) -> None:
    """theopenco/llmgateway #3254: an answer that is cut by the context window looks complete to OpenAI's clients."""
    whole = message([{"type": "text", "text": "Half of"}], stop=reason)

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await anthropic_stream(request, events_of(whole)) if streamed else web.json_response(whole)

    upstream.answer = answer
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": upstream.url}})
    async with gateway_of(config, BOTH_CACHES) as served:
        for _ in range(2):
            answered = await served.chat("Where?", headers=KEY, stream=streamed)
            events = events_in(answered.body) if streamed else [answered.json]
            reasons = [each["finish_reason"] for event in events for each in event["choices"]]
            assert reasons[-1] == told
    assert len(upstream.calls) == 2  # it is not stored


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("policy", [BOTH_CACHES, NO_CACHE], ids=["cached", "not cached"])
async def test_a_backends_error_arrives_as_it_is(
    upstream: Upstream, tmp_path: Path, streamed: bool, policy: str
) -> None:
    """Helicone/helicone #5070: the gateway's own sentence replaces the provider's error."""
    error = {"message": "bad", "type": "x", "param": "messages", "code": "y", "inner": {"details": [1, {"a": "é"}]}}

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": error, "trace": "t-1"}, status=422, headers={"x-provider": "p"})

    upstream.answer = answer
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy) as served:
        for _ in range(2):
            answered = await served.chat("Where?", stream=streamed)
            assert (answered.status, answered.json) == (422, {"error": error, "trace": "t-1"})
            assert answered.headers["x-provider"] == "p"


async def test_an_answer_after_a_client_has_left_is_for_the_next_one(served: Served, upstream: Upstream) -> None:
    """Of two that wait for one answer, one leaves: the other one gets it."""
    upstream.gate.clear()
    first = asyncio.create_task(served.chat("Where?"))
    await upstream.arrived.wait()
    second = asyncio.create_task(served.chat("Where?"))
    await until(lambda: sum(len(getattr(f, "_positions", ())) for f in served.gateway.parts.flights.values()) == 2)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    upstream.gate.set()
    assert (await second).text == "upstream answers: Where?"
    assert (len(upstream.calls), upstream.cancelled) == (1, 0)
