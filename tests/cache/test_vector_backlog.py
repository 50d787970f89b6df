"""Entries that were left without a vector get it when the encoder is idle, and after a restart."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from gateway.adapters.system.clock import SystemClock
from gateway.cache import vector_backlog
from gateway.cache.bans import Ban, BanConditions, SimilarityCondition
from gateway.cache.late_vectors import LateVectors
from gateway.cache.load_level import EncoderLoad
from gateway.cache.memory_cache import TieredStore
from gateway.cache.vector_backlog import VectorBacklog
from gateway.entries import Entry
from gateway.observability.telemetry import Telemetry
from gateway.ports import EncoderQueue
from gateway.tasks import cancel_and_wait
from tests.cache.test_late_vectors import GatedEmbedder
from tests.features.jobs.asking import main_of
from tests.fixtures.entries import DIMENSION, entry_of, vector_of
from tests.fixtures.fakes import ExactIndex, MemoryStore
from tests.fixtures.gateways import BOTH_CACHES, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until


class Backlogged:
    """A backlog in front of fakes. `wait_s`: the work before the encoder."""

    def __init__(self, limit: int = 99) -> None:
        self.backing = MemoryStore(SystemClock())
        self.store = TieredStore(self.backing, max_bytes=10**6, max_age_s=None, clock=SystemClock(), embedder="gated")
        self.index = ExactIndex(DIMENSION, max_entries=99)
        self.embedder = GatedEmbedder()
        self.embedder.gate.set()
        self.telemetry = Telemetry()
        self.wait_s = 0.0
        load = EncoderLoad([lambda: EncoderQueue(self.wait_s)], 2.0, self.telemetry.left_out)
        self.backlog = VectorBacklog(self.embedder, self.index, self.store, self.backing, self.telemetry, load, limit)
        self.backlog.routes = frozenset({"default"})
        self.late = LateVectors(self.embedder, self.index, self.store, self.telemetry, load, limit=2)
        self.late.left = self.backlog.add

    async def stored(self, seed: int, **fields: object) -> Entry:
        entry = entry_of(str(seed), question=str(seed), **fields)
        await self.store.put(entry, None)
        return entry

    async def finished(self) -> int:
        """Return the number of entries in the index, once nothing is left to do."""
        await until(lambda: self.backlog.idle)
        return self.index.size


@pytest.fixture
async def backlogged(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Backlogged]:
    for pause in ("PAUSE_S", "RETRY_S"):
        monkeypatch.setattr(vector_backlog, pause, 0.001)
    opened = Backlogged()
    job = asyncio.create_task(opened.backlog.run())
    yield opened
    await cancel_and_wait(job)


async def test_what_a_loaded_encoder_left_gets_its_vector_once_it_is_idle(backlogged: Backlogged) -> None:
    backlogged.backlog.begin()
    backlogged.wait_s = 1.0
    job = asyncio.create_task(backlogged.late.run())
    for seed in range(20):
        backlogged.late.add(await backlogged.stored(seed), "acme")
        await asyncio.sleep(0)
    await until(lambda: backlogged.late.idle)
    assert (backlogged.index.size, len(backlogged.backlog)) == (0, 20)
    backlogged.wait_s = 0.0
    assert await backlogged.finished() == 20
    assert max(backlogged.embedder.passes) == 8, "several share a pass"
    await cancel_and_wait(job)


async def test_all_entries_of_the_store_get_theirs_after_a_start(backlogged: Backlogged) -> None:
    for seed in range(20):
        await backlogged.stored(seed)
    await backlogged.store.put(entry_of("9", question="9"), vector_of(9))
    await backlogged.stored(30, route="exact only")
    await backlogged.stored(31, payload=(b"{}",))
    backlogged.backlog.begin()
    assert await backlogged.finished() == 20
    assert "30" not in backlogged.embedder.embedded
    assert "9" not in backlogged.embedder.embedded, "it has one"


async def test_more_names_than_the_bound_are_found_in_the_store(monkeypatch: pytest.MonkeyPatch) -> None:
    opened = Backlogged(limit=3)
    for seed in range(10):
        opened.backlog.add((await opened.stored(seed)).fingerprint)
    assert len(opened.backlog) == 3
    opened.backlog.begin()
    job = asyncio.create_task(opened.backlog.run())
    assert await opened.finished() == 10
    await cancel_and_wait(job)


async def test_an_embedder_that_was_away_gets_all_of_them_and_a_text_that_fails_ends(backlogged: Backlogged) -> None:
    names = [(await backlogged.stored(seed)).fingerprint for seed in range(10)]
    poison = await backlogged.stored(11, payload=(b"{}",))
    backlogged.store.forget(poison.fingerprint)
    await backlogged.backing.put(replace(poison, question="no number"), None)
    backlogged.embedder.down = True
    backlogged.backlog.begin()
    await until(lambda: len(backlogged.embedder.passes) > 5)
    backlogged.embedder.down = False
    await until(lambda: backlogged.index.size == len(names))


@pytest.mark.parametrize("change", ["removed", "replaced", "banned"])
async def test_an_entry_that_changed_meanwhile_gets_none(backlogged: Backlogged, change: str) -> None:
    entry = await backlogged.stored(1)
    backlogged.embedder.gate.clear()
    backlogged.backlog.begin()
    await until(lambda: backlogged.embedder.passes)
    if change == "removed":
        await backlogged.store.delete([entry.fingerprint])
    elif change == "replaced":
        await backlogged.store.put(replace(entry, created=entry.created + 1), None)
    else:
        near = SimilarityCondition(vector_of(1), 0.9, embedder="gated")
        ban = Ban("b", entry.created + 1, entry.expires, BanConditions(near=near))
        backlogged.store.bans.add(ban, entry.created)
    backlogged.embedder.gate.set()
    assert await backlogged.finished() == 0
    assert (await backlogged.backing.get(entry.fingerprint) is None) is (change != "replaced")


async def test_a_restart_gives_the_entries_of_a_store_their_vectors(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, main_of(upstream), index={"checkpoint": "off"})
    async with gateway_of(config, BOTH_CACHES) as served:
        await served.chat("how do I reset my password")
        redis = served.gateway.stores.redis
        (name,) = [name async for name, _ in redis.fingerprints()]
        await redis.send("HDEL", redis.names.entry(name), "vector", "embedder")
    async with gateway_of(config, BOTH_CACHES) as served:
        space = served.gateway.parts.space
        await until(lambda: served.gateway.recovery.ready and space.index.size == 1)
        assert len(await space.backing_store.vectors_of([name])) == 1
