"""A removal by likeness means answers whose question nobody has held against it yet, too: those that memory alone has,
and those that the store is just taking."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.redis import embedded_valkey
from tests.admin.test_purge import PLAIN, purge, purged, verdict
from tests.fixtures.gateways import Served, config_of, gateway_of, recovered
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

QUESTION = "how do I reset the password of my account"
CLOSE = QUESTION + " please"


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Served]:
    monkeypatch.setattr(embedded_valkey, "FIRST_PAUSE_S", 0.01)
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, PLAIN) as gateway:
        await recovered(gateway)
        yield gateway


async def test_what_memory_alone_has_since_the_store_was_away(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    server: Any = served.gateway.stores.server
    before, launch, go_on = server.pid, server._launch, asyncio.Event()

    async def launched() -> Any:
        await go_on.wait()
        return await launch()

    monkeypatch.setattr(server, "_launch", launched)
    os.kill(before, signal.SIGKILL)
    assert verdict(await served.chat(QUESTION)) == "fwd=miss", "the store does not have it"
    go_on.set()
    await until(lambda: server.pid != before)
    async with asyncio.timeout(120):
        while (await purge(served, like=CLOSE, dry_run=True)).status != 200:
            await asyncio.sleep(0.05)
    assert verdict(await served.chat(QUESTION)) == "exact"
    await purged(served, like=CLOSE)
    assert verdict(await served.chat(QUESTION)) == "fwd=miss; stored"


@pytest.mark.parametrize("stream", [False, True])
async def test_what_the_store_takes_as_it_is_looked_through(
    served: Served, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    backing_store: Any = served.gateway.parts.space.backing_store
    put, go_on, waiting = backing_store.put, asyncio.Event(), 0

    async def held(what: Any) -> Any:
        nonlocal waiting
        waiting += 1
        await go_on.wait()
        return await what()

    monkeypatch.setattr(backing_store, "put", lambda *some: held(lambda: put(*some)))
    asking = asyncio.create_task(served.chat(QUESTION, stream=stream))
    await until(lambda: waiting)
    assert await purged(served, like=CLOSE) == 0
    go_on.set()
    await asking
    monkeypatch.undo()
    assert verdict(await served.chat(QUESTION)) == "fwd=miss; stored"
    assert verdict(await served.chat(QUESTION)) == "exact"
    assert served.gateway.parts.space.index.size == 1
