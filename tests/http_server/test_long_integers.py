"""Integers beyond 64 bits reach the backend with every digit, and two of them never share an answer."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.dialects.json_body import dump_json, load_json, read_object
from tests.fixtures.anthropic_upstream import anthropic, events_of, message, stream
from tests.fixtures.gateways import EXACT_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, completion

LONG = 1_000_000_000_000_000_000_000  # 22 digits
VALUES = [LONG, LONG + 1, -LONG, 2**64, 2**64 - 1, -(2**63), -(2**63) - 1, 10**300]
ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Which ports?"}]}
CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


@pytest.fixture(params=[EXACT_CACHE, EXACT_CACHE.replace("cache: {exact: {ttl: 1h}}", "cache: {exact: off}")])
async def served(request: pytest.FixtureRequest, upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    async with gateway_of(config_of(tmp_path, backends), request.param) as gateway:
        yield gateway


@pytest.mark.parametrize("value", VALUES)
def test_an_integer_of_any_length_is_read_and_written_with_its_digits(value: int) -> None:
    body = b'{"seed": %d, "a": [1.5, "%d"]}' % (value, value)
    assert json.loads(dump_json(load_json(body))) == json.loads(body)
    assert json.loads(read_object(body)[1]) == json.loads(body)
    assert json.loads(dump_json({"a": load_json(body), "b": float("nan")}))["a"] == json.loads(body)


@pytest.mark.parametrize("value", VALUES)
@pytest.mark.parametrize("field", ["seed", "of_the_vendor"])
async def test_a_long_integer_of_a_field_reaches_the_backend(
    served: Served, upstream: Upstream, field: str, value: int
) -> None:
    for given in (value, value + 1):
        answer = await served.post(CHAT, json.dumps({**ASK, field: {"deep": [given]}}).encode())
        assert answer.status == 200
        assert upstream.calls[-1].json[field] == {"deep": [given]}
    assert len(upstream.calls) == 2


async def test_long_integers_in_the_calls_of_tools_survive_a_translation(served: Served, upstream: Upstream) -> None:
    used = {"type": "tool_use", "id": "t", "name": "pay", "input": {"wei": LONG}}
    told = {"type": "tool_result", "tool_use_id": "t", "content": "done"}
    turns = [{"role": "user", "content": "Pay."}, {"role": "assistant", "content": [used]}]
    body = {"model": "m", "max_tokens": 9, "messages": [*turns, {"role": "user", "content": [told]}]}
    assert (await served.post(MESSAGES, json.dumps(body).encode())).status == 200
    function = upstream.calls[-1].json["messages"][1]["tool_calls"][0]["function"]
    assert json.loads(function["arguments"]) == {"wei": LONG}


@pytest.mark.parametrize("streams", [False, True])
async def test_long_integers_in_answers_survive_a_translation(
    served: Served, upstream: Upstream, streams: bool
) -> None:
    function = {"name": "pay", "arguments": json.dumps({"wei": LONG})}

    async def answer(_: web.Request, call: dict[str, Any]) -> web.Response:
        calls = [{"id": "t", "type": "function", "function": function}]
        return web.json_response(completion(call, "", "tool_calls", tool_calls=calls))

    upstream.answer = answer
    body = {"model": "m", "max_tokens": 9, "messages": ASK["messages"]}
    whole = await served.post(MESSAGES, body)
    assert whole.json["content"][0]["input"] == {"wei": LONG}


@pytest.mark.parametrize("asked", [False, True])
async def test_long_integers_of_anthropic_survive_each_form(upstream: Upstream, tmp_path: Path, asked: bool) -> None:
    anthropic(upstream)

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        content = [{"type": "tool_use", "id": "t", "name": "pay", "input": {"wei": LONG}}]
        whole = message(content, "tool_use")
        return await stream(request, events_of(whole)) if call.get("stream") else web.json_response(whole)

    upstream.answer = answer
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": upstream.url}})
    async with gateway_of(config, EXACT_CACHE.replace("1h}}", "1h}, admit: {tools: on}}")) as served:
        for streams in (asked, not asked):
            body = {"model": "m", "max_tokens": 9, "messages": ASK["messages"], "stream": streams}
            said = await served.post(MESSAGES, body, {"x-api-key": "k", "anthropic-version": "2023-06-01"})
            assert str(LONG) in said.body.decode().replace('\\"', "").replace('"}}\n\ndata: ', "") or streams
            assert b"1e+21" not in said.body and b"1e21" not in said.body
        chat = await served.post(CHAT, ASK)
        assert json.loads(chat.json["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {"wei": LONG}


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {**ASK, "max_tokens": LONG}),
        (CHAT, {**ASK, "temperature": LONG}),
        (CHAT, {**ASK, "n": LONG}),
        (CHAT, {"model": LONG, "messages": ASK["messages"]}),
        (CHAT, {**ASK, "tools": [{"type": "function", "function": {"name": "f", "parameters": {"maximum": LONG}}}]}),
        ("/v1/embeddings", {"model": "m", "input": [LONG, LONG + 1]}),
        ("/v1/completions", {"model": "m", "prompt": [LONG]}),
        ("/v1/responses", {"model": "m", "input": "hi", "max_output_tokens": LONG}),
        (MESSAGES, {"model": "m", "max_tokens": LONG, "messages": ASK["messages"]}),
        ("/v2/models/m/infer", {"inputs": [{"name": "a", "shape": [1], "datatype": "INT64", "data": [LONG]}]}),
        ("/v2/models/m/infer", {"inputs": [{"name": "a", "shape": [LONG], "datatype": "FP64", "data": [LONG]}]}),
        ("/v1/models/m:predict", {"instances": [LONG]}),
    ],
)
async def test_a_long_integer_in_any_place_is_no_internal_error(served: Served, path: str, body: Any) -> None:
    answer = await served.post(path, json.dumps(body).encode())
    assert answer.status != 500, answer.body
