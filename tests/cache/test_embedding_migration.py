"""Another embedding model: what is stored is embedded anew, nothing is mixed, nothing comes back to life."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gateway.adapters.embedding import hashing
from gateway.adapters.embedding.hashing import HashEncoder
from gateway.adapters.redis.keyspace import ONE_SERVER
from gateway.adapters.redis.migration import RedisMigration
from gateway.cli.doctor.network import running
from gateway.config import Config
from gateway.entries import Vector
from gateway.features.replicas import embedder_announcements
from tests.fixtures.gateways import BOTH_CACHES, Answer, Served, config_of
from tests.fixtures.gateways import gateway_of as gateway_with
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

# What a verifier accepts is no matter here: alike is enough.
gateway_of = partial(gateway_with, policy=BOTH_CACHES.replace("max_wrong_hits: 1%", "min_similarity: 0.8"))
STORED = tuple(f"which trains go to {city} tomorrow morning" for city in ("Vienna", "Graz", "Linz", "Wels", "Steyr"))
ENTRY = ONE_SERVER.entry("")
Replace = Callable[[RedisMigration, str, str, Vector, str], Awaitable[bool]]


class Reversed(HashEncoder):
    """Another model of the same dimension: only the fingerprint tells its vectors from the other's."""

    def __init__(self) -> None:
        super().__init__()
        self.fingerprint = "hash/reversed"

    def _vector(self, words: Any) -> Vector:
        return np.ascontiguousarray(super()._vector(words)[::-1])


@pytest.fixture
def config(upstream: Upstream, tmp_path: Path, outside_store: OutsideServer) -> Config:
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    return config_of(tmp_path, backends, store={"url": outside_store.url, "timeout": "10s", "front_size": "1kB"})


@pytest.fixture(params=["another dimension", "the same dimension"])
def other_model(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """From the call on gateways start with another embedder."""
    encoder = partial(HashEncoder, 512) if request.param == "another dimension" else Reversed
    return lambda: monkeypatch.setattr(hashing, "HashEncoder", encoder)


async def fill(config: Config, *questions: str) -> None:
    async with gateway_of(config) as served:
        for question in questions:
            assert is_miss(await served.chat(question))


async def migrated(served: Served) -> dict[str, float]:
    await until(lambda: served.gateway.migration.complete)
    states: dict[str, float] = served.gateway.describe()["migration"]
    return states


def is_semantic(answer: Answer) -> bool:
    return answer.status == 200 and answer.cache_status == "nearhit; hit; detail=semantic"


def is_exact(answer: Answer) -> bool:
    return answer.status == 200 and answer.cache_status.startswith("nearhit; hit; detail=exact")


def is_miss(answer: Answer) -> bool:
    return answer.status == 200 and answer.cache_status.startswith("nearhit; fwd=miss")


def alike(question: str) -> str:
    return question[0].upper() + question[1:] + "?"


def before_each(monkeypatch: pytest.MonkeyPatch, happens: Callable[[str], Awaitable[None]]) -> pytest.MonkeyPatch:
    """What happens between an entry's question being embedded and its vector being written."""
    replace: Replace = RedisMigration.replace

    async def late(self: RedisMigration, fingerprint: str, version: str, vector: Vector, keep: str = "") -> bool:
        await happens(fingerprint)
        return await replace(self, fingerprint, version, vector, keep)

    monkeypatch.setattr(RedisMigration, "replace", late)
    return monkeypatch


async def test_semantic_hits_come_back_without_a_call(
    config: Config, upstream: Upstream, other_model: Callable[[], None]
) -> None:
    await fill(config, *STORED)
    other_model()
    calls = len(upstream.chats)
    for start, done in (("first", 5), ("second", 0)):
        async with gateway_of(config) as served:
            assert await migrated(served) == {"done": done, "left": 0, "skipped": 0}, start
            for question in STORED:
                assert is_semantic(await served.chat(alike(question)))
    assert len(upstream.chats) == calls


async def test_the_index_holds_vectors_of_the_model_in_use_alone(
    config: Config, other_model: Callable[[], None], outside_store: OutsideServer
) -> None:
    await fill(config, *STORED)
    other_model()
    async with gateway_of(config) as served:
        await migrated(served)
        embedder, index = served.gateway.parts.space.embedder, served.gateway.parts.space.index
        for name in await index.fingerprints():
            entry = await served.gateway.parts.store.get(name)
            assert entry is not None and entry.question is not None
            (nearest,) = await index.search(entry.scope, (await embedder.embed(entry.question)).vector, 1)
            assert (nearest.fingerprint, round(nearest.similarity, 3)) == (name, 1.0)
            assert outside_store.client.hget(ENTRY + name, "embedder") == embedder.fingerprint.encode()


async def test_another_embedder_on_the_store_takes_no_hits_from_a_gateway_and_both_say_so(
    config: Config,
    upstream: Upstream,
    other_model: Callable[[], None],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(embedder_announcements, "INTERVAL_S", 0.05)
    second_config = config.model_copy(update={"data_dir": tmp_path / "second"})
    async with gateway_of(config) as first:
        for question in STORED:
            await first.chat(question)
        await first.chat("a question that is removed later")
        other_model()
        async with gateway_of(second_config) as second:
            await migrated(second)
            position = await second.gateway.stores.shared.changes.end()  # type: ignore[union-attr]
            await until(lambda: first.gateway.replication.position == position)  # type: ignore[union-attr]
            calls = len(upstream.chats)
            for served in (first, second, first):
                for question in STORED:
                    assert is_semantic(await served.chat(alike(question)))
            assert len(upstream.chats) == calls
            (own, other) = (served.gateway.parts.space.embedder.fingerprint for served in (first, second))
            await until(lambda: first.gateway.describe()["other_embedders"] == [other])
            await until(lambda: second.gateway.describe()["other_embedders"] == [own])
            warned = [record.fields for record in caplog.records if "another embedder" in record.message]  # type: ignore[attr-defined]
            assert sorted(warned, key=str) == sorted(
                [{"embedder": own, "other": other}, {"embedder": other, "other": own}], key=str
            ), "once in each log"
            found = [one.found for one in running({"ready": True}, first.gateway.describe(), None)]
            assert any(other in sentence for sentence in found)
            name = {await name_of(first, "a question that is removed later")}
            await second.gateway.parts.store.delete(list(name))
            await until(lambda: first.gateway.parts.space.index.size == len(STORED))


async def name_of(served: Served, question: str) -> str:
    """Return the fingerprint of the entry of a question."""
    async for name, _ in served.gateway.stores.redis.fingerprints():
        entry = await served.gateway.stores.redis.get(name)
        if entry is not None and entry.question == question:
            return name
    raise AssertionError


async def test_a_migration_that_was_cut_goes_on_and_requests_are_served_meanwhile(
    config: Config, other_model: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(config, *STORED)
    other_model()
    reached: list[str] = []

    async def stop_at_the_third(fingerprint: str) -> None:
        reached.append(fingerprint)
        if len(reached) == 3:
            await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        before_each(patch, stop_at_the_third)
        async with gateway_of(config) as served:
            await until(lambda: len(reached) == 3)
            assert served.gateway.describe()["migration"] == {"done": 2, "left": 3, "skipped": 0}
            assert served.gateway.parts.space.index.size == 2
            assert is_exact(await served.chat(STORED[0]))
            assert is_miss(await served.chat("what is the boiling point of water"))
    async with gateway_of(config) as served:
        assert await migrated(served) == {"done": 3, "left": 0, "skipped": 0}
        assert served.gateway.parts.space.index.size == 6


@pytest.mark.parametrize("how", ["deleted", "expired", "purged", "purged by likeness"])
async def test_what_is_removed_meanwhile_does_not_come_back(
    config: Config,
    other_model: Callable[[], None],
    outside_store: OutsideServer,
    monkeypatch: pytest.MonkeyPatch,
    how: str,
) -> None:
    await fill(config, STORED[0])
    other_model()

    async def remove(fingerprint: str) -> None:
        if how == "deleted":
            await served.gateway.parts.store.delete([fingerprint])
        elif how == "expired":
            outside_store.client.pexpireat(ENTRY + fingerprint, 1)
        else:
            wanted = {"fingerprint": fingerprint} if how == "purged" else {"like": STORED[0], "min_similarity": 0.9}
            async with served.session.post(served.admin_url + "/admin/cache/purge", json=wanted) as response:
                assert response.status == 200, await response.text()

    started = asyncio.Event()

    async def once_started(fingerprint: str) -> None:
        await started.wait()
        await remove(fingerprint)

    before_each(monkeypatch, once_started)
    async with gateway_of(config) as served:
        started.set()
        assert await migrated(served) == {"done": 0, "left": 0, "skipped": 0}
        assert served.gateway.parts.space.index.size == 0
        assert outside_store.client.keys(ENTRY + "*") == []
        assert is_miss(await served.chat(alike(STORED[0])))


async def test_what_is_answered_anew_meanwhile_stays_as_it_is(
    config: Config, other_model: Callable[[], None], outside_store: OutsideServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(config, STORED[0])
    other_model()
    started = asyncio.Event()
    kept: dict[str, Any] = {}

    async def answer_anew(fingerprint: str) -> None:
        await started.wait()
        await served.chat(STORED[0], headers={"Cache-Control": "no-cache"})
        kept[fingerprint] = outside_store.client.hgetall(ENTRY + fingerprint)

    before_each(monkeypatch, answer_anew)
    async with gateway_of(config) as served:
        started.set()
        assert (await migrated(served))["done"] == 0
        ((name, newer),) = kept.items()
        assert outside_store.client.hgetall(ENTRY + name) == newer
        assert served.gateway.parts.space.index.size == 1


async def test_what_the_model_cannot_read_is_skipped_and_stays_an_exact_hit(
    config: Config, other_model: Callable[[], None], outside_store: OutsideServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "word " * 200
    await fill(config, STORED[0], long, STORED[1])
    client: Any = outside_store.client
    damaged = next(key for key in client.keys(ENTRY + "*") if b"Graz" in client.hget(key, "record"))
    client.hset(damaged, "record", b"\xc1")
    other_model()
    monkeypatch.setattr("gateway.adapters.embedding.hashing.MAX_WORDS", 100)
    async with gateway_of(config) as served:
        assert await migrated(served) == {"done": 1, "left": 0, "skipped": 2}
        assert is_semantic(await served.chat(alike(STORED[0])))
        assert is_exact(await served.chat(long))


async def test_the_time_to_live_of_an_entry_stays(
    config: Config, other_model: Callable[[], None], outside_store: OutsideServer
) -> None:
    await fill(config, STORED[0])
    client: Any = outside_store.client
    (key,) = client.keys(ENTRY + "*")
    expires = client.pexpiretime(key)
    other_model()
    async with gateway_of(config) as served:
        assert (await migrated(served))["done"] == 1
    assert client.pexpiretime(key) == expires


async def test_the_progress_is_a_metric(config: Config, other_model: Callable[[], None]) -> None:
    await fill(config, STORED[0])
    other_model()
    async with gateway_of(config) as served:
        await migrated(served)
        async with served.session.get(served.admin_url + "/metrics") as response:
            text = await response.text()
    assert 'nearhit_migration_entries{state="done"} 1.0' in text
    assert 'nearhit_migration_entries{state="left"} 0.0' in text


async def test_a_removal_by_likeness_under_the_old_model_means_what_it_found_then(
    config: Config, other_model: Callable[[], None]
) -> None:
    """Its vector is the old model's: no vector of the new one is held against it."""
    await fill(config, *STORED)
    async with gateway_of(config) as served:
        await until(lambda: served.gateway.recovery.ready)
        wanted = {"like": STORED[0], "min_similarity": 0.99}
        async with served.session.post(served.admin_url + "/admin/cache/purge", json=wanted) as response:
            assert (await response.json())["removed"] == 1
    other_model()
    async with gateway_of(config) as served:
        assert await migrated(served) == {"done": 4, "left": 0, "skipped": 0}
        (ban,) = served.gateway.parts.store.bans.in_force
        near, space = ban.conditions.near, served.gateway.parts.space
        assert near is not None and near.embedder != space.embedder.fingerprint
