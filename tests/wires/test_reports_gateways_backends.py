"""Reports about gateways, rebuilt: which backend answers, in which form, and what counts against one."""

from __future__ import annotations

import base64
import struct
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.anthropic_upstream import anthropic as speaking_anthropic
from tests.fixtures.anthropic_upstream import refusal
from tests.fixtures.gateways import BOTH_CACHES, NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.several import behind, policy_of
from tests.fixtures.upstream import Upstream, completion
from tests.http_server.conftest import openai_client
from tests.wires.test_reports_gateways_usage import ASK, CLAUDE, events_in

WITH_FALLBACK = NO_CACHE.replace("{backend: main}", "{backend: main, fallback: [other]}")


def packed(numbers: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(numbers)}f", *numbers)).decode()


def unpacked(text: str) -> list[float]:
    data = base64.b64decode(text)
    return list(struct.unpack(f"<{len(data) // 4}f", data))


def embedder(upstream: Upstream, *, obedient: bool) -> Upstream:
    """An endpoint whose vectors tell their inputs; `obedient`: it answers in base64 where that is asked."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        given = [call["input"]] if isinstance(call["input"], str) else call["input"]
        vectors = [[float(len(text)), 0.5] for text in given]
        wants_text = obedient and call.get("encoding_format") == "base64"
        data = [
            {"object": "embedding", "index": i, "embedding": packed(vector) if wants_text else vector}
            for i, vector in enumerate(vectors)
        ]
        usage = {"prompt_tokens": 6, "total_tokens": 6}
        return web.json_response({"object": "list", "data": data, "model": call["model"], "usage": usage})

    upstream.answer = answer
    return upstream


async def test_vectors_in_base64_are_told_apart_and_put_together(served: Served, upstream: Upstream) -> None:
    """api7/aisix #393: the official clients ask for base64, and the gateway cannot read the answer."""
    embedder(upstream, obedient=True)
    async with openai_client(served) as client:
        for texts in (["a", "bb", "ccc"], ["ccc", "dddd", "a"], ["bb"]):
            answer = await client.embeddings.create(model="m", input=texts)
            assert [each.embedding for each in answer.data] == [[float(len(text)), 0.5] for text in texts]
            assert [each.index for each in answer.data] == list(range(len(texts)))
    assert [call.json["input"] for call in upstream.calls] == [["a", "bb", "ccc"], "dddd"]


@pytest.mark.parametrize("policy", [BOTH_CACHES, NO_CACHE], ids=["cached", "not cached"])
@pytest.mark.parametrize("given", ["a", ["a", "bb"]], ids=["one", "two"])
async def test_who_asks_for_base64_gets_base64(upstream: Upstream, tmp_path: Path, policy: str, given: Any) -> None:
    """BerriAI/litellm #42421: the server ignores `encoding_format`; clients decode numbers as bytes, or fail."""
    embedder(upstream, obedient=False)
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy) as served:
        for _ in range(2):
            answer = await served.post("/v1/embeddings", {"model": "m", "input": given, "encoding_format": "base64"})
            told = [each["embedding"] for each in answer.json["data"]]
            assert all(isinstance(each, str) for each in told)
            assert [unpacked(each) for each in told] == [[float(len(text)), 0.5] for text in given]
        plain = await served.post("/v1/embeddings", {"model": "m", "input": given})
        assert [each["embedding"] for each in plain.json["data"]] == [[float(len(text)), 0.5] for text in given]


async def test_who_asks_for_numbers_gets_numbers(served: Served, upstream: Upstream) -> None:
    """The other way round: a server that knows only base64 (cocoindex-io/cocoindex-code #148)."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        data = [{"object": "embedding", "index": 0, "embedding": packed([1.0, 0.5])}]
        return web.json_response({"object": "list", "data": data, "model": "m", "usage": {"prompt_tokens": 1}})

    upstream.answer = answer
    answered = await served.post("/v1/embeddings", {"model": "m", "input": "a", "encoding_format": "float"})
    assert answered.json["data"][0]["embedding"] == [1.0, 0.5]


async def test_a_fallback_of_another_protocol_is_asked_for_the_same_form(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    """BerriAI/litellm #16061: no tools, `tool_choice: none` and a schema; the fallback answers in prose."""

    async def broken(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"error": {"message": "overloaded"}}, status=503)

    light.answer = broken
    speaking_anthropic(large)
    backends = {
        "main": {"adapter": "openai", "url": light.url},
        "other": {"adapter": "anthropic", "url": large.url},
    }
    schema = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
    form = {"type": "json_schema", "json_schema": {"name": "city", "schema": schema, "strict": True}}
    async with gateway_of(config_of(tmp_path, backends), WITH_FALLBACK) as served:
        headers = {"Authorization": "Bearer k"}
        answer = await served.chat("Where?", headers=headers, tools=[], tool_choice="none", response_format=form)
    assert (answer.status, answer.headers["x-nearhit-backend"]) == (200, "other")
    call = large.calls[-1].json
    assert call["output_config"]["format"] == {"type": "json_schema", "schema": schema}
    assert call.keys().isdisjoint(("tools", "tool_choice"))


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_fallbacks_model_is_told(tmp_path: Path, streamed: bool) -> None:
    """BerriAI/litellm #28241: the answer names the model that was asked for, although another one answered."""
    policy = policy_of("backend: main, fallback: [other]")
    async with behind(tmp_path, policy, "main", "other") as (served, upstreams):

        async def broken(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
            return web.json_response({"error": {"message": "no"}}, status=500)

        upstreams["main"].answer = broken
        for _ in range(2):  # from the backend, and from the cache
            answer = await served.chat("Where?", stream=streamed)
            said = events_in(answer.body)[0] if streamed else answer.json
            assert said["model"] == "other"
        assert len(upstreams["other"].calls) == 1


@pytest.mark.parametrize("status", [400, 404, 422])
async def test_what_clients_do_wrong_counts_against_no_backend(served: Served, upstream: Upstream, status: int) -> None:
    """tbphp/gpt-load #319: wrong paths and bodies, and the key is taken out of service."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if call["messages"][0]["content"].startswith("wrong"):
            return web.json_response({"error": {"message": "no"}}, status=status)
        return web.json_response(completion(call, "right"))

    upstream.answer = answer
    for i in range(30):
        assert (await served.chat(f"wrong {i}")).status == status
    assert (await served.chat("well")).text == "right"
    assert len(upstream.calls) == 31


async def test_failures_between_successes_do_not_add_up(served: Served, upstream: Upstream) -> None:
    """tbphp/gpt-load #417: a limit of failures in a row counted all of them, for ever."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if call["messages"][0]["content"].startswith("bad"):
            return web.json_response({"error": {"message": "no"}}, status=500)
        return web.json_response(completion(call, "right"))

    upstream.answer = answer
    for i in range(15):
        assert (await served.chat(f"bad {i}")).status == 500
        assert (await served.chat(f"good {i}")).text == "right"


@pytest.mark.parametrize("policy", [BOTH_CACHES, NO_CACHE], ids=["cached", "not cached"])
async def test_tokens_of_a_message_are_counted_where_no_backend_can(
    upstream: Upstream, tmp_path: Path, policy: str
) -> None:
    """vercel/ai #17326: `/v1/messages/count_tokens` is a 404 for models of another provider."""

    async def absent(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"detail": "Not Found"}, status=404)

    upstream.answer = absent
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy) as served:
        ask = {"model": "m", "system": "Be brief.", "messages": ASK["messages"]}
        answer = await served.post("/v1/messages/count_tokens", ask, CLAUDE)
        assert answer.status == 200
        assert 3 <= answer.json["input_tokens"] <= 20
        longer = {**ask, "messages": [{"role": "user", "content": "Where is the key? " * 100}]}
        assert (await served.post("/v1/messages/count_tokens", longer, CLAUDE)).json["input_tokens"] >= 300


async def test_the_count_of_a_backend_that_has_one_is_told(upstream: Upstream, served: Served) -> None:
    async def counts(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"input_tokens": 41})

    upstream.answer = counts
    answer = await served.post("/v1/messages/count_tokens", {"model": "m", "messages": ASK["messages"]}, CLAUDE)
    assert answer.json == {"input_tokens": 41}
    assert upstream.calls[0].path == "/v1/messages/count_tokens"


async def test_what_anthropic_says_of_an_unknown_model_is_told(upstream: Upstream, tmp_path: Path) -> None:
    async def absent(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return refusal(404, "not_found_error", "model: m")

    upstream.answer = absent
    config = config_of(tmp_path, {"main": {"adapter": "anthropic", "url": upstream.url}})
    async with gateway_of(config, NO_CACHE) as served:
        answer = await served.post("/v1/messages/count_tokens", {"model": "m", "messages": ASK["messages"]}, CLAUDE)
    assert (answer.status, answer.json["error"]["message"]) == (404, "model: m")


async def test_a_long_conversation_with_pictures_is_counted_too(upstream: Upstream, tmp_path: Path) -> None:
    """Its body is larger than what is usually kept of a body that passes through."""

    async def absent(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({"detail": "Not Found"}, status=404)

    upstream.answer = absent
    picture = {"type": "base64", "media_type": "image/png", "data": "A" * 400_000}
    blocks = [{"type": "image", "source": picture}, {"type": "text", "text": "four" * 1000}]
    ask = {"model": "m", "messages": [{"role": "user", "content": blocks}]}
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, NO_CACHE) as served:
        answer = await served.post("/v1/messages/count_tokens", ask, CLAUDE)
    assert 2600 <= answer.json["input_tokens"] <= 2620
    assert upstream.calls[0].json == ask
