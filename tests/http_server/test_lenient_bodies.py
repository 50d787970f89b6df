"""Bodies that clients send and that have one meaning: with a byte order mark, or without a model that the backend
sets."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.fixtures.anthropic_upstream import anthropic as speaking_anthropic
from tests.fixtures.gateways import BOTH_CACHES, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

BOM = b"\xef\xbb\xbf"
SAY = [{"role": "user", "content": "hi"}]
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAY},
    "/v1/completions": {"prompt": "hi"},
    "/v1/embeddings": {"input": "hi"},
}


@pytest.mark.parametrize("path", BODIES)
async def test_a_body_with_a_byte_order_mark_is_the_body_without_it(
    served: Served, upstream: Upstream, path: str
) -> None:
    body = json.dumps({"model": "m", **BODIES[path]}).encode()
    first = await served.post(path, BOM + body)
    assert first.status == 200
    assert upstream.calls[0].body.startswith(b"{")
    assert "hit; detail=exact" in (await served.post(path, body)).cache_status
    assert "hit; detail=exact" in (await served.post(path, BOM + body)).cache_status


@pytest.mark.parametrize("absent", [{}, {"model": None}], ids=["missing", "null"])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_body_without_a_model_goes_to_a_backend_that_sets_one(
    upstream: Upstream, tmp_path: Path, absent: dict[str, Any], stream: bool
) -> None:
    backend = {"adapter": "openai", "url": upstream.url, "model": "theirs"}
    async with gateway_of(config_of(tmp_path, {"main": backend})) as served:
        for path, body in {**BODIES, "/v1/messages": {"messages": SAY, "max_tokens": 9}}.items():
            answer = await served.post(path, {**absent, **body, **({"stream": True} if stream else {})})
            assert (answer.status, upstream.calls[-1].json["model"]) == (200, "theirs"), path


@pytest.mark.parametrize("path", [*BODIES, "/v1/responses", "/v1/messages"])
@pytest.mark.parametrize("adapter", ["openai", "anthropic"])
async def test_a_body_without_a_model_is_refused_where_no_backend_sets_one(
    upstream: Upstream, tmp_path: Path, path: str, adapter: str
) -> None:
    body = BODIES.get(path) or ({"input": "hi"} if path == "/v1/responses" else {"messages": SAY, "max_tokens": 9})
    async with gateway_of(config_of(tmp_path, {"main": {"adapter": adapter, "url": upstream.url}})) as served:
        answer = await served.post(path, body)
        assert answer.status == 400
        if "translat" not in answer.json["error"]["message"]:
            assert answer.json["error"]["message"] == "'model' is missing: expected a non-empty string"
        assert (await served.gateway.parts.store.stats()).entries == 0
    assert upstream.calls == []


async def test_another_backend_of_the_route_may_set_the_model(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    """A route chooses by complexity, and goes on to the next backend without counting a failure."""
    backends = {
        "light": {"adapter": "openai", "url": light.url},
        "large": {"adapter": "openai", "url": large.url, "model": "theirs"},
    }
    policy = BOTH_CACHES.replace("{backend: main}", "{light: light, large: large, escalate_above: 1}")
    async with gateway_of(config_of(tmp_path, backends), policy) as served:
        answer = await served.post("/v1/chat/completions", {"messages": SAY})
    assert (answer.status, light.calls, large.calls[0].json["model"]) == (200, [], "theirs")


async def test_an_anthropic_backend_may_set_the_model(upstream: Upstream, tmp_path: Path) -> None:
    speaking_anthropic(upstream)
    backend = {"adapter": "anthropic", "url": upstream.url, "model": "theirs"}
    async with gateway_of(config_of(tmp_path, {"main": backend})) as served:
        for path in ("/v1/chat/completions", "/v1/messages"):
            answer = await served.post(path, {"messages": SAY, "max_tokens": 9}, {"Authorization": "Bearer sk"})
            assert (answer.status, upstream.calls[-1].json["model"]) == (200, "theirs")


async def test_tokens_are_counted_of_a_body_with_a_byte_order_mark(served: Served, upstream: Upstream) -> None:
    async def answer(_: web.Request, __: dict[str, Any]) -> web.Response:
        return web.json_response({"error": {"message": "no such path"}}, status=404)

    upstream.answer = answer
    body = json.dumps({"model": "m", "messages": SAY}).encode()
    plain = await served.post("/v1/messages/count_tokens", body)
    marked = await served.post("/v1/messages/count_tokens", BOM + body)
    assert (marked.status, marked.body) == (200, plain.body)
