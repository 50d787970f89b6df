"""A whole message that is replayed as a stream: the events that Anthropic sends, field by field."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anthropic
import pytest
from aiohttp import web

from tests.fixtures.gateways import EXACT_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.http_server.test_anthropic_client import told

CITATION = {
    "type": "web_search_result_location", "url": "https://a.example", "title": "A", "cited_text": "it is",
    "encrypted_index": "x",
}  # fmt: skip
RESULT = {
    "type": "web_search_result", "url": "https://a.example", "title": "A", "encrypted_content": "y", "page_age": None,
}  # fmt: skip
CONTENT: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "I look it up.", "signature": "c2ln"},
    {"type": "redacted_thinking", "data": "cmVk"},
    {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "is it"}},
    {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [RESULT]},
    {"type": "text", "text": "It is so.", "citations": [CITATION]},
    {"type": "tool_use", "id": "toolu_1", "name": "note", "input": {"text": "it is so"}},
    {"type": "tool_use", "id": "toolu_2", "name": "stop", "input": {}},
]
USAGE: dict[str, Any] = {
    "input_tokens": 20, "cache_creation_input_tokens": 2, "cache_read_input_tokens": 3, "output_tokens": 40,
    "cache_creation": {"ephemeral_5m_input_tokens": 2, "ephemeral_1h_input_tokens": 0},
    "server_tool_use": {"web_search_requests": 1, "web_fetch_requests": 0}, "service_tier": "standard",
}  # fmt: skip
MESSAGE: dict[str, Any] = {
    "id": "msg_1", "type": "message", "role": "assistant", "model": "claude", "content": CONTENT,
    "stop_reason": "tool_use", "stop_sequence": None, "usage": USAGE,
}  # fmt: skip
ASKED: dict[str, Any] = {"model": "claude", "max_tokens": 99, "messages": [{"role": "user", "content": "Is it?"}]}


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async def answer(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        assert not call.get("stream")
        return web.json_response(MESSAGE)

    upstream.answer = answer
    policy = EXACT_CACHE.replace("cache: {", "cache: {admit: {tools: on}, ")
    async with gateway_of(config_of(tmp_path, {"main": {"adapter": "anthropic", "url": upstream.url}}), policy) as one:
        yield one


@pytest.fixture
async def client(served: Served) -> AsyncIterator[anthropic.AsyncAnthropic]:
    async with anthropic.AsyncAnthropic(base_url=served.url, api_key="k", max_retries=0) as one:
        await one.messages.create(**ASKED)
        yield one


async def replayed(served: Served) -> list[dict[str, Any]]:
    """The events of a hit, each named by its type."""
    headers = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
    await served.post("/v1/messages", ASKED, headers)
    answer = await served.post("/v1/messages", {**ASKED, "stream": True}, headers)
    assert answer.cache_status.startswith("nearhit; hit")
    events = []
    for block in answer.body.decode().split("\n\n")[:-1]:
        name, data = block.split("\n")
        events.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {events[-1]['type']}"
    return events


async def test_the_usage_is_split_as_anthropic_splits_it(served: Served) -> None:
    first, *_, delta, stop = await replayed(served)
    begun = {key: value for key, value in USAGE.items() if key != "server_tool_use"}
    assert first == {
        "type": "message_start",
        "message": {**MESSAGE, "content": [], "stop_reason": None, "usage": {**begun, "output_tokens": 0}},
    }
    final = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens", "output_tokens")
    assert delta == {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use", "stop_sequence": None},
        "usage": {key: USAGE[key] for key in (*final, "server_tool_use")},
    }
    assert stop == {"type": "message_stop"}


async def test_each_block_starts_empty_and_comes_in_deltas(served: Served) -> None:
    events = await replayed(served)
    starts = [event["content_block"] for event in events if event["type"] == "content_block_start"]
    assert starts == [
        {"type": "thinking", "thinking": "", "signature": ""},
        CONTENT[1],
        {**CONTENT[2], "input": {}},
        CONTENT[3],
        {"type": "text", "text": "", "citations": []},
        {**CONTENT[5], "input": {}},
        {**CONTENT[6], "input": {}},
    ]
    kinds: list[list[str]] = [[] for _ in starts]
    for event in events:
        if event["type"] == "content_block_delta":
            kinds[event["index"]].append(event["delta"]["type"])
    assert [list(dict.fromkeys(each)) for each in kinds] == [
        ["thinking_delta", "signature_delta"], [], ["input_json_delta"], [], ["text_delta", "citations_delta"],
        ["input_json_delta"], ["input_json_delta"],
    ]  # fmt: skip
    inputs = [
        event["delta"]["partial_json"] for event in events if event.get("delta", {}).get("partial_json") is not None
    ]
    assert inputs.count("") == 3  # Anthropic begins each input with an empty piece


async def test_the_official_client_puts_the_message_together(
    client: anthropic.AsyncAnthropic, upstream: Upstream
) -> None:
    whole = await client.messages.create(**ASKED)
    async with client.messages.stream(**ASKED) as events:
        final = await events.get_final_message()
    assert told(final) == told(whole)
    assert told(whole)["usage"] == USAGE
    assert len(upstream.calls) == 1


async def test_a_client_that_counts_only_the_last_usage_counts_all_tokens(client: anthropic.AsyncAnthropic) -> None:
    """As LangChain does: it adds up the tokens of `message_delta` and ignores those of `message_start`."""
    total = 0
    async for event in await client.messages.create(**ASKED, stream=True):
        if event.type == "message_delta":
            usage = event.usage
            total += (usage.input_tokens or 0) + (usage.cache_read_input_tokens or 0)
            total += (usage.cache_creation_input_tokens or 0) + usage.output_tokens
    assert total == 65
