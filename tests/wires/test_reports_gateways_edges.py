"""Reports about gateways, rebuilt: paths, queries, preflights and forms that clients and servers use at the edges."""

from __future__ import annotations

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.anthropic_upstream import anthropic as speaking_anthropic
from tests.fixtures.gateways import BOTH_CACHES, NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream, stream
from tests.wires.test_reports_gateways_usage import ASK, CLAUDE

PAGE = "https://chat.example"


@pytest.mark.parametrize("path", ["/", "/api/hello"])
async def test_the_probes_of_claude_code_are_answered(upstream: Upstream, tmp_path: Path, path: str) -> None:
    """headroomlabs-ai/headroom #2032: `HEAD /` is a 405, and Claude Code takes the endpoint for down."""
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, NO_CACHE) as served, served.session.head(served.url + path) as response:
        assert response.status == 200


@pytest.mark.parametrize("policy", [BOTH_CACHES, NO_CACHE], ids=["cached", "not cached"])
@pytest.mark.parametrize("speaks", ["openai", "anthropic"])
async def test_the_query_of_claude_code_goes_to_claude_only(
    upstream: Upstream, tmp_path: Path, policy: str, speaks: str
) -> None:
    """Wei-Shaw/sub2api #775 misses `?beta=true` at Claude; farion1231/cc-switch #1051 has it at OpenAI's paths."""
    if speaks == "anthropic":
        speaking_anthropic(upstream)
    config = config_of(tmp_path, {"main": {"adapter": speaks, "url": upstream.url}})
    async with gateway_of(config, policy) as served:
        assert (await served.post("/v1/messages?beta=true", ASK, CLAUDE)).status == 200
    expected = {"openai": "/v1/chat/completions", "anthropic": "/v1/messages?beta=true"}
    assert [call.path for call in upstream.calls] == [expected[speaks]]


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/messages"])
async def test_a_preflight_needs_no_key(upstream: Upstream, tmp_path: Path, path: str) -> None:
    """Oaklight/llm-rosetta #404: browsers send no key with a preflight; a 401 ends what they wanted to ask."""
    config = config_of(
        tmp_path,
        {"main": {"adapter": "openai", "url": upstream.url}},
        auth={"mode": "keys", "keys": {"acme": [hashlib.sha256(b"sk-acme").hexdigest()]}},
        server={"cors": {"origins": [PAGE]}},
    )
    ask = {"Origin": PAGE, "Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
    async with gateway_of(config, BOTH_CACHES) as served:
        async with served.session.options(served.url + path, headers=ask) as response:
            assert response.status == 204
            assert response.headers["Access-Control-Allow-Origin"] == PAGE
        refused = await served.post(path, ASK, {"Origin": PAGE})
        assert (refused.status, refused.headers["Access-Control-Allow-Origin"]) == (401, PAGE)


@pytest.mark.parametrize("given", [[5, 6, 7], [[5, 6], [7]], ["a", "b"], "a"], ids=str)
async def test_tokens_are_inputs_of_embeddings(served: Served, upstream: Upstream, given: Any) -> None:
    """tensorzero/tensorzero #4334: only texts are accepted."""
    for _ in range(2):
        answer = await served.post("/v1/embeddings", {"model": "m", "input": given})
        assert answer.status == 200
        assert len(answer.json["data"]) == (2 if isinstance(given, list) and not isinstance(given[0], int) else 1)
    assert [call.json["input"] for call in upstream.calls] == [given]


async def test_lines_of_json_arrive_one_by_one(served: Served, upstream: Upstream) -> None:
    """higress-group/higress #3149, open-webui/open-webui #1891: Ollama's own streams come all at once."""
    more = asyncio.Event()

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
        await response.prepare(request)
        await response.write(b'{"message":{"content":"one"},"done":false}\n')
        await more.wait()
        await response.write(b'{"message":{"content":"two"},"done":true}\n')
        return response

    upstream.answer = answer
    async with served.session.post(f"{served.url}/api/chat", json={**ASK, "stream": True}) as response:
        assert response.headers["Content-Type"] == "application/x-ndjson"
        assert response.headers["X-Accel-Buffering"] == "no"  # as CopilotKit/aimock #175 has it
        assert json.loads(await response.content.readline())["message"]["content"] == "one"
        more.set()
        assert json.loads(await response.content.readline())["message"]["content"] == "two"


@pytest.mark.parametrize("policy", [BOTH_CACHES, NO_CACHE], ids=["cached", "not cached"])
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
@pytest.mark.parametrize("asked", [{}, {"stream": False}], ids=["unsaid", "false"])
async def test_a_stream_that_nobody_asked_for_becomes_a_whole_answer(
    upstream: Upstream, tmp_path: Path, policy: str, path: str, asked: dict[str, Any]
) -> None:
    """BYK/loreai #605: DeepSeek answers `stream: false` with events, and the proxy reads them as JSON."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await stream(request, call, "in the shed")

    upstream.answer = answer
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy) as served:
        for _ in range(2):
            answered = await served.post(path, {**ASK, **asked}, CLAUDE if path == "/v1/messages" else None)
            assert answered.status == 200
            said = answered.json["content"][0]["text"] if path == "/v1/messages" else answered.text
            assert said == "in the shed"


@pytest.mark.parametrize("fails", ["refused", "cut", "late"])
async def test_a_key_in_a_query_is_told_to_nobody(
    upstream: Upstream, tmp_path: Path, caplog: pytest.LogCaptureFixture, fails: str
) -> None:
    """nyroway/nyro #68, BerriAI/litellm #39293: the error of the HTTP client has the whole URL, which then stands in
    the logs, and in the answer to whoever asked."""

    async def answer(request: web.Request) -> web.StreamResponse:
        if fails == "late":
            await asyncio.sleep(3)
        if request.transport is not None:
            request.transport.abort()
        return web.Response()

    async def chat(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return await answer(request)

    upstream.answer = chat
    url = "http://127.0.0.1:9" if fails == "refused" else upstream.url
    backend = {"adapter": "openai", "url": url, "timeouts": {"first_byte": "300ms"}}
    caplog.set_level("DEBUG")
    async with gateway_of(config_of(tmp_path, {"main": backend}), NO_CACHE) as served:
        for path in ("/v1/chat/completions?key=SECRET-1", "/v1/moderations?key=SECRET-1"):
            told = await served.post(path, ASK, {"Authorization": "Bearer SECRET-2"})
            assert told.status >= 400
            assert b"SECRET" not in told.body
    assert "SECRET" not in caplog.text
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert not any(b"SECRET" in data for data in written)
