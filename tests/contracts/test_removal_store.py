"""What removals need of the store, on real servers: the embedded one, Valkey without a file, Debian's Redis."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from gateway.adapters.redis import durability, entry_pages, purge
from gateway.adapters.redis.client import connect
from gateway.adapters.redis.embedded_valkey import EmbeddedValkey
from gateway.adapters.redis.purge import RedisPurges
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.system.clock import SystemClock
from gateway.errors import StoreUnavailable
from gateway.tasks import cancel_and_wait
from tests.contracts.test_response_store import OUTSIDE
from tests.fixtures.entries import entry_of, hexed, vector_of
from tests.fixtures.gateways import PATIENT_S


@dataclass
class Opened:
    kind: str
    store: RedisStore
    removals: RedisPurges


@pytest.fixture(params=["embedded", "redis", "rediss", "cluster"])
async def opened(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Opened]:
    monkeypatch.setattr(purge, "TIMEOUT_S", 2 * PATIENT_S)
    monkeypatch.setattr(durability, "DISK_MS", int(PATIENT_S * 1000))
    async with AsyncExitStack() as stack:
        if request.param == "embedded":
            server = await EmbeddedValkey.start(tmp_path, max_memory=2**26)
            stack.push_async_callback(server.stop)
            url = server.url
        else:
            url = request.getfixturevalue(OUTSIDE[request.param]).url
        client = connect(url, PATIENT_S)
        store = RedisStore(client, embedder="e1", timeout_s=PATIENT_S, clock=SystemClock())
        stack.push_async_callback(store.close)
        yield Opened(request.param, store, RedisPurges(store))


async def test_bans_are_kept_replaced_and_dropped_and_each_change_has_a_version(opened: Opened) -> None:
    removals = opened.removals
    versions = [await removals.version()]
    assert await removals.bans() == []
    for write, drop in (({"a": b"1", "b": b"2"}, []), ({"a": b"3"}, []), ({"c": b"4"}, ["a", "b", "none"])):
        await removals.write_bans(write, drop)
        versions.append(await removals.version())
    assert await removals.bans() == [b"4"]
    assert len(set(versions)) == 4


async def test_only_a_server_with_a_file_says_that_a_ban_has_reached_the_disk(opened: Opened) -> None:
    assert await opened.removals.write_bans({"a": b"1"}, []) is (opened.kind in ("embedded", "cluster"))


async def test_few_entries_are_read_until_others_have_a_turn(opened: Opened) -> None:
    for i in range(2 * purge.STEP):
        await opened.store.put(entry_of(str(i)), None)
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    turning, before, read = asyncio.create_task(turn()), 0, 0
    async for page in opened.removals.records("e1"):
        assert turns > before
        assert len(page) <= purge.STEP
        before, read = turns, read + len(page)
    await cancel_and_wait(turning)
    assert read == 2 * purge.STEP


async def test_every_entry_is_read_with_its_vector_in_pages_of_bounded_size(
    opened: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entry_pages, "PAGE_BYTES", 10_000)
    for i in range(60):
        size = 20_000 if i == 7 else 1_000
        await opened.store.put(entry_of(str(i), payload=(b"x" * size,)), vector_of(i) if i % 2 else None)
    other = opened.store.for_embedder("e2")
    await other.put(entry_of("foreign"), vector_of(1))
    found = {}
    async for page in opened.removals.records("e1"):
        assert len(page) == 1 or sum(entry.size - 512 for entry, _ in page) <= 10_000
        found |= {entry.fingerprint: placed and placed.vector for entry, placed in page}
    assert set(found) == {hexed(name) for name in [*map(str, range(60)), "foreign"]}
    assert found[hexed("foreign")] is None, "a vector of another embedder cannot be compared"
    for i in range(60):
        vector = found[hexed(str(i))]
        assert (vector is None) is (i % 2 == 0)
        if vector is not None:
            assert (vector == vector_of(i)).all()


async def test_the_latest_expiry_is_that_of_all_entries(opened: Opened) -> None:
    assert await opened.removals.latest_expiry() == 0.0
    entries = [entry_of(str(i), lifetime_s=100.0 * (i + 1)) for i in range(3)]
    for entry in entries:
        await opened.store.put(entry, None)
    assert await opened.removals.latest_expiry() == pytest.approx(entries[2].expires)


async def test_a_store_that_is_away_is_unavailable_and_asking_for_the_version_does_not_open_the_breaker() -> None:
    client = connect("redis://127.0.0.1:9/0")
    store = RedisStore(client, embedder="e1", timeout_s=1.0, clock=SystemClock())
    removals = RedisPurges(store)
    for _ in range(10):
        with pytest.raises(StoreUnavailable):
            await removals.version()
    assert store.breaker.name == "CLOSED"
    with pytest.raises(StoreUnavailable):
        await removals.bans()
    with pytest.raises(StoreUnavailable):
        [page async for page in removals.records("e1")]
    await store.close()


async def test_an_entry_without_a_vector_is_listed_and_gets_one_for_its_own_record_only(opened: Opened) -> None:
    entry, other = entry_of("a"), entry_of("b")
    await opened.store.put(entry, None)
    await opened.store.put(other, vector_of(2))
    assert [name async for page in opened.store.without_vector() for name in page] == [entry.fingerprint]
    assert not await opened.store.add_vector(replace(entry, created=entry.created - 1), vector_of(1))
    assert await opened.store.add_vector(entry, vector_of(1))
    assert [name async for page in opened.store.without_vector() for name in page] == []
    assert {each.fingerprint: each.expires for each in await opened.store.vectors_of([entry.fingerprint])} == {
        entry.fingerprint: entry.expires
    }
    await opened.store.delete([entry.fingerprint])
    assert not await opened.store.add_vector(entry, vector_of(1))
    assert await opened.store.get(entry.fingerprint) is None
