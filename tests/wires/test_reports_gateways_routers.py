"""Reports about gateways and routers, rebuilt: backends that are down, hang or break, and what is sent to them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.anthropic_upstream import anthropic as speaking_anthropic
from tests.fixtures.gateways import BOTH_CACHES, NO_CACHE, TIERS, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, chunk, frame, stream
from tests.fixtures.waiting import until
from tests.http_server.conftest import openai_client
from tests.wires.test_reports_gateways_usage import ASK, CLAUDE, Start, counted, events_in, start

__all__ = ["start"]

KEY = {"Authorization": "Bearer k"}
NOBODY = "http://127.0.0.1:9/v1"  # the discard port, where nothing listens
TEXT_EVENTS = {"Content-Type": "text/event-stream"}


@pytest.mark.parametrize("among", ["upstreams", "backends"])
async def test_models_are_listed_while_a_server_is_down(upstream: Upstream, tmp_path: Path, among: str) -> None:
    """vllm-project/router #135: `/v1/models` is a 500 as long as one worker is down."""
    if among == "upstreams":
        backends: dict[str, Any] = {"main": {"adapter": "openai", "upstreams": [NOBODY, upstream.url]}}
    else:
        backends = {
            "light": {"adapter": "openai", "url": NOBODY},
            "large": {"adapter": "openai", "url": upstream.url},
        }
    policy = NO_CACHE if among == "upstreams" else TIERS
    async with gateway_of(config_of(tmp_path, backends), policy) as served:
        for _ in range(4):
            listed = await served.get("/v1/models", KEY)
            assert (listed.status, [model["id"] for model in listed.json["data"]]) == (200, ["upstream-model"])


async def test_a_server_that_hangs_holds_up_only_its_own_calls(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    """vllm-project/production-stack #749: one worker does not answer, and soon nobody is answered."""
    light.gate.clear()
    backends = {"main": {"adapter": "openai", "upstreams": [light.url, large.url]}}
    async with gateway_of(config_of(tmp_path, backends), NO_CACHE) as served:
        asked: list[asyncio.Task[Any]] = []
        while not light.calls:  # until one of them is held up
            asked.append(asyncio.create_task(served.chat(f"first {len(asked)}")))
            await until(lambda: len(light.calls) + len(large.calls) == len(asked))
        for i in range(30):
            assert (await served.chat(f"later {i}")).text.startswith("large")
        assert len(light.calls) == 1
        light.gate.set()
        assert all([(await task).status == 200 for task in asked])


async def test_a_stream_that_breaks_is_not_begun_again(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    """apache/shenyu #6647: the retry sends the whole answer after the half that the client has."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, "one two three four", cut=True)

    light.answer = answer
    backends = {
        name: {"adapter": "openai", "url": each.url, "retries": {"attempts": 3}}
        for name, each in (("main", light), ("other", large))
    }
    policy = NO_CACHE.replace("{backend: main}", "{backend: main, fallback: [other]}")
    async with gateway_of(config_of(tmp_path, backends), policy) as served:
        raw = await served.chat("Count", stream=True)
    assert raw.body.count(b'"one"') == 1
    assert "error" in events_in(raw.body)[-1]
    assert (len(light.calls), len(large.calls)) == (1, 0)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_a_stream_ends_once(served: Served, upstream: Upstream, path: str) -> None:
    """songquanpeng/one-api #1628: the backend's `[DONE]`, and then the gateway's own."""
    mark = b"event: message_stop" if path == "/v1/messages" else b"data: [DONE]"
    headers = CLAUDE if path == "/v1/messages" else KEY
    bodies = [(await served.post(path, {**ASK, "stream": True}, headers)).body for _ in range(2)]
    await served.post(path, ASK, headers)
    bodies.append((await served.post(path, {**ASK, "stream": True}, headers)).body)
    assert [body.count(mark) for body in bodies] == [1, 1, 1]


@pytest.mark.parametrize("policy", [BOTH_CACHES, NO_CACHE], ids=["cached", "not cached"])
@pytest.mark.parametrize("renamed", [False, True])
async def test_the_order_of_keys_stays(upstream: Upstream, tmp_path: Path, policy: str, renamed: bool) -> None:
    """automazeio/vibeproxy #294: keys are sorted on the way, and the provider's prompt cache reads another text."""
    speaking_anthropic(upstream)
    schema = {"type": "object", "properties": {"zoo": {"type": "string"}, "alpha": {"type": "string"}}}
    ask = {
        "model": "m",
        "max_tokens": 9,
        "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
        "tools": [{"name": "look", "input_schema": schema, "description": "looks"}],
        "messages": [{"role": "user", "content": "Where?"}],
    }
    backend = {"adapter": "anthropic", "url": upstream.url, **({"model": "m"} if renamed else {})}
    async with gateway_of(config_of(tmp_path, {"main": backend}), policy) as served:
        assert (await served.post("/v1/messages", ask, CLAUDE)).status == 200
    assert json.dumps(upstream.calls[0].json) == json.dumps(ask)


@pytest.mark.parametrize("speaks", ["anthropic", "openai"])
async def test_what_stays_comes_before_what_grows(upstream: Upstream, tmp_path: Path, speaks: str) -> None:
    """maximhq/bifrost #6406: a prompt cache that reads the raw text misses if `messages` come before the rest."""
    tools: list[dict[str, Any]] = [{"name": "look", "input_schema": {"type": "object"}}]
    path, headers = "/v1/messages", CLAUDE
    if speaks == "anthropic":
        speaking_anthropic(upstream)
        tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        path, headers = "/v1/chat/completions", KEY
    turns = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Where?"}]
    config = config_of(tmp_path, {"main": {"adapter": speaks, "url": upstream.url}})
    async with gateway_of(config, NO_CACHE) as served:
        assert (await served.post(path, {**ASK, "messages": turns, "tools": tools}, headers)).status == 200
    assert list(upstream.calls[0].json)[-1] == "messages"


async def test_a_translated_stream_is_counted(start: Start, upstream: Upstream) -> None:
    """mozilla-ai/otari #256: streams of messages count nothing, whole messages and chats do."""
    async with start() as served:
        await served.post("/v1/messages", {**ASK, "stream": True}, CLAUDE)
        assert counted(served) == 12


async def test_a_recording_of_the_official_client_arrives_whole(served: Served, upstream: Upstream) -> None:
    """ggml-org/llama.cpp #22044: an upload of 780 kB, and the router never answers."""
    async with openai_client(served) as client:
        told = await client.audio.transcriptions.with_raw_response.create(
            model="whisper-1", file=("a.mp3", bytes(range(256)) * 3050, "audio/mpeg"), response_format="text"
        )
    assert bytes(range(256)) * 3050 in told.content
    assert b'name="model"' in told.content


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_usage_of_zeros_is_none(start: Start, upstream: Upstream, streamed: bool) -> None:
    """BerriAI/litellm #37992 asks for zero to mean free. Servers that do not count write zeros, too, and a limit that
    these switch off bounds nothing: the gateway estimates."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        if not call.get("stream"):
            whole = {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "usage": usage}
            message = {"role": "assistant", "content": "Here. " * 20}
            return web.json_response({**whole, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
        last = frame({**json.loads(chunk(call, {}, "stop")[6:]), "choices": [], "usage": usage})
        parts = [chunk(call, {"content": "Here. "}) for _ in range(20)] + [chunk(call, {}, "stop"), last]
        return web.Response(body=b"".join([*parts, b"data: [DONE]\n\n"]), headers=TEXT_EVENTS)

    upstream.answer = answer
    async with start() as served:
        await served.chat("Where?", stream=streamed)
        assert counted(served) >= 20
