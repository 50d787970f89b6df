"""Fields that the gateway adds to a call, before an endpoint that refuses them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.gateways import BOTH_CACHES, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, completion, question_of
from tests.fixtures.upstream import stream as streamed

Refusal = Callable[[dict[str, Any]], str | None]
CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
MESSAGE = {**CHAT, "max_tokens": 9}


def strict(upstream: Upstream, *unknown: str, status: int = 422) -> None:
    """Have the endpoint refuse calls with these fields, in the words of a validator, and answer all others."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        if found := [field for field in unknown if field in call]:
            fault = {"type": "extra_forbidden", "loc": ["body", found[0]], "msg": "Extra inputs are not permitted"}
            return web.json_response({"detail": [fault]}, status=status)
        text = f"answers: {question_of(call)}"
        if call.get("stream"):
            return await streamed(request, call, text)
        return web.json_response(completion(call, text))

    upstream.answer = answer


@pytest.fixture(params=["own", "aiohttp"])
async def served(request: pytest.FixtureRequest, upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    backend = {"adapter": "openai", "url": upstream.url, "client": request.param, "retries": {"attempts": 1}}
    async with gateway_of(config_of(tmp_path, {"main": backend})) as gateway:
        yield gateway


@pytest.mark.parametrize("status", [400, 422])
async def test_a_stream_goes_on_without_the_field_that_its_client_never_sent(
    served: Served, upstream: Upstream, status: int
) -> None:
    strict(upstream, "stream_options", status=status)
    answer = await served.post("/v1/chat/completions", CHAT)
    assert (answer.status, b"hi" in answer.body) == (200, True)
    assert ["stream_options" in call.json for call in upstream.calls] == [True, False]
    # It is remembered for the model at that upstream, and the answer is stored.
    assert (await served.chat("another", stream=True)).status == 200
    assert ["stream_options" in call.json for call in upstream.calls] == [True, False, False]
    assert (await served.post("/v1/chat/completions", CHAT)).cache_status.startswith("nearhit; hit; detail=exact")
    # Another model there may accept it.
    await served.chat("hi", stream=True, model="other")
    assert ["stream_options" in call.json for call in upstream.calls[3:]] == [True, False]


async def test_a_field_that_the_client_sent_is_refused_to_the_client(served: Served, upstream: Upstream) -> None:
    strict(upstream, "stream_options")
    answer = await served.post("/v1/chat/completions", {**CHAT, "stream_options": {"include_usage": True}})
    assert (answer.status, len(upstream.calls)) == (422, 1)
    # With other options of the client's, the call goes once more as the client sent it.
    own = {"include_obfuscation": False}
    answer = await served.post("/v1/chat/completions", {**CHAT, "stream_options": own})
    assert answer.status == 422
    assert [call.json["stream_options"] for call in upstream.calls[1:]] == [{**own, "include_usage": True}, own]


async def test_another_refusal_is_passed_on_after_one_call(served: Served, upstream: Upstream) -> None:
    strict(upstream, "seed")
    assert (await served.post("/v1/chat/completions", {**CHAT, "seed": 5})).status == 422
    assert len(upstream.calls) == 1
    strict(upstream, "stream_options", "seed")
    answer = await served.post("/v1/chat/completions", {**CHAT, "seed": 5})
    assert (answer.status, b"seed" in answer.body, len(upstream.calls)) == (422, True, 3)


@pytest.mark.parametrize("stream", [True, False])
async def test_a_translated_call_goes_on_without_the_names_that_the_gateway_chose(
    served: Served, upstream: Upstream, stream: bool
) -> None:
    """As before Mistral, which knows only the older name of the limit."""
    strict(upstream, "stream_options", "max_completion_tokens")
    for question, calls in (("hi", 2 + stream), ("again", 1)):
        upstream.calls.clear()
        asked = {**MESSAGE, "stream": stream, "messages": [{"role": "user", "content": question}]}
        answer = await served.post("/v1/messages", asked)
        assert (answer.status, question.encode() in answer.body, len(upstream.calls)) == (200, True, calls)
        assert upstream.calls[-1].json["max_tokens"] == 9
        assert upstream.calls[-1].json.keys().isdisjoint({"stream_options", "max_completion_tokens"})


async def test_a_limit_whose_value_is_refused_keeps_its_name(served: Served, upstream: Upstream) -> None:
    async def answer(_: web.Request, call: dict[str, Any]) -> web.Response:
        name = "max_tokens" if "max_tokens" in call else "max_completion_tokens"
        return web.json_response({"error": {"message": f"{name} is too large"}}, status=400)

    upstream.answer = answer
    said = await served.post("/v1/messages", {**MESSAGE, "stream": False})
    assert "max_completion_tokens is too large" in said.body.decode()
    strict(upstream)
    await served.post("/v1/messages", {**MESSAGE, "stream": False})
    assert "max_completion_tokens" in upstream.calls[-1].json


async def test_a_limit_that_a_tier_adds_takes_the_older_name(tmp_path: Path, upstream: Upstream) -> None:
    strict(upstream, "max_completion_tokens")
    backends = {name: {"adapter": "openai", "url": upstream.url} for name in ("light", "large")}
    route = "{light: {backend: light, parameters: {max_tokens: 50}}, large: large, escalate_above: 1}"
    policy = BOTH_CACHES.replace("{backend: main}", route)
    async with gateway_of(config_of(tmp_path, backends), policy) as served:
        assert (await served.chat("hi")).status == 200
        assert upstream.calls[-1].json["max_tokens"] == 50
        upstream.calls.clear()
        assert (await served.chat("hi there", max_completion_tokens=90)).status == 422  # the client's own name
    assert len(upstream.calls) == 1


async def test_a_backend_that_is_not_to_report_usage_is_never_asked_for_it(tmp_path: Path, upstream: Upstream) -> None:
    strict(upstream, "stream_options")
    backend = {"adapter": "openai", "url": upstream.url, "stream_usage": False}
    async with gateway_of(config_of(tmp_path, {"main": backend})) as served:
        assert (await served.post("/v1/chat/completions", CHAT)).status == 200
        assert (await served.post("/v1/messages", MESSAGE)).status == 200
        await served.post("/v1/chat/completions", {**CHAT, "seed": 1, "stream_options": {"include_usage": True}})
    assert ["stream_options" in call.json for call in upstream.calls] == [False, False, True]
