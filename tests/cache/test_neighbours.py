"""The records of neighbours, from memory and from the store."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gateway.adapters.redis.store import RedisStore
from gateway.entries import Entry
from tests.fixtures.gateways import LOOSE, config_of, gateway_of
from tests.fixtures.upstream import Upstream


async def test_neighbours_that_are_not_in_memory_are_asked_of_the_store_together(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, LOOSE) as served:
        for question in ("alpha beta gamma delta", "epsilon zeta eta theta"):
            assert (await served.chat(question)).status == 200
        store, asked, both = served.gateway.parts.store, set[str](), asyncio.Event()
        stored = list(store._residents)
        assert len(stored) == 2
        for fingerprint in stored:
            store.forget(fingerprint)
        get = RedisStore.get

        async def together(self: RedisStore, fingerprint: str) -> Entry | None:
            if fingerprint in stored:
                asked.add(fingerprint)
                if len(asked) == len(stored):
                    both.set()
                await both.wait()
            return await get(self, fingerprint)

        monkeypatch.setattr(RedisStore, "get", together)
        hit = await served.chat("alpha beta gamma delta epsilon zeta eta theta")
        assert "detail=semantic" in hit.headers["Cache-Status"]
        assert asked == set(stored)
