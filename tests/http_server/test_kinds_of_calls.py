"""Compactions and realtime sessions are routed by their model, counted and limited; a key with models may use them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import WSServerHandshakeError, web
from openai import AsyncOpenAI

from tests.admin.keys import ADMIN, bearer, create, keyed
from tests.fixtures.gateways import EXACT_CACHE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream

POLICY = """
version: 1
routes:
  - name: spoken
    match: {model: "gpt-realtime*"}
    route: {backend: large}
    limits: [{per: tenant, requests: 3/day}]
  - {name: default, match: {}, cache: {exact: {ttl: 1h}}, route: {backend: light, fallback: [large]}}
"""
COMPACTED: dict[str, Any] = {
    "id": "resp_c",
    "object": "response.compaction",
    "created_at": 1,
    "output": [{"type": "compaction", "id": "cmp_1", "encrypted_content": "gAAA"}],
    "usage": {
        "input_tokens": 40, "output_tokens": 2, "total_tokens": 42,
        "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0},
    },
}  # fmt: skip


async def answer(request: web.Request, call: Any) -> web.StreamResponse:
    """Compact, or open a socket that repeats each message."""
    if request.path.endswith("/compact"):
        return web.json_response(COMPACTED)
    socket = web.WebSocketResponse()
    await socket.prepare(request)
    async for message in socket:
        await socket.send_str(message.data)
    return socket


@pytest.fixture
async def served(light: Upstream, large: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    light.answer = large.answer = answer
    price = {"input_per_million": 1000.0, "output_per_million": 1000.0}
    backends = {each.name: {"adapter": "openai", "url": each.url, "price": price} for each in (light, large)}
    async with gateway_of(config_of(tmp_path, backends), POLICY) as gateway:
        yield gateway


async def test_the_official_client_compacts_and_each_call_counts(served: Served, light: Upstream) -> None:
    """It continues one conversation, so an earlier answer is never the right one: it is not cached."""
    async with AsyncOpenAI(base_url=served.url + "/v1", api_key="k", max_retries=0) as client:
        for _ in range(2):
            compacted = await client.responses.compact(model="gpt-5", input="Which ports?")
            assert compacted.output[0].type == "compaction"
    assert len(light.calls) == 2
    async with served.session.get(served.admin_url + "/metrics") as response:
        lines = (await response.text()).splitlines()
    (cost,) = [line for line in lines if line.startswith("nearhit_cost_dollars_total{")]
    assert float(cost.rpartition(" ")[2]) == pytest.approx(2 * 0.042)


async def test_a_compaction_is_sent_again_to_its_backend_and_to_no_other(
    served: Served, light: Upstream, large: Upstream
) -> None:
    """Another backend could not read what it encrypts."""
    left = [web.json_response({"error": {"message": "busy"}}, status=503), None]

    async def busy(request: web.Request, call: Any) -> web.StreamResponse:
        return left.pop(0) or await answer(request, call) if left else web.json_response({}, status=503)

    light.answer = busy
    assert (await served.post("/v1/responses/compact", {"model": "gpt-5", "input": "a"})).status == 200
    assert (await served.post("/v1/responses/compact", {"model": "gpt-5", "input": "a"})).status == 503
    assert large.calls == [] and len(light.calls) >= 3


def session_of(served: Served, model: str, headers: dict[str, str] | None = None) -> Any:
    return served.session.ws_connect(f"{served.url}/v1/realtime?model={model}", headers=headers)


async def test_a_session_goes_to_the_route_of_its_model_and_counts_for_its_limits(
    served: Served, light: Upstream, large: Upstream
) -> None:
    for _ in range(3):
        async with session_of(served, "gpt-realtime-2") as socket:
            await socket.send_str("hello")
            assert await socket.receive_str() == "hello"
    with pytest.raises(WSServerHandshakeError) as refused:
        async with session_of(served, "gpt-realtime-2"):
            pass
    assert refused.value.status == 429
    async with session_of(served, "another") as socket:
        await socket.send_str("hello")
        assert await socket.receive_str() == "hello"
    assert (len(light.calls), len(large.calls)) == (1, 3)


async def test_a_key_opens_sessions_of_its_models_alone(upstream: Upstream, tmp_path: Path) -> None:
    upstream.answer = answer
    async with gateway_of(keyed(tmp_path, upstream), EXACT_CACHE, ADMIN) as gateway:
        own = bearer((await create(gateway, models=["gpt-realtime*"]))["key"])
        async with session_of(gateway, "gpt-realtime-2", own) as socket:
            await socket.send_str("hello")
            assert await socket.receive_str() == "hello"
        for target in ("other", "gpt-realtime-2&model=other", ""):
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                async with session_of(gateway, target, own):
                    pass
            assert refused.value.status in (400, 403)
        compact = {"model": "gpt-realtime-2", "input": "a"}
        assert (await gateway.post("/v1/responses/compact", compact, own)).status == 200
        assert (await gateway.post("/v1/responses/compact", {**compact, "model": "other"}, own)).status == 403
    assert len(upstream.calls) == 2
