"""A gateway that starts again finds what it had: from its checkpoint, brought to what the store says now."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.embedding import hashing
from gateway.adapters.embedding.hashing import HashEncoder
from gateway.adapters.redis.keyspace import ONE_SERVER
from gateway.adapters.redis.store import RedisStore
from gateway.cache import recovery
from gateway.cache.eviction import Evictor
from gateway.cache.feedback import Counterexamples
from gateway.cache.links import Links
from gateway.cache.recovery import Recovery
from gateway.config import Config
from gateway.errors import StoreUnavailable
from gateway.features.replicas.change_log import CHANGES_KEY
from gateway.ports import StoredVector
from tests.fixtures.clock import FakeClock
from tests.fixtures.entries import DIMENSION, entry_of, hexed, vector_of
from tests.fixtures.fakes import ExactIndex, MemoryStore
from tests.fixtures.gateways import BOTH_CACHES, Answer, Served, config_of, recovered
from tests.fixtures.gateways import gateway_of as gateway_with
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

ASKED, SAME = "how do I reset the password of my account", "How do I reset the password of my account?"
OTHER, OTHER_SAME = "which trains go to Vienna tomorrow morning", "Which trains go to Vienna tomorrow morning?"


# What a verifier accepts is no matter here: alike is enough.
ALIKE = BOTH_CACHES.replace("max_wrong_hits: 1%", "min_similarity: 0.8")
gateway_of = partial(gateway_with, policy=ALIKE)


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The fingerprints whose vectors were read from the store."""
    fingerprints: list[str] = []
    vectors_of = RedisStore.vectors_of

    async def recorded(self: RedisStore, names: Sequence[str]) -> list[StoredVector]:
        fingerprints.extend(names)
        return await vectors_of(self, names)

    monkeypatch.setattr(RedisStore, "vectors_of", recorded)
    return fingerprints


def config_for(upstream: Upstream, path: Path, url: str = "embedded", **index: Any) -> Config:
    return config_of(
        path,
        {"main": {"adapter": "openai", "url": upstream.url}},
        store={"url": url, "timeout": "10s", "front_size": "1kB"},
        index=index,
    )


def is_semantic(answer: Answer) -> bool:
    return answer.status == 200 and answer.cache_status == "nearhit; hit; detail=semantic"


def is_miss(answer: Answer) -> bool:
    return answer.status == 200 and answer.cache_status.startswith("nearhit; fwd=miss")


def checkpoint(path: Path) -> Path:
    return path / "index" / "checkpoint"


async def asked(served: Served, *questions: str) -> None:
    await recovered(served)
    for question in questions:
        assert is_miss(await served.chat(question))


async def followed(served: Served, store: OutsideServer) -> None:
    """Returns once it has read the log of changes to its end."""
    replication = served.gateway.replication
    assert replication is not None
    end = store.client.xinfo_stream(CHANGES_KEY)["last-generated-id"].decode()
    await until(lambda: replication.position == end)


async def test_semantic_hits_survive_a_restart_without_a_vector_being_read(
    upstream: Upstream, tmp_path: Path, read: list[str]
) -> None:
    config = config_for(upstream, tmp_path)
    async with gateway_of(config) as served:
        await asked(served, ASKED, OTHER)
    async with gateway_of(config) as served:
        await recovered(served)
        assert is_semantic(await served.chat(SAME))
        assert is_semantic(await served.chat(OTHER_SAME))
    assert read == []


async def test_without_a_checkpoint_all_is_read_from_the_store(
    upstream: Upstream, tmp_path: Path, read: list[str]
) -> None:
    config = config_for(upstream, tmp_path, checkpoint="off")
    async with gateway_of(config) as served:
        await asked(served, ASKED)
    assert not checkpoint(tmp_path).exists()
    async with gateway_of(config) as served:
        await recovered(served)
        assert is_semantic(await served.chat(SAME))
    assert len(read) == 1


async def test_what_was_deleted_while_the_gateway_was_down_is_not_served(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer
) -> None:
    config = config_for(upstream, tmp_path, outside_store.url)
    async with gateway_of(config) as served:
        await asked(served, ASKED, OTHER)
        gone, _ = await served.gateway.parts.space.index.fingerprints()
    outside_store.client.unlink(ONE_SERVER.entry(gone))
    outside_store.client.zrem(ONE_SERVER.list_key(gone), gone)
    async with gateway_of(config) as served:
        await recovered(served)
        assert is_miss(await served.chat(SAME))
        assert is_semantic(await served.chat(OTHER_SAME))


async def test_what_is_deleted_behind_the_back_of_a_gateway_that_still_starts_is_not_served(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The checkpoint is searched before the store has been compared with it: the record decides."""
    config = config_for(upstream, tmp_path, outside_store.url)
    async with gateway_of(config) as served:
        await asked(served, ASKED)
    outside_store.client.flushall()

    async def never(self: Recovery) -> None:
        served_early.append(self)
        await asyncio.Event().wait()

    served_early: list[Recovery] = []

    async def not_yet(self: Evictor) -> None:
        return

    monkeypatch.setattr(Recovery, "reconcile", never)
    monkeypatch.setattr(Evictor, "compare", not_yet)
    async with gateway_of(config) as served:
        await until(lambda: served_early)
        assert served.gateway.parts.space.index.size == 1
        assert is_miss(await served.chat(SAME))


async def test_of_what_others_stored_meanwhile_just_that_is_read(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer, read: list[str]
) -> None:
    config = config_for(upstream, tmp_path / "one", outside_store.url)
    async with gateway_of(config) as served:
        await asked(served, ASKED)
        await followed(served, outside_store)  # what it has not read of its own is another's after the restart
    async with gateway_of(config_for(upstream, tmp_path / "two", outside_store.url)) as other:
        await asked(other, OTHER)
    read.clear()
    async with gateway_of(config) as served:
        await recovered(served)
        assert len(read) == 1
        assert is_semantic(await served.chat(SAME))
        assert is_semantic(await served.chat(OTHER_SAME))


async def test_a_checkpoint_of_another_embedder_is_ignored(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Other(HashEncoder):
        def __init__(self) -> None:
            super().__init__()
            self.fingerprint = "hash/other"

    config = config_for(upstream, tmp_path)
    async with gateway_of(config) as served:
        await asked(served, ASKED)
    monkeypatch.setattr(hashing, "HashEncoder", Other)
    with caplog.at_level(logging.WARNING):
        async with gateway_of(config) as served:
            await until(lambda: served.gateway.migration.complete)
            (name,) = await served.gateway.parts.space.index.fingerprints()
            (stored,) = await served.gateway.parts.space.backing_store.vectors_of([name])
            assert stored.fingerprint == name, "what the index holds is the new embedder's"
    assert "checkpoint was refused" in caplog.text


async def test_a_damaged_checkpoint_is_replaced_from_the_store(
    upstream: Upstream, tmp_path: Path, read: list[str]
) -> None:
    config = config_for(upstream, tmp_path)
    async with gateway_of(config) as served:
        await asked(served, ASKED)
    damaged = bytearray(checkpoint(tmp_path).read_bytes())
    damaged[-1] ^= 1
    checkpoint(tmp_path).write_bytes(damaged)
    async with gateway_of(config) as served:
        await recovered(served)
        assert is_semantic(await served.chat(SAME))
    assert len(read) == 1
    async with gateway_of(config) as served:
        await recovered(served)
    assert len(read) == 1, "the new one is sound"


async def test_a_checkpoint_is_written_while_the_gateway_runs(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_of(config_for(upstream, tmp_path, checkpoint="5ms")) as served:
        await asked(served, ASKED)
        await until(checkpoint(tmp_path).exists)


async def test_a_gateway_that_never_reached_its_store_leaves_the_checkpoint(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "RETRY_S", 0.01)
    async with gateway_of(config_for(upstream, tmp_path, outside_store.url)) as served:
        await asked(served, ASKED)
    before = checkpoint(tmp_path).read_bytes()
    async with gateway_of(config_for(upstream, tmp_path, outside_store.url.replace("s3cret", "wrong"))) as served:
        await served.gateway.parts.space.index.add(hexed("x"), "s", vector_of(1, 384))
        assert is_miss(await served.chat(OTHER))
    assert checkpoint(tmp_path).read_bytes() == before


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def recovery_of(store: MemoryStore, index: ExactIndex, clock: FakeClock) -> Recovery:
    class NoRelations:
        async def add_counterexample(self, key: str) -> None: ...

        async def add_links(self, keys: Sequence[str]) -> None: ...

        async def links(self) -> list[str]:
            return []

        async def counterexamples(self) -> list[str]:
            return []

    return Recovery(store, NoRelations(), index, Counterexamples(), Links(), clock)


async def test_the_index_comes_to_hold_what_the_store_holds(clock: FakeClock) -> None:
    store, index = MemoryStore(clock), ExactIndex(DIMENSION, max_entries=100)
    for name in ("kept", "lacking"):
        await store.put(entry_of(name), vector_of(1))
    await store.put(entry_of("without"), None)
    for name in ("kept", "gone"):
        await index.add(hexed(name), hexed("scope"), vector_of(1))
    await recovery_of(store, index, clock).run()
    assert set(await index.fingerprints()) == {hexed("kept"), hexed("lacking")}


async def test_what_is_stored_anew_during_the_comparison_stays(clock: FakeClock) -> None:
    class Busy(MemoryStore):
        """A request puts an entry after the listing has passed it."""

        async def fingerprints(self) -> Any:
            async for pair in super().fingerprints():
                yield pair
            await self.put(entry_of("anew"), vector_of(1))
            await index.add(hexed("anew"), hexed("scope"), vector_of(1))

    index = ExactIndex(DIMENSION, max_entries=100)
    for name in ("anew", "gone"):
        await index.add(hexed(name), hexed("scope"), vector_of(2))
    await recovery_of(Busy(clock), index, clock).run()
    assert list(await index.fingerprints()) == [hexed("anew")]


class LateStore(MemoryStore):
    """Does not answer the first listings."""

    def __init__(self, clock: FakeClock, failures: int) -> None:
        super().__init__(clock)
        self.left = failures

    async def fingerprints(self) -> Any:
        if self.left:
            self.left -= 1
            raise StoreUnavailable("no answer in time")
        async for pair in super().fingerprints():
            yield pair


async def test_a_store_that_is_late_once_is_asked_again_at_once(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "RETRY_S", 3600.0)

    store, index = LateStore(clock, 2), ExactIndex(DIMENSION, max_entries=100)
    await store.put(entry_of("kept"), vector_of(1))
    async with asyncio.timeout(120):
        await recovery_of(store, index, clock).run()
    assert await index.fingerprints() == [hexed("kept")]
    assert caplog.messages == ["the index could not be read from the store at once"]


@pytest.mark.parametrize("failures", [1, 2])
async def test_a_store_with_nothing_to_read_may_be_late_without_a_warning(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, failures: int
) -> None:
    """A new store on a busy machine."""
    monkeypatch.setattr(recovery, "RETRY_S", 3600.0)
    store, index = LateStore(clock, failures), ExactIndex(DIMENSION, max_entries=100)
    reading = recovery_of(store, index, clock)
    async with asyncio.timeout(120):
        await reading.run()
    assert (reading.ready, caplog.messages) == (True, [])


async def test_a_store_that_stays_away_is_named_once(
    clock: FakeClock, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether it has anything to read is not known."""
    monkeypatch.setattr(recovery, "FIRST_RETRY_S", 0.001)
    monkeypatch.setattr(recovery, "RETRY_S", 0.004)
    async with asyncio.timeout(120):
        await recovery_of(LateStore(clock, 6), ExactIndex(DIMENSION, max_entries=100), clock).run()
    assert caplog.messages == ["the index could not be read from the store yet"]
