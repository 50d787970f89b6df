"""A store that is far away: how often a request and a purge wait for it. Round trips are counted, not timed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures.entries import entry_of
from tests.fixtures.far_store import FarStore, Sent, far_store
from tests.fixtures.gateways import Served, at_rest, config_of, gateway_of
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream

DELAY_S = 0.02  # in each direction: commands that do not wait for each other are sent within it
ENTRIES = 826


@pytest.fixture
async def far(outside_store: OutsideServer) -> AsyncIterator[FarStore]:
    async with far_store(outside_store.url, DELAY_S) as store:
        yield store


@pytest.fixture
async def served(far: FarStore, upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, store={"url": far.url})
    async with gateway_of(config) as gateway:
        await at_rest(gateway)
        yield gateway


async def test_a_purge_takes_few_round_trips_whatever_the_number_of_entries(served: Served, far: FarStore) -> None:
    put = served.gateway.stores.redis.put
    await put(entry_of("first"), None)  # the server knows the script from now on
    await asyncio.gather(*(put(entry_of(str(i)), None) for i in range(ENTRIES - 1)))
    far.commands.clear()
    async with served.session.post(f"{served.admin_url}/admin/cache/purge", json={"all": True}) as response:
        report = await response.json()
    assert (report["matched"], report["removed"]) == (ENTRIES, ENTRIES)

    def sweeps(command: Sent) -> bool:
        reads = command.name == "EVAL" and b"HSTRLEN" in command.words[1]
        return reads or command.name in ("ZRANGE", "ZSCAN", "UNLINK")

    assert far.round_trips(sweeps) <= 6
    assert sum(map(sweeps, far.commands)) <= 6
