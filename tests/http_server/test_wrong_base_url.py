"""A backend whose base URL lacks its version: clients get its own 404, and the log says once what was expected."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import orjson
import pytest
from aiohttp import web

from gateway.upstream.base_url import EXPECTED, ends_in_version, is_model_not_found
from tests.fixtures.gateways import BOTH_CACHES, EXACT_CACHE, NO_CACHE, Answer, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

MESSAGES = [{"role": "user", "content": "hi"}]
ANTHROPIC = {"x-api-key": "k", "anthropic-version": "2023-06-01"}
# The path of a request -> what it has in its body beside the model, the path of the backend that is asked, its headers.
ASKED: Mapping[str, tuple[dict[str, Any], str, dict[str, str]]] = {
    "/v1/chat/completions": ({"messages": MESSAGES}, "/chat/completions", {}),
    "/v1/embeddings": ({"input": "hi"}, "/embeddings", {}),
    "/v1/responses": ({"input": "hi"}, "/responses", {}),
    "/v1/messages": ({"messages": MESSAGES, "max_tokens": 5}, "/chat/completions", ANTHROPIC),
}


@pytest.mark.parametrize(
    ("path", "ends"),
    [
        ("/v1", True),
        ("/openai/v1", True),
        ("/v1beta", True),
        ("/api/v3", True),
        ("", False),
        ("/api", False),
        ("/v1/chat/completions", False),
        ("/version", False),
        ("/v", False),
        ("/xv1", False),
    ],
)
def test_what_ends_in_a_version(path: str, ends: bool) -> None:
    assert ends_in_version(path) is ends


@pytest.mark.parametrize(
    "body",
    [
        {"error": {"message": "The model `x` does not exist", "param": None, "code": "model_not_found"}},  # OpenAI
        {"error": {"message": "not there", "param": "model", "code": 404}},
        {"object": "error", "message": "The model `x` does not exist.", "type": "NotFoundError"},  # vLLM
        {"error": {"message": 'model "x" not found, try pulling it first'}},  # Ollama
        {"error": "model 'x' not found"},
        {"detail": "Model not found"},
        {"error": {"code": "DeploymentNotFound", "message": "The API is not there"}},  # Azure
        [{"error": {"code": 404, "message": "models/x is not found for API version v1main"}}],  # Gemini
    ],
)
def test_what_is_said_of_a_model_is_told_from_what_is_said_of_a_path(body: Any) -> None:
    assert is_model_not_found(orjson.dumps(body))


@pytest.mark.parametrize(
    "body",
    [
        b'{"detail":"Not Found"}',
        b"404 page not found",
        b"",
        b"<html>no such model</html>",
        b'{"error":{"message":"Invalid URL (POST /chat/completions)","param":null,"code":null}}',
        b'{"error":{"code":404,"message":"File Not Found","type":"not_found_error"}}',
        b'{"error":{"code":{},"message":[]}}',
        b'{"error":null}',
        b"[]",
        b"[1]",
        b"7",
    ],
)
def test_what_does_not_speak_of_a_model_may_be_a_wrong_path(body: bytes) -> None:
    assert not is_model_not_found(body)


def root_of(upstream: Upstream) -> str:
    return upstream.url.removesuffix("/v1")


@asynccontextmanager
async def before(folder: Path, url: str, policy: str = NO_CACHE, **backend: Any) -> AsyncIterator[Served]:
    config = config_of(folder, {"main": {"adapter": "openai", "url": url, **backend}})
    async with gateway_of(config, policy) as served:
        yield served


async def asked(served: Served, path: str = "/v1/chat/completions", *, query: str = "", **more: Any) -> Answer:
    body, _, headers = ASKED[path]
    return await served.post(path + query, {"model": "m", **body, **more}, headers)


def warned(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    found = [record for record in caplog.records if record.name == "nearhit" and "base URL" in record.getMessage()]
    assert all(record.getMessage() == "the backend has no such path: is its base URL wrong?" for record in found)
    return [record.fields for record in found]  # type: ignore[attr-defined]


@pytest.mark.parametrize("client", ["own", "aiohttp"])
@pytest.mark.parametrize("policy", [NO_CACHE, EXACT_CACHE, BOTH_CACHES], ids=["straight", "exact", "both"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("kept", [False, True])
async def test_it_is_said_once_and_the_answer_stays_the_backends(
    absent: Upstream,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    client: str,
    policy: str,
    stream: bool,
    kept: bool,
) -> None:
    """On each way to a backend: with and without a cache. `kept`: over a
    connection that is there."""
    async with before(tmp_path, root_of(absent), policy, client=client) as served:
        if kept:
            assert (await served.get("/somewhere")).status == 404
            assert warned(caplog) == []
        for query in ("?key=secret", ""):
            answer = await asked(served, query=query, stream=stream)
            assert (answer.status, answer.json) == (404, {"detail": "Not Found"})
    assert absent.calls[-1].path == "/chat/completions"
    (said,) = warned(caplog)
    assert (said["backend"], said["asked"]) == ("main", root_of(absent) + "/chat/completions")
    assert said["expected"] == EXPECTED
    assert said["id"]


@pytest.mark.parametrize("path", ASKED)
async def test_every_call_tells_it_also_one_that_is_translated(
    absent: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    async with before(tmp_path, root_of(absent) + "/api") as served:
        assert (await asked(served, path)).status == 404
    (said,) = warned(caplog)
    assert said["asked"] == f"{root_of(absent)}/api{ASKED[path][1]}"


async def test_each_backend_has_its_own(absent: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    policy = """
version: 1
routes:
  - {name: other, match: {model: other}, route: {backend: other}}
  - {name: default, match: {}, route: {backend: main}}
"""
    backends = {name: {"adapter": "openai", "url": root_of(absent)} for name in ("main", "other")}
    async with gateway_of(config_of(tmp_path, backends), policy) as served:
        for model in ("m", "other", "m", "other"):
            assert (await asked(served, model=model)).status == 404
    assert [said["backend"] for said in warned(caplog)] == ["main", "other"]


async def test_a_model_that_is_not_known_is_no_wrong_url(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        error = {"message": f"The model `{call['model']}` does not exist", "param": None, "code": "model_not_found"}
        return web.json_response({"error": error}, status=404)

    upstream.answer = answer
    async with before(tmp_path, root_of(upstream)) as served:
        assert (await asked(served)).status == 404
        assert warned(caplog) == []
        upstream.answer = None  # what it has below /v1 alone comes as an echo: no 404, nothing is said
        assert (await asked(served)).status == 200
    assert warned(caplog) == []


async def test_a_url_that_ends_in_a_version_and_what_passes_through_are_not_doubted(
    absent: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with before(tmp_path / "right", absent.url) as served:
        assert (await asked(served)).status == 404
    async with before(tmp_path / "wrong", root_of(absent)) as served:
        assert (await served.get("/somewhere")).status == 404
    assert warned(caplog) == []


async def test_another_protocols_url_needs_no_version(
    absent: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with before(tmp_path, root_of(absent), adapter="anthropic") as served:
        assert (await asked(served, "/v1/messages")).status == 404
    assert [call.path for call in absent.calls] == ["/v1/messages"]
    assert warned(caplog) == []
