"""The official OpenAI client, unchanged, before the gateway: every answer and every error is of the SDK's own types."""

from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
from aiohttp import web
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from gateway.dialects.openai.answers import embeddings
from gateway.upstream import input_batch
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, completion, stream
from tests.http_server.conftest import openai_client

ASK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "Which ports does it listen on?"}]}
ANSWER = "upstream answers: Which ports does it listen on?"


async def collected(client: openai.AsyncOpenAI, **fields: Any) -> list[ChatCompletionChunk]:
    return [chunk async for chunk in await client.chat.completions.create(stream=True, **ASK, **fields)]


def text_of(chunks: list[ChatCompletionChunk]) -> str:
    return "".join(choice.delta.content or "" for chunk in chunks for choice in chunk.choices)


async def test_a_chat_answer_arrives_with_its_usage(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(**ASK)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert answer.usage is not None
    assert answer.usage.total_tokens == 12


async def test_a_hit_is_the_same_answer_to_the_client(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    first, second = [await client.chat.completions.create(**ASK) for _ in range(2)]
    assert first == second
    assert len(upstream.chats) == 1


async def test_a_stream_arrives_in_chunks_and_ends_with_its_finish(client: openai.AsyncOpenAI) -> None:
    chunks = await collected(client)
    assert text_of(chunks) == ANSWER
    assert len([c for c in chunks if c.choices and c.choices[0].delta.content]) > 1
    assert chunks[-1].choices[0].finish_reason == "stop"


async def test_a_hit_on_a_streamed_answer_says_the_same(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    first, second = await collected(client), await collected(client)
    assert first == second
    assert len(upstream.chats) == 1


async def test_stream_and_whole_share_one_entry(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    streamed = await collected(client)
    whole = await client.chat.completions.create(**ASK)
    assert whole.choices[0].message.content == text_of(streamed)
    assert whole.usage is not None  # the gateway asked for it, though the client of the stream did not
    assert whole.usage.total_tokens == 12
    assert len(upstream.chats) == 1


async def test_the_usage_comes_in_a_stream_to_whom_asked_for_it_and_to_nobody_else(client: openai.AsyncOpenAI) -> None:
    """One miss and hits on it: the entry holds the usage, each client sees what it asked for."""
    for _ in range(2):
        without = await collected(client)
        assert all(chunk.usage is None for chunk in without)
        explicit = await collected(client, stream_options={"include_usage": False})
        assert all(chunk.usage is None for chunk in explicit)
        *chunks, last = await collected(client, stream_options={"include_usage": True})
        assert all(chunk.usage is None for chunk in chunks)
        assert last.choices == []
        assert last.usage is not None
        assert last.usage.total_tokens == 12


async def test_completions_are_answered(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model="m", prompt="Once upon")
    assert answer.choices[0].text == "upstream completes: Once upon"


async def test_a_cached_completion_is_streamed_to_whom_wants_a_stream(
    client: openai.AsyncOpenAI, upstream: Upstream
) -> None:
    await client.completions.create(model="m", prompt="Once upon")
    chunks = [c async for c in await client.completions.create(model="m", prompt="Once upon", stream=True)]
    assert "".join(choice.text for c in chunks for choice in c.choices) == "upstream completes: Once upon"
    assert chunks[-1].choices[0].finish_reason == "stop"
    assert len(upstream.calls) == 1


@pytest.mark.parametrize("given", ["one", ["one", "two", "three"]])
async def test_embeddings_arrive_as_base64_by_default_and_as_floats_on_request(
    client: openai.AsyncOpenAI, upstream: Upstream, given: str | list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The client asks for base64 by itself and decodes it: what it hands out is floats both ways."""
    monkeypatch.setattr(input_batch, "QUIET_S", 600.0)  # a loaded machine may look up one input later than the others
    vectors = [[0.5, -0.25, 1.0], [0.0, 2.0, 3.0], [4.0, 5.0, 6.0]][: 1 if isinstance(given, str) else 3]

    async def answer(_: web.Request, call: dict[str, Any]) -> web.Response:
        packed = call.get("encoding_format") == "base64"
        return web.Response(body=embeddings(vectors, "m", base64=packed), content_type="application/json")

    upstream.answer = answer
    by_default = await client.embeddings.create(model="m", input=given)
    as_floats = await client.embeddings.create(model="m", input=given, encoding_format="float")
    assert [call.json["encoding_format"] for call in upstream.calls] == ["base64", "float"]
    for result in (by_default, as_floats):
        np.testing.assert_array_equal([item.embedding for item in result.data], vectors)
        assert [item.index for item in result.data] == list(range(len(vectors)))


async def test_models_are_listed_and_retrieved(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    async def answer(request: web.Request, _: dict[str, Any]) -> web.Response:
        model = {"id": "org/m", "object": "model", "created": 1, "owned_by": "us"}
        listing = request.path == "/v1/models"
        return web.json_response({"object": "list", "data": [model]} if listing else model)

    upstream.answer = answer
    assert [model.id async for model in client.models.list()] == ["org/m"]
    assert (await client.models.retrieve("org/m")).owned_by == "us"
    assert [call.path for call in upstream.calls] == ["/v1/models", "/v1/models/org%2Fm"]


@pytest.mark.parametrize("stubborn", [False, True])
async def test_a_server_that_compresses_its_list_of_models_is_in_the_list(
    tiered: Served, light: Upstream, large: Upstream, stubborn: bool
) -> None:
    """The official client accepts gzip, and the gateway asks for none. Some servers compress all the same."""
    light_models = {"object": "list", "data": [{"id": "packed", "object": "model"}]}

    async def answer(request: web.Request, _: dict[str, Any]) -> web.Response:
        response = web.json_response(light_models)
        if stubborn or "gzip" in request.headers.get("Accept-Encoding", ""):
            response.enable_compression(web.ContentCoding.gzip)
        return response

    light.answer = answer
    async with openai_client(tiered) as client:
        assert {model.id async for model in client.models.list()} == {"packed", "large-model"}


async def test_the_models_of_all_tiers_are_one_list(tiered: Served, light: Upstream, large: Upstream) -> None:
    async with openai_client(tiered) as client:
        assert [model.id async for model in client.models.list()] == ["light-model", "large-model"]
        assert (await client.models.retrieve("large-model")).id == "large-model"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("none-such")


async def test_raw_responses_show_what_the_gateway_did(client: openai.AsyncOpenAI) -> None:
    miss, hit = [await client.chat.completions.with_raw_response.create(**ASK) for _ in range(2)]
    assert isinstance(hit.parse(), ChatCompletion)
    assert miss.headers["cache-status"] == "nearhit; fwd=miss; stored"
    assert miss.headers["x-nearhit-backend"] == "main"
    assert hit.headers["cache-status"].startswith("nearhit; hit; detail=exact; ttl=")
    assert hit.headers["age"].isdigit()


async def test_credentials_go_upstream_as_they_came(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    await client.chat.completions.create(**ASK)
    assert upstream.calls[0].headers["Authorization"] == "Bearer sk-test"


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (400, openai.BadRequestError),
        (401, openai.AuthenticationError),
        (403, openai.PermissionDeniedError),
        (404, openai.NotFoundError),
        (422, openai.UnprocessableEntityError),
        (429, openai.RateLimitError),
        (500, openai.InternalServerError),
        (503, openai.InternalServerError),
    ],
)
@pytest.mark.parametrize("streamed", [False, True])
async def test_an_error_of_the_upstream_arrives_as_the_sdks_own(
    client: openai.AsyncOpenAI, upstream: Upstream, status: int, error: type[openai.APIStatusError], streamed: bool
) -> None:
    """Status, body and headers as the upstream sent them; and nothing of it is stored."""

    async def answer(_: web.Request, __: dict[str, Any]) -> web.Response:
        body = {"error": {"message": "no", "type": "of_the_upstream", "param": None, "code": "c"}}
        return web.json_response(body, status=status, headers={"Retry-After": "0", "x-ratelimit-limit-requests": "9"})

    upstream.answer = answer
    with pytest.raises(error) as caught:
        await client.chat.completions.create(**ASK, stream=streamed)
    assert caught.value.type == "of_the_upstream"
    assert caught.value.code == "c"
    assert caught.value.response.headers["retry-after"] == "0"
    assert caught.value.response.headers["x-ratelimit-limit-requests"] == "9"
    upstream.answer = None
    assert (await client.chat.completions.create(**ASK)).choices[0].message.content == ANSWER
    assert len(upstream.chats) == (3 if status == 503 else 2), "a lone upstream that is overloaded is asked once more"


async def test_what_the_gateway_itself_refuses_is_a_bad_request(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    with pytest.raises(openai.BadRequestError, match="'n' is 0"):
        await client.chat.completions.create(**ASK, n=0)
    assert upstream.calls == []


async def test_a_key_that_the_gateway_does_not_know_is_an_authentication_error(
    upstream: Upstream, tmp_path: Path
) -> None:
    """With keys of its own the gateway judges them, and none of them goes upstream."""
    auth = {"mode": "keys", "keys": {"acme": [hashlib.sha256(b"sk-acme").hexdigest()]}}
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, auth=auth)
    async with gateway_of(config) as served, openai_client(served) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.chat.completions.create(**ASK)
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()
        assert upstream.calls == []
        known = client.with_options(api_key="sk-acme")
        assert (await known.chat.completions.create(**ASK)).choices[0].message.content == ANSWER
    assert "Authorization" not in upstream.calls[0].headers


async def test_an_unreachable_upstream_is_a_server_error(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    async def answer(request: web.Request, _: dict[str, Any]) -> web.StreamResponse:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    upstream.answer = answer
    with pytest.raises(openai.InternalServerError) as caught:
        await client.chat.completions.create(**ASK)
    assert caught.value.status_code == 502
    assert caught.value.type == "upstream_error"


async def test_leaving_a_stream_early_leaves_the_client_usable(client: openai.AsyncOpenAI, upstream: Upstream) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, "one two three", between=asyncio.Event().wait)

    upstream.answer = answer
    async with await client.chat.completions.create(**ASK, stream=True) as chunks:
        await anext(aiter(chunks))
    async with asyncio.timeout(120):
        await upstream.left.wait()
    upstream.answer = None
    assert (await client.chat.completions.create(**ASK)).choices[0].message.content == ANSWER


async def test_what_the_sdk_does_not_know_reaches_it_all_the_same(
    client: openai.AsyncOpenAI, upstream: Upstream
) -> None:
    async def answer(_: web.Request, call: dict[str, Any]) -> web.Response:
        body = completion(call, "yes", reasoning_content="because")
        return web.json_response({**body, "service_tier": "default", "of_the_vendor": {"a": 1}})

    upstream.answer = answer
    for _ in range(2):
        result = await client.chat.completions.create(**ASK, extra_body={"top_k": 5})
        assert result.choices[0].message.to_dict()["reasoning_content"] == "because"
        assert result.to_dict()["of_the_vendor"] == {"a": 1}
    assert [call.json["top_k"] for call in upstream.calls] == [5]


FAULTS: list[tuple[dict[str, Any], str, str]] = [
    ({"messages": []}, "messages", "'messages' is an empty array: expected a non-empty array"),
    (
        {"messages": [{"role": "user", "content": "hi"}, {"role": "user", "content": 7}]},
        "messages[1].content",
        "'messages[1].content' is 7: expected a string or an array of parts",
    ),
    ({"messages": [{"content": "hi"}]}, "messages[0].role", "'messages[0].role' is missing: expected a string"),
    (
        {"messages": [{"role": "user", "content": [{"type": "text", "text": None}]}]},
        "messages[0].content[0].text",
        "'messages[0].content[0].text' is null: expected a string",
    ),
    ({"temperature": "warm"}, "temperature", "'temperature' is a string: expected a number"),
    ({"max_tokens": "my secret"}, "max_tokens", "'max_tokens' is a string: expected an integer"),
    ({"model": ""}, "model", "'model' is an empty string: expected a non-empty string"),
]


@pytest.mark.parametrize(("fields", "param", "message"), FAULTS)
async def test_an_error_names_the_parameter_what_was_expected_and_what_was_found(
    client: openai.AsyncOpenAI, upstream: Upstream, fields: dict[str, Any], param: str, message: str
) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await client.chat.completions.create(**{**ASK, **fields})
    error = raised.value
    assert (error.param, error.type) == (param, "invalid_request_error")
    assert error.body == {"message": message, "type": "invalid_request_error", "param": param, "code": None}
    assert upstream.calls == []


async def test_errors_of_responses_and_embeddings_name_the_parameter(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await client.responses.create(model="m", input=[{"role": 7, "content": "hi"}])  # type: ignore[list-item, misc]
    assert raised.value.param == "input[0].role"
    with pytest.raises(openai.BadRequestError) as raised:
        await client.embeddings.create(model="m", input=[])
    assert raised.value.param == "input"


async def test_what_no_parameter_is_at_fault_for_names_none(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as raised:
        await client.chat.completions.create(**ASK, extra_headers={"x-latency-budget-ms": "soon"})
    assert raised.value.param is None
