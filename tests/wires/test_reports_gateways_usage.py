"""Reports about gateways, rebuilt: what they count of an answer, and what they tell the client that was counted."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.anthropic_upstream import message
from tests.fixtures.anthropic_upstream import stream as anthropic_stream
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, chunk, completion, frame

METERED = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}}
    route: {backend: main}
    limits: {tokens: {rate: 1M/day}}
"""
CLAUDE = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
ASK: dict[str, Any] = {"model": "m", "max_tokens": 64, "messages": [{"role": "user", "content": "Where is the key?"}]}
TEXT_EVENTS = {"Content-Type": "text/event-stream"}

Start = Callable[..., AbstractAsyncContextManager[Served]]


@pytest.fixture
def start(upstream: Upstream, tmp_path: Path) -> Start:
    """A gateway with the exact cache that counts the tokens of calls."""

    @asynccontextmanager
    async def begin(**backend: Any) -> AsyncIterator[Served]:
        section = {"adapter": "openai", "url": upstream.url, **backend}
        async with gateway_of(config_of(tmp_path, {"main": section}), METERED) as served:
            yield served

    return begin


def counted(served: Served) -> float:
    return served.gateway.parts.telemetry.limits_tokens.total()


def events_in(body: bytes) -> list[dict[str, Any]]:
    lines = [line.removeprefix(b"data: ") for line in body.split(b"\n") if line.startswith(b"data: ")]
    return [json.loads(line) for line in lines if line != b"[DONE]"]


def usage_at_the_end(body: bytes) -> Any:
    return [event["usage"] for event in events_in(body) if event.get("usage")][-1]


async def test_usage_that_comes_only_in_message_delta_is_counted_and_stored(start: Start, upstream: Upstream) -> None:
    """envoyproxy/ai-gateway #2290: compatible servers tell all counts at the end, and zeros at the beginning."""
    final = {"input_tokens": 41, "cache_creation_input_tokens": 30, "cache_read_input_tokens": 20, "output_tokens": 9}

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        begun = {**message([]), "stop_reason": None, "usage": {"input_tokens": 0, "output_tokens": 0}}
        return await anthropic_stream(
            request,
            [
                {"type": "message_start", "message": begun},
                {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
                {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Under the mat."}},
                {"type": "content_block_stop", "index": 0},
                {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": final},
                {"type": "message_stop"},
            ],
        )

    upstream.answer = answer
    async with start(adapter="anthropic") as served:
        await served.post("/v1/messages", {**ASK, "stream": True}, CLAUDE)
        whole = await served.post("/v1/messages", ASK, CLAUDE)
        assert counted(served) == 41 + 30 + 20 + 9
        assert whole.cache_status.startswith("nearhit; hit")
        assert whole.json["usage"] == final


@pytest.mark.parametrize("stored_by", ["whole", "stream"])
async def test_a_streamed_hit_tells_the_usage_in_every_detail(start: Start, upstream: Upstream, stored_by: str) -> None:
    """BerriAI/litellm #42244 and #36882: the details were dropped, a count of zero among them."""
    usage = {
        "prompt_tokens": 11,
        "completion_tokens": 8,
        "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 0, "audio_tokens": 0},
        "completion_tokens_details": {"reasoning_tokens": 6, "accepted_prediction_tokens": 0},
    }

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if not call.get("stream"):
            return web.json_response({**completion(call, "In the drawer."), "usage": usage})
        last = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": usage}
        parts = [chunk(call, {"role": "assistant", "content": "In the drawer."}), chunk(call, {}, "stop"), frame(last)]
        return web.Response(body=b"".join([*parts, b"data: [DONE]\n\n"]), headers=TEXT_EVENTS)

    upstream.answer = answer
    async with start() as served:
        told = {"stream": True, "stream_options": {"include_usage": True}}
        await served.chat("Where is it?", **(told if stored_by == "stream" else {}))
        hit = await served.chat("Where is it?", **told)
        whole = await served.chat("Where is it?")
    assert hit.cache_status.startswith("nearhit; hit")
    assert usage_at_the_end(hit.body) == whole.json["usage"] == usage
    assert len(upstream.calls) == 1


async def test_of_two_usages_in_a_translated_stream_the_later_one_is_told(start: Start, upstream: Upstream) -> None:
    """QuantumNous/new-api #7472: the chunk with the finish reason has a usage without the tokens of the prompt cache,
    the last chunk has one with them."""
    early = {"prompt_tokens": 50, "completion_tokens": 4, "total_tokens": 54}
    late = {**early, "prompt_tokens_details": {"cached_tokens": 32}}

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        finish = json.loads(chunk(call, {}, "stop")[6:])
        last = {**finish, "choices": [], "usage": late}
        parts = [chunk(call, {"role": "assistant", "content": "Here."}), frame({**finish, "usage": early}), frame(last)]
        return web.Response(body=b"".join([*parts, b"data: [DONE]\n\n"]), headers=TEXT_EVENTS)

    upstream.answer = answer
    async with start() as served:
        miss = await served.post("/v1/messages", {**ASK, "stream": True}, CLAUDE)
        whole = await served.post("/v1/messages", ASK, CLAUDE)
    for usage in (usage_at_the_end(miss.body), whole.json["usage"]):
        assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (18, 32, 4)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("asked", [True, "true"])
async def test_usage_in_an_event_before_the_end_marker_is_counted(
    start: Start, upstream: Upstream, cached: bool, asked: object
) -> None:
    """kubernetes-sigs/gateway-api-inference-extension #1357: the usage was looked for next to `[DONE]`."""
    async with start() as served:
        control = {} if cached else {"Cache-Control": "no-store"}
        told = {"stream": True, "stream_options": {"include_usage": asked}}
        answer = await served.chat("Where?", headers=control, **told)
        assert counted(served) == 12
    assert usage_at_the_end(answer.body)["total_tokens"] == 12


async def test_a_streamed_hit_has_the_usage_that_its_client_asks_for(start: Start, upstream: Upstream) -> None:
    """tensorzero/tensorzero #1791: streaming together with the cache returns no usage."""
    async with start() as served:
        first = await served.chat("Where?", stream=True)
        second = await served.chat("Where?", stream=True, stream_options={"include_usage": True})
        third = await served.chat("Where?", stream=True)
    assert second.cache_status.startswith("nearhit; hit")
    assert usage_at_the_end(second.body)["total_tokens"] == 12
    for unasked in (first, third):
        assert not any(event.get("usage") for event in events_in(unasked.body))


def placed(answer: dict[str, Any], place: str, usage: dict[str, Any]) -> dict[str, Any]:
    """Return a body or a chunk with its usage where some servers put it."""
    if place == "choice":
        answer["choices"][0]["usage"] = usage
    else:
        answer["x_groq"] = {"id": "req_1", "usage": usage}
    return {key: value for key, value in answer.items() if key != "usage"}


@pytest.mark.parametrize("streamed", [True, False])
@pytest.mark.parametrize("place", ["choice", "x_groq"])
@pytest.mark.parametrize("cached", ["cached_tokens", "prompt_cache_hit_tokens"])
async def test_usage_that_lies_in_the_choice_is_counted(
    start: Start, upstream: Upstream, streamed: bool, place: str, cached: str
) -> None:
    """QuantumNous/new-api #2550: Moonshot tells the usage of a stream in its last choice. Groq, DeepSeek: alike."""
    usage = {"prompt_tokens": 30, "completion_tokens": 3, "total_tokens": 33, cached: 16}

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if not call.get("stream"):
            return web.json_response(placed(completion(call, "Here."), place, usage))
        last = placed(json.loads(chunk(call, {}, "stop")[6:]), place, usage)
        parts = [chunk(call, {"role": "assistant", "content": "Here."}), frame(last), b"data: [DONE]\n\n"]
        return web.Response(body=b"".join(parts), headers=TEXT_EVENTS)

    upstream.answer = answer
    async with start() as served:
        await served.chat("Where?", stream=streamed, max_tokens=64)
        assert counted(served) == 33
        translated = await served.post("/v1/messages", {**ASK, "stream": streamed}, CLAUDE)
        told = usage_at_the_end(translated.body) if streamed else translated.json["usage"]
    assert (told["input_tokens"], told["cache_read_input_tokens"], told["output_tokens"]) == (14, 16, 3)


WRITES: dict[str, dict[str, Any]] = {
    "OpenAI": {"prompt_tokens_details": {"cached_tokens": 2000, "cache_write_tokens": 400}},
    "LiteLLM": {"prompt_tokens_details": {"cached_tokens": 2000, "cache_creation_tokens": 400}},
    "Anthropic's name": {"prompt_tokens_details": {"cached_tokens": 2000}, "cache_creation_input_tokens": 400},
}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("details", WRITES.values(), ids=WRITES)
async def test_what_was_written_to_a_prompt_cache_is_told_to_anthropics_clients(
    start: Start, upstream: Upstream, streamed: bool, details: dict[str, Any]
) -> None:
    """musistudio/claude-code-router #1461, BerriAI/litellm #31069: the count is lost, and its tokens look like plain
    input, which costs less."""
    usage = {"prompt_tokens": 2600, "completion_tokens": 3, "total_tokens": 2603, **details}

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if not call.get("stream"):
            return web.json_response({**completion(call, "There."), "usage": usage})
        parts = [chunk(call, {"content": "There."}), chunk(call, {}, "stop"), frame({"choices": [], "usage": usage})]
        return web.Response(body=b"".join([*parts, b"data: [DONE]\n\n"]), headers=TEXT_EVENTS)

    upstream.answer = answer
    async with start() as served:
        told = await served.post("/v1/messages", {**ASK, "stream": streamed}, CLAUDE)
    said = usage_at_the_end(told.body) if streamed else told.json["usage"]
    expected = {"input_tokens": 200, "cache_creation_input_tokens": 400, "cache_read_input_tokens": 2000}
    assert said == {**expected, "output_tokens": 3}


@pytest.mark.parametrize("streamed", [False, True], ids=["whole", "stream"])
async def test_what_was_written_to_a_prompt_cache_is_told_to_openais_clients(
    start: Start, upstream: Upstream, streamed: bool
) -> None:
    """router-for-me/CLIProxyAPI #2419: the client of a chat cannot see that Anthropic's cache works."""
    usage = {
        "input_tokens": 200,
        "cache_creation_input_tokens": 400,
        "cache_read_input_tokens": 2000,
        "output_tokens": 3,
    }

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        whole = {**message([{"type": "text", "text": "There."}]), "usage": usage}
        if not call.get("stream"):
            return web.json_response(whole)
        events = [
            {"type": "message_start", "message": {**whole, "content": [], "stop_reason": None}},
            {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
            {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "There."}},
            {"type": "content_block_stop", "index": 0},
            {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 3}},
            {"type": "message_stop"},
        ]
        return web.Response(body=b"".join(map(frame, events)), headers=TEXT_EVENTS)

    upstream.answer = answer
    ask = {**ASK, "stream": True, "stream_options": {"include_usage": True}} if streamed else ASK
    async with start(adapter="anthropic") as served:
        told = await served.post("/v1/chat/completions", ask, {"Authorization": "Bearer k"})
    said = usage_at_the_end(told.body) if streamed else told.json["usage"]
    assert (said["prompt_tokens"], said["total_tokens"]) == (2600, 2603)
    assert said["prompt_tokens_details"] == {"cached_tokens": 2000, "cache_write_tokens": 400}
