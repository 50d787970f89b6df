"""Azure's forms of OpenAI's protocol: its clients are cached as OpenAI's, and its resources serve all clients."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from openai import AsyncAzureOpenAI, AsyncOpenAI, NotFoundError

from gateway.config.load import read_config
from gateway.dialects.known import DIALECTS
from gateway.errors import BadRequest
from gateway.features.azure.base_url import AzureUrl
from gateway.upstream.base_url import BaseUrl
from tests.fixtures.gateways import LOOSE, Served, config_of, gateway_of
from tests.fixtures.upstream import USAGE, Upstream, completion, question_of, stream

VERSION = "2024-10-21"
HI: Any = [{"role": "user", "content": "hi there my friend"}]
FILTERED = {"prompt_filter_results": [{"prompt_index": 0, "content_filter_results": {"hate": {"filtered": False}}}]}


@asynccontextmanager
async def before(upstream: Upstream, folder: Path, **keys: Any) -> AsyncIterator[Served]:
    backends = {"main": {"adapter": "openai", "url": upstream.url, **keys}}
    async with gateway_of(config_of(folder, backends), LOOSE, {"AZURE_KEY": "of-the-gateway"}) as served:
        yield served


def azure_client(served: Served, **keys: Any) -> AsyncAzureOpenAI:
    keys = {"api_key": "of-the-client", "max_retries": 0, **keys}
    return AsyncAzureOpenAI(azure_endpoint=served.url, api_version=VERSION, **keys)


def resource(upstream: Upstream) -> None:
    """Let the endpoint answer as a resource of Azure does, and refuse what that refuses."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        assert "api-version" in request.query
        *_, deployments, name, operation = ("", "", *request.path.split("/", 4)[1:])
        if deployments != "deployments" or "missing" in name:
            error = {"code": "DeploymentNotFound", "message": "The API deployment for this resource does not exist."}
            return web.json_response({"error": error}, status=404)
        call = {**call, "model": "gpt-4o-2024-08-06"}
        if operation == "embeddings":
            data = [{"object": "embedding", "index": 0, "embedding": [0.5, 0.25]}]
            return web.json_response({"object": "list", "data": data, "model": call["model"], "usage": USAGE})
        text = f"{name} answers: {question_of(call)}"
        if call.get("stream"):
            return await stream(request, call, text)
        return web.json_response({**completion(call, text), **FILTERED})

    upstream.answer = answer
    upstream.url = upstream.url.removesuffix("/v1")


async def test_azures_client_is_cached_by_meaning_whatever_endpoint_answers(upstream: Upstream, tmp_path: Path) -> None:
    async with before(upstream, tmp_path) as served, azure_client(served) as client:

        async def verdict(question: str, **more: Any) -> tuple[str | None, str]:
            messages: Any = [{"role": "user", "content": question}]
            raw = await client.chat.completions.with_raw_response.create(model="gpt-4o", messages=messages, **more)
            await served.settle()
            return raw.parse().choices[0].message.content, raw.headers["Cache-Status"]

        text, status = await verdict("alpha beta gamma delta epsilon")
        assert status.startswith("nearhit; fwd=miss")
        assert (await verdict("alpha beta gamma delta epsilon"))[1].startswith("nearhit; hit; detail=exact")
        assert await verdict("alpha beta gamma delta zeta") == (text, "nearhit; hit; detail=semantic")
        streamed = await client.chat.completions.create(
            model="gpt-4o", messages=[{"role": "user", "content": "alpha beta gamma delta epsilon"}], stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in streamed if chunk.choices]
        assert "".join(pieces) == text
        vectors = [await client.embeddings.create(model="ada", input=["a", "b"]) for _ in range(2)]
        assert [each.index for each in vectors[1].data] == [0, 1]
    assert [(call.path, call.json["model"]) for call in upstream.calls] == [
        (f"/v1/chat/completions?api-version={VERSION}", "gpt-4o"),
        (f"/v1/embeddings?api-version={VERSION}", "ada"),
    ]
    assert upstream.calls[0].headers["Authorization"] == "Bearer of-the-client"
    assert "api-key" not in upstream.calls[0].headers


async def test_one_who_has_another_key_or_names_another_deployment_gets_another_answer(
    upstream: Upstream, tmp_path: Path
) -> None:
    async with before(upstream, tmp_path) as served:
        for key, deployment in (("one", "a"), ("two", "a"), ("one", "b"), ("one", "a")):
            async with azure_client(served, api_key=key, azure_deployment=deployment) as client:
                await client.chat.completions.create(model="ignored", messages=HI)
    assert [call.json["model"] for call in upstream.calls] == ["a", "a", "b"]


async def test_a_resource_serves_azures_clients_as_it_did_when_they_passed_through(
    upstream: Upstream, tmp_path: Path
) -> None:
    """Without any setting, an endpoint whose URL has no version gets the path and the key that the client sent."""
    resource(upstream)
    async with before(upstream, tmp_path) as served, azure_client(served) as client:
        for _ in range(2):
            answer = await client.chat.completions.create(model="gpt-4o", messages=HI)
        assert answer.model == "gpt-4o-2024-08-06"
        assert answer.to_dict()["prompt_filter_results"] == FILTERED["prompt_filter_results"]
        with pytest.raises(NotFoundError, match="The API deployment"):
            await client.chat.completions.create(model="missing", messages=HI)
        await client.embeddings.create(model="ada", input=["one of several"])
    paths = [call.path for call in upstream.calls]
    assert paths[0] == f"/openai/deployments/gpt-4o/chat/completions?api-version={VERSION}"
    assert paths[2] == f"/openai/deployments/ada/embeddings?api-version={VERSION}"
    assert {call.headers.get("api-key") for call in upstream.calls} == {"of-the-client"}


@pytest.mark.parametrize("below", ["", "/openai", "/openai/deployments/fixed"])
async def test_a_dated_resource_serves_every_client_with_the_gateways_key(
    upstream: Upstream, tmp_path: Path, below: str
) -> None:
    resource(upstream)
    upstream.url += below
    keys: dict[str, Any] = {"api_key_env": "AZURE_KEY", "api_version": VERSION, "models": {"claude*": "gpt-4o"}}
    async with before(upstream, tmp_path, **keys) as served:
        async with AsyncOpenAI(base_url=served.url + "/v1", api_key="of-the-client", max_retries=0) as client:
            for stream_it in (False, True, False):
                await client.chat.completions.create(model="o/4 mini", messages=HI, stream=stream_it)
        async with azure_client(served) as client:
            await client.chat.completions.create(model="gpt-4o", messages=HI, seed=1)
        message = {"model": "claude-x", "max_tokens": 9, "messages": HI}
        answer = await served.post("/v1/messages", message, {"x-api-key": "of-the-client"})
        assert answer.json["content"][0]["text"].endswith("answers: hi there my friend")
    names = ["fixed"] * 3 if "fixed" in below else ["o%2F4%20mini", "gpt-4o", "gpt-4o"]
    assert [call.path for call in upstream.calls] == [
        f"/openai/deployments/{name}/chat/completions?api-version={VERSION}" for name in names
    ]
    for call in upstream.calls:
        assert call.headers["api-key"] == "of-the-gateway"
        assert "of-the-client" not in str(call.headers)


async def test_a_signed_token_goes_to_azure_as_a_bearer_token(upstream: Upstream, tmp_path: Path) -> None:
    resource(upstream)
    token = "eyJhbGciOiJub25lIn0.e30.c2ln"
    (tmp_path / "key").write_text(token)
    keys = {"api_key_file": str(tmp_path / "key"), "api_version": VERSION}
    async with before(upstream, tmp_path / "data", **keys) as served:
        await served.chat("hi")
        (tmp_path / "key").write_text("a-plain-key")
        await served.chat("ho")
    first, second = (call.headers for call in upstream.calls)
    assert (first.get("Authorization"), first.get("api-key")) == (f"Bearer {token}", None)
    assert (second.get("Authorization"), second.get("api-key")) == (None, "a-plain-key")


async def test_azures_v1_api_is_cached_and_its_other_paths_pass(upstream: Upstream, tmp_path: Path) -> None:
    async with before(upstream, tmp_path) as served:
        async with AsyncOpenAI(base_url=served.url + "/openai/v1", api_key="k", max_retries=0) as client:
            for _ in range(2):
                await client.chat.completions.create(model="gpt-4o", messages=HI)
        files = await served.get("/openai/v1/files?api-version=preview")
        assert files.headers["x-echo-path"] == "/v1/files?api-version=preview"
    assert upstream.calls[0].path == "/v1/chat/completions"
    assert len(upstream.calls) == 2


@pytest.mark.parametrize("model", [None, "another"])
def test_the_deployment_is_the_model_whatever_the_body_says(model: str | None) -> None:
    body = {"messages": HI} | ({} if model is None else {"model": model})
    call = DIALECTS["azure"].parse("/openai/deployments/mine/chat/completions", json.dumps(body).encode(), {})
    assert (call.model, call.body["model"], call.path) == ("mine", "mine", "/v1/chat/completions")
    assert call.dialect.name == "openai"


RESPONSES = {
    "/openai/responses": {"": "/openai/responses", "/openai/v1": "/openai/v1/responses", "/v1": "/v1/responses"},
    "/openai/v1/responses": {"": "/openai/v1/responses", "/openai/v1": "/openai/v1/responses"},
    "/openai/deployments/o.4/responses": {
        "": "/openai/deployments/o.4/responses",
        "/openai/v1": "/openai/v1/responses",
    },
}


@pytest.mark.parametrize("below", ["", "/openai/v1", "/v1"])
async def test_responses_of_azures_clients_go_to_the_api_that_they_were_sent_to(
    upstream: Upstream, tmp_path: Path, below: str
) -> None:
    """Azure's v1 API refuses the dated versions of the clients of the dated one."""
    upstream.url = upstream.url.removesuffix("/v1") + below
    asked = {path: sent for path, ways in RESPONSES.items() if (sent := ways.get(below))}
    async with before(upstream, tmp_path) as served:
        for path in asked:
            await served.post(f"{path}?api-version=preview", {"model": "o.4", "input": "hi"}, {"api-key": "k"})
    assert [call.path.partition("?")[0] for call in upstream.calls] == [*asked.values()]
    assert {call.json["model"] for call in upstream.calls} == {"o.4"}


async def test_the_path_of_responses_names_their_model(upstream: Upstream, tmp_path: Path) -> None:
    async with before(upstream, tmp_path) as served:
        await served.post("/openai/deployments/o.4/responses", {"input": "hi"})
        await served.post("/openai/deployments/o.4/responses", {"model": "another", "input": "ho"})
    assert [(call.path, call.json["model"]) for call in upstream.calls] == [("/v1/responses", "o.4")] * 2


@pytest.mark.parametrize("name", ["%ff", "%C3"])
def test_a_deployment_whose_name_is_no_text_is_refused(name: str) -> None:
    with pytest.raises(BadRequest, match="not UTF-8"):
        DIALECTS["azure"].parse(
            f"/openai/deployments/{name}/chat/completions", json.dumps({"messages": HI}).encode(), {}
        )


async def test_a_model_that_steps_within_a_path_is_refused(upstream: Upstream, tmp_path: Path) -> None:
    resource(upstream)
    async with before(upstream, tmp_path, api_version=VERSION) as served:
        for name in (".", ".."):
            assert (await served.chat("hi", model=name)).status == 400
    assert not upstream.calls


def test_a_body_that_is_no_chat_is_refused_as_openais_is() -> None:
    with pytest.raises(BadRequest, match="messages"):
        DIALECTS["azure"].parse("/openai/deployments/mine/chat/completions", b'{"messages": []}', {})


V1, ROOT, ONE = "https://h/openai/v1", "https://h", "https://h/openai/deployments/d"
TARGETS = {
    (V1, "/openai/deployments/m/chat/completions", "api-version=2024-10-21"): "/openai/v1/chat/completions",
    (V1, "/openai/deployments/m/embeddings", "api-version=preview"): "/openai/v1/embeddings?api-version=preview",
    (V1, "/openai/deployments/m/images/generations", "a=1&api-version=2024-10-21"): "/openai/v1/images/generations?a=1",
    (V1, "/openai/v1/responses", ""): "/openai/v1/responses",
    (V1, "/openai/responses/resp_1", ""): "/openai/v1/responses/resp_1",
    (V1, "/openai/models", "api-version=2024-10-21"): "/openai/v1/models",
    (V1, "/openai/files/f", "api-version=2024-10-21&limit=1"): "/openai/v1/files/f?limit=1",
    ("https://h/v1", "/openai/deployments/a/b/chat/completions", ""): "/v1/chat/completions",
    ("https://h/v1", "/openai/threads", ""): "/openai/threads",
    ("https://h/v1", "/openai/deployments/m/extensions/chat/completions", ""): "/openai/deployments/m/extensions/"
    "chat/completions",
    (ROOT, "/openai/deployments/m/chat/completions", "api-version=1"): "/openai/deployments/m/chat/completions"
    "?api-version=1",
    (ROOT + "/openai", "/openai/v1/models", ""): "/openai/v1/models",
    (ROOT, "/v1/chat/completions", ""): "/chat/completions",
    (ONE, "/openai/deployments/m/chat/completions", "api-version=1"): "/openai/deployments/d/chat/completions"
    "?api-version=1",
}


@pytest.mark.parametrize(("asked", "sent"), TARGETS.items())
def test_a_path_in_azures_form_becomes_that_of_the_endpoint(asked: tuple[str, str, str], sent: str) -> None:
    url, path, query = asked
    assert BaseUrl("main", url, is_versioned=True).target(path, query) == sent


def test_a_dated_resource_gets_its_version_unless_the_client_names_one() -> None:
    base = AzureUrl("main", ROOT, VERSION)
    assert base.target("/v1/models", "") == f"/openai/models?api-version={VERSION}"
    assert base.target("/v1/responses", "api-version=preview") == "/openai/responses?api-version=preview"
    assert base.target("/openai/models", "API-Version=1") == "/openai/models?API-Version=1"
    assert base.target("/v1/files", "limit=3") == f"/openai/files?limit=3&api-version={VERSION}"
    assert base.target("/openai/v1/models", "") == "/openai/v1/models"
    assert base.target("/other", "") == f"/other?api-version={VERSION}"


URL_FAULTS = {
    f"{ONE}/chat/completions, api_version: {VERSION}": "api_version: is of the API with dates and the URL is",
    f"'{ONE}/chat/completions?api-version={VERSION}'": "url: the URL has an api-version, expected a URL such as",
}


@pytest.mark.parametrize(("url", "fault"), URL_FAULTS.items())
def test_a_target_that_is_copied_from_azures_pages_is_a_fault_with_a_way_out(
    tmp_path: Path, url: str, fault: str
) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(f"version: 1\nbackends:\n  main: {{adapter: openai, url: {url}}}\n")
    (found,) = read_config(file, {}).faults
    assert f"{'.'.join(map(str, found.path))}: {found.message}".startswith(f"backends.main.{fault}")
