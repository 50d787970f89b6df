"""Requests that mean the same are one entry, and each miss goes to the backend as it came."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.gateways import EXACT_CACHE, config_of, gateway_of
from tests.fixtures.upstream import Upstream

CHAT = "/v1/chat/completions"
HEADERS = {"Content-Type": "application/json"}
BODIES = (
    b'{"model":"m","temperature":0,"messages":[{"role":"user","content":"hi"}]}',
    b'{"model":"m","temperature":0.0,"messages":[{"role":"user","content":"hi"}]}',
    b'{"model":"m","temperature":0,"n":1,"messages":[{"role":"user","content":"hi"}]}',
    b'{"model":"m","temperature":0,"tools":[],"seed":null,"messages":[{"role":"user","content":"hi"}]}',
    b'{"messages":[{"content":[{"text":"\\u0068i","type":"text"}],"role":"user"}],"model":"m","temperature":0.0}',
    b'{"model":"m","temperature":0e5,"stream":false,"messages":[{"role":"user","content":"hi","name":null}]}',
)


@pytest.mark.parametrize("client", ["aiohttp", "http1"])
async def test_equal_requests_are_one_entry(upstream: Upstream, tmp_path: Path, client: str) -> None:
    more: dict[str, Any] = {"client": client} if client == "aiohttp" else {}
    backend = {"adapter": "openai", "url": upstream.url, **more}
    async with gateway_of(config_of(tmp_path, {"main": backend}), EXACT_CACHE) as served:
        statuses = [(await served.post(CHAT, body, HEADERS)).cache_status for body in (*BODIES, *BODIES, *BODIES)]
        assert statuses[0].startswith("nearhit; fwd=miss")
        assert all(status.startswith("nearhit; hit; detail=exact") for status in statuses[1:])
        streamed = BODIES[0].replace(b"{", b'{"stream":true,', 1)
        assert (await served.post(CHAT, streamed, HEADERS)).cache_status.startswith("nearhit; hit")
        other = BODIES[0].replace(b'"temperature":0', b'"temperature":1')
        assert (await served.post(CHAT, other, HEADERS)).cache_status.startswith("nearhit; fwd=miss")
    assert len(upstream.calls) == 2


async def test_a_miss_goes_to_the_backend_as_it_came(upstream: Upstream, tmp_path: Path) -> None:
    backend = {"adapter": "openai", "url": upstream.url}
    body = b'{"model":"m","n":1,"tools":[],"temperature":0.0,"seed":null,"messages":[{"role":"user","content":"hi"}]}'
    async with gateway_of(config_of(tmp_path, {"main": backend}), EXACT_CACHE) as served:
        await served.post(CHAT, body, HEADERS)
    assert upstream.calls[0].body == body
