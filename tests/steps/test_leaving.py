"""A client that leaves while its answer is stored leaves nothing half known: store, index and ledger agree."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.redis.store import RedisStore
from tests.fixtures.gateways import BOTH_CACHES, at_rest, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until
from tests.fixtures.wire import connected

POLICY = BOTH_CACHES + "    limits: [{requests: 1000/min, per: tenant}]\n"
BODY = b'{"model":"m","messages":[{"role":"user","content":"where is my parcel"}]}'
POST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
)


@pytest.mark.parametrize("stored_first", [True, False])
async def test_what_is_stored_as_its_client_leaves_is_indexed(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stored_first: bool
) -> None:
    """`stored_first`: the store has it before the client leaves, and its reply is still on its way."""
    put: Callable[..., Any] = RedisStore.put
    began, goes_on = asyncio.Event(), asyncio.Event()

    async def slow(self: RedisStore, *given: Any) -> bool:
        stored = await put(self, *given) if stored_first else None
        began.set()
        await goes_on.wait()
        return await put(self, *given) if stored is None else stored

    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, POLICY) as served:
        await at_rest(served)
        monkeypatch.setattr(RedisStore, "put", slow)
        async with connected(served.url) as wire:
            await wire.send(POST)
            await began.wait()
        await until(lambda: served.gateway.inflight.count == 0)
        goes_on.set()
        monkeypatch.setattr(RedisStore, "put", put)
        parts = served.gateway.parts
        await until(lambda: not parts.background and not len(parts.flights))
        await until(lambda: parts.space.index.size == 1)
        assert len(parts.evictions.ledger) == 1
        hit = await served.post("/v1/chat/completions", BODY)
        assert hit.cache_status.startswith("nearhit; hit")
        asked = {"like": "where is my parcel"}
        async with served.session.post(f"{served.admin_url}/admin/cache/purge", json=asked) as purged:
            assert (await purged.json())["removed"] == 1
