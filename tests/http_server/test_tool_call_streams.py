"""Tool calls and content of servers that do not follow OpenAI: for clients that ask whole or for a stream, alone,
together, from the cache, and in Anthropic's words."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.gateways import EXACT_CACHE, Answer, Served, aboard, config_of, gateway_of
from tests.fixtures.upstream import Upstream, chunk, completion
from tests.fixtures.waiting import until

OSLO, CET = '{"city":"Oslo"}', '{"tz":"CET"}'
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object"}}}
    for name in ("get_weather", "get_time")
]
ANTHROPIC_TOOLS = [{"name": name, "input_schema": {"type": "object"}} for name in ("get_weather", "get_time")]
ADMITS = EXACT_CACHE.replace("cache: {", "cache: {admit: {tools: on}, ")
CLIENTS = ["own", "aiohttp"]


@pytest.fixture(params=CLIENTS)
async def admitting(upstream: Upstream, tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Served]:
    """Yield a gateway that stores tool calls."""
    backend = {"adapter": "openai", "url": upstream.url, "client": request.param, "retries": {"attempts": 1}}
    async with gateway_of(config_of(tmp_path, {"main": backend}), ADMITS) as served:
        yield served


def call_of(call_id: str | None, name: Any, arguments: Any, index: int | None = 0) -> dict[str, Any]:
    known = {"id": call_id} if call_id is not None else {}
    place = {"index": index} if index is not None else {}
    return {**place, **known, "type": "function", "function": {"name": name, "arguments": arguments}}


def saying(upstream: Upstream, *deltas: dict[str, Any], finish: str | None = "tool_calls") -> None:
    """Have the upstream stream these deltas; to requests without `stream` it says that it was asked whole."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if not call.get("stream"):
            return web.json_response(completion(call, "asked whole"))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for delta in deltas:
            await response.write(chunk(call, delta))
        if finish is not None:
            await response.write(chunk(call, {}, finish))
        await response.write(b"data: [DONE]\n\n")
        return response

    upstream.answer = answer


async def together(served: Served, upstream: Upstream) -> tuple[Answer, Answer]:
    """The answers to a stream and to a whole request that joins it."""
    upstream.gate.clear()
    stream = asyncio.create_task(served.chat("hi", stream=True, tools=TOOLS))
    await until(lambda: aboard(served) == 1)
    whole = asyncio.create_task(served.chat("hi", tools=TOOLS))
    await until(lambda: aboard(served) == 2)
    upstream.gate.set()
    return await stream, await whole


def calls_in(answer: Answer) -> list[tuple[Any, ...]]:
    calls = answer.json["choices"][0]["message"]["tool_calls"]
    return [(call["id"], call["function"]["name"], call["function"]["arguments"]) for call in calls]


BOTH = [("a", "get_weather", OSLO), ("b", "get_time", CET)]
SHAPES: dict[str, list[dict[str, Any]]] = {
    "one-index": [call_of("a", "get_weather", OSLO), call_of("b", "get_time", CET)],
    "no-index": [call_of("a", "get_weather", OSLO, None), call_of("b", "get_time", CET, None)],
}


@pytest.mark.parametrize("shape", SHAPES)
async def test_calls_with_their_own_ids_stay_two_calls(admitting: Served, upstream: Upstream, shape: str) -> None:
    saying(upstream, *({"tool_calls": [call]} for call in SHAPES[shape]))
    stream, whole = await together(admitting, upstream)
    assert calls_in(whole) == BOTH
    hits = [await admitting.chat("hi", stream=asked, tools=TOOLS) for asked in (False, True, False, True)]
    assert all(hit.cache_status.startswith("nearhit; hit; detail=exact") for hit in hits)
    assert [calls_in(hit) for hit in hits[::2]] == [BOTH, BOTH]
    assert [hit.body for hit in hits[1::2]] == [stream.body] * 2
    assert len(upstream.calls) == 1


async def test_calls_that_cannot_be_told_apart_are_passed_on_and_not_shared(
    admitting: Served, upstream: Upstream
) -> None:
    saying(upstream, *({"tool_calls": [call_of(None, *call[1:])]} for call in BOTH))
    stream, whole = await together(admitting, upstream)
    assert stream.body.count(b"get_") == 2
    assert whole.json["choices"][0]["message"]["content"] == "asked whole"
    assert len(upstream.calls) == 2
    again = await admitting.chat("hi", stream=True, tools=TOOLS)
    assert again.status == 200


async def test_calls_that_cannot_be_told_apart_are_not_stored(admitting: Served, upstream: Upstream) -> None:
    saying(upstream, *({"tool_calls": [call_of("", *call[1:])]} for call in BOTH))
    first, second = [await admitting.chat("hi", stream=True, tools=TOOLS) for _ in range(2)]
    assert first.body == second.body
    assert len(upstream.calls) == 2


@pytest.fixture
async def translating(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    backend = {"adapter": "openai", "url": upstream.url, "retries": {"attempts": 1}}
    async with gateway_of(config_of(tmp_path, {"main": backend}), ADMITS) as served:
        yield served


async def ask_message(served: Served, **fields: Any) -> Answer:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}
    return await served.post("/v1/messages", body, {"anthropic-version": "2023-06-01"})


@pytest.mark.parametrize("shape", SHAPES)
async def test_calls_stay_two_in_anthropics_words(translating: Served, upstream: Upstream, shape: str) -> None:
    saying(upstream, *({"tool_calls": [call]} for call in SHAPES[shape]))
    stream = await ask_message(translating, stream=True, tools=ANTHROPIC_TOOLS)
    assert b"event: message_stop" in stream.body
    whole = await ask_message(translating, tools=ANTHROPIC_TOOLS)
    assert whole.cache_status.startswith("nearhit; hit")
    assert [
        (use["id"], use["name"], json.dumps(use["input"], separators=(",", ":"))) for use in whole.json["content"]
    ] == BOTH
    assert whole.json["stop_reason"] == "tool_use"


async def test_a_call_that_ran_out_of_tokens_is_an_answer_in_anthropics_words(
    translating: Served, upstream: Upstream
) -> None:
    made = call_of("a", "get_weather", '{"city":"Os')

    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, "I look.", "length", tool_calls=[made]))

    upstream.answer = answer
    whole = await ask_message(translating, tools=ANTHROPIC_TOOLS)
    assert (whole.status, whole.json["stop_reason"]) == (200, "max_tokens")
    assert [block["type"] for block in whole.json["content"]] == ["text", "tool_use"]


async def test_thinking_in_parts_is_one_list_for_a_whole_client(admitting: Served, upstream: Upstream) -> None:
    thoughts = [{"type": "thinking", "thinking": [{"type": "text", "text": text}]} for text in ("so ", "it is")]
    saying(upstream, *({"content": said} for said in ("", [thoughts[0]], [thoughts[1]], "it ", "is")), finish="stop")
    _, whole = await together(admitting, upstream)
    parts = [
        {"type": "thinking", "thinking": [{"type": "text", "text": "so it is"}]},
        {"type": "text", "text": "it is"},
    ]
    assert whole.json["choices"][0]["message"]["content"] == parts
    hit = await admitting.chat("hi", tools=TOOLS)
    assert hit.json["choices"][0]["message"]["content"] == parts
    assert len(upstream.calls) == 1


Change = Callable[[dict[str, Any]], Any]
MALFORMED: dict[str, Change] = {
    "name-null": lambda call: call["function"].update(name=None),
    "name-list": lambda call: call["function"].update(name=["get_weather"]),
    "name-object": lambda call: call["function"].update(name={"a": 1}),
    "name-number": lambda call: call["function"].update(name=7),
    "name-empty": lambda call: call["function"].update(name=""),
    "name-absent": lambda call: call["function"].pop("name"),
    "arguments-null": lambda call: call["function"].update(arguments=None),
    "arguments-list": lambda call: call["function"].update(arguments=[1]),
    "arguments-object": lambda call: call["function"].update(arguments={"city": "Oslo"}),
    "arguments-absent": lambda call: call["function"].pop("arguments"),
    "function-null": lambda call: call.update(function=None),
    "function-list": lambda call: call.update(function=[]),
    "function-absent": lambda call: call.pop("function"),
}


@pytest.mark.parametrize("legacy", [False, True], ids=["tool-calls", "function-call"])
@pytest.mark.parametrize("shape", MALFORMED)
async def test_a_malformed_call_is_passed_on_and_not_stored(
    translating: Served, upstream: Upstream, shape: str, legacy: bool
) -> None:
    made = call_of("a", "get_weather", OSLO)
    MALFORMED[shape](made)
    if legacy and not made.get("function"):
        made["function"] = {}
    field = {"function_call": made["function"]} if legacy else {"tool_calls": [made]}

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, "", "tool_calls", **field))

    upstream.answer = answer
    answers = [await translating.chat("hi", tools=TOOLS) for _ in range(2)]
    assert [answer.status for answer in answers] == [200, 200]
    assert all(field.items() <= answer.json["choices"][0]["message"].items() for answer in answers)
    assert len(upstream.calls) == 2
    saying(upstream, field)
    streams = [await translating.chat("hi", stream=True, tools=TOOLS) for _ in range(2)]
    assert all(b"[DONE]" in stream.body and b"error" not in stream.body for stream in streams)
    assert len(upstream.calls) == 4


@pytest.mark.parametrize("block", [{"name": None}, {"name": ["f"]}, {"name": {}}, {"input": None}, {"input": "{}"}])
async def test_a_malformed_use_of_a_tool_is_passed_on_and_not_stored(
    upstream: Upstream, tmp_path: Path, block: dict[str, Any]
) -> None:
    use = {"type": "tool_use", "id": "a", "name": "get_weather", "input": {}, **block}

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        usage = {"input_tokens": 1, "output_tokens": 1}
        body = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [use]}
        return web.json_response({**body, "stop_reason": "tool_use", "stop_sequence": None, "usage": usage})

    upstream.answer = answer
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": upstream.url, "retries": {"attempts": 1}}})
    async with gateway_of(config, ADMITS) as served:
        answers = [await ask_message(served, tools=ANTHROPIC_TOOLS) for _ in range(2)]
    assert [answer.json["content"] for answer in answers] == [[use], [use]]
    assert len(upstream.calls) == 2
