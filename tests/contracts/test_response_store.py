"""What every response store must do: the real ones on real servers, with and without the front, and the fake."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from redis import Redis

from gateway.adapters.redis.client import connect
from gateway.adapters.redis.embedded_valkey import EmbeddedValkey
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.redis.store_client import COOLDOWN_S
from gateway.adapters.system.clock import SystemClock
from gateway.cache.memory_cache import TieredStore
from gateway.errors import StoreUnavailable
from gateway.ports import ResponseStore
from tests.fixtures.entries import entry_of, hexed, vector_of
from tests.fixtures.fakes import MemoryStore
from tests.fixtures.stores import OutsideServer

CLOCK = SystemClock()
PATIENCE_S = 30.0  # 500 handshakes at once take what the machine has to give
SERVERS = ("embedded", "redis", "rediss")
OUTSIDE = {"redis": "outside_store", "rediss": "tls_store", "cluster": "cluster"}


@dataclass
class Opened:
    store: ResponseStore
    url: str | None  # of the server behind it

    def other(self, embedder: str) -> RedisStore:
        """A gateway with another embedding model on the same server."""
        assert self.url is not None
        return RedisStore(connect(self.url, PATIENCE_S), embedder=embedder, timeout_s=PATIENCE_S, clock=CLOCK)


async def open_store(kind: str, request: pytest.FixtureRequest, path: Path, stack: AsyncExitStack) -> Opened:
    if kind.startswith("front-"):
        opened = await open_store(kind.removeprefix("front-"), request, path, stack)
        return Opened(TieredStore(opened.store, max_bytes=2**20, max_age_s=None, clock=CLOCK), opened.url)
    if kind == "memory":
        return Opened(MemoryStore(CLOCK), None)
    if kind == "embedded":
        server = await EmbeddedValkey.start(path, max_memory=2**26)
        stack.push_async_callback(server.stop)
        url = server.url
    else:
        url = request.getfixturevalue(OUTSIDE[kind]).url
    store = RedisStore(connect(url, PATIENCE_S), embedder="e1", timeout_s=PATIENCE_S, clock=CLOCK)
    stack.push_async_callback(store.close)
    return Opened(store, url)


@pytest.fixture(params=[*SERVERS, "cluster", "memory", *(f"front-{kind}" for kind in (*SERVERS, "memory"))])
async def opened(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Opened]:
    async with AsyncExitStack() as stack:
        yield await open_store(request.param, request, tmp_path, stack)


@pytest.fixture(params=SERVERS)
async def on_server(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[tuple[RedisStore, Redis]]:
    """A store and an operator's own client of the server that it is on."""
    async with AsyncExitStack() as stack:
        opened = await open_store(request.param, request, tmp_path, stack)
        assert opened.url is not None
        with Redis.from_url(opened.url) as client:
            yield opened.store, client


async def test_what_was_put_comes_back_field_by_field(opened: Opened) -> None:
    """The owner fields decide who may see an answer: one that changes on its way would leak."""
    entry = entry_of("a", tenant="t\u00e4nant/1", streamed=True, payload=(b"one", b"", b"\xff\x00", b"[DONE]"))
    await opened.store.put(entry, vector_of(1))
    assert await opened.store.get(entry.fingerprint) == entry


async def test_what_was_never_put_is_absent(opened: Opened) -> None:
    assert await opened.store.get(hexed("nothing")) is None
    assert await opened.store.delete([hexed("nothing")]) == 0


async def test_a_second_put_replaces_answer_and_vector(opened: Opened) -> None:
    await opened.store.put(entry_of("a", backend="old"), vector_of(1))
    replacement = entry_of("a", backend="new", question=None)
    await opened.store.put(replacement, None)
    assert await opened.store.get(replacement.fingerprint) == replacement
    assert [stored async for stored in opened.store.vectors()] == []
    assert (await opened.store.stats()).entries == 1


async def test_delete_removes_just_the_named_ones_and_counts_them(opened: Opened) -> None:
    for name in "abc":
        await opened.store.put(entry_of(name), vector_of(1))
    assert await opened.store.delete([hexed("a"), hexed("c"), hexed("nothing")]) == 2
    assert [await opened.store.get(hexed(name)) is None for name in "abc"] == [True, False, True]
    assert [stored.fingerprint async for stored in opened.store.vectors()] == [hexed("b")]
    assert await opened.store.delete([]) == 0


async def test_vectors_come_back_bit_by_bit_with_their_scope_and_expiry(opened: Opened) -> None:
    entry = entry_of("a")
    await opened.store.put(entry, vector_of(1))
    await opened.store.put(entry_of("without"), None)
    (stored,) = [stored async for stored in opened.store.vectors()]
    assert (stored.fingerprint, stored.scope, stored.expires) == (entry.fingerprint, entry.scope, entry.expires)
    assert stored.vector.dtype == np.float32
    np.testing.assert_array_equal(stored.vector, vector_of(1))


async def test_fingerprints_come_with_their_expiry_vector_or_not(opened: Opened) -> None:
    """The index compares itself with the store by these: a missing one would be taken out of it."""
    for name, vector in (("a", vector_of(1)), ("b", None), ("gone", vector_of(2))):
        await opened.store.put(entry_of(name), vector)
    await opened.store.delete([hexed("gone")])
    listed = dict([pair async for pair in opened.store.fingerprints()])
    assert listed.keys() == {hexed("a"), hexed("b")}
    for name in "ab":
        entry = await opened.store.get(hexed(name))
        assert entry is not None
        assert listed[entry.fingerprint] == pytest.approx(entry.expires, abs=0.001)


async def test_the_vectors_of_some_are_those_and_no_others(opened: Opened) -> None:
    for i, name in enumerate("abc"):
        await opened.store.put(entry_of(name), vector_of(i))
    await opened.store.put(entry_of("without"), None)
    wanted = [hexed(name) for name in ("c", "a", "without", "nothing")]
    found = {stored.fingerprint: stored.vector for stored in await opened.store.vectors_of(wanted)}
    assert found.keys() == {hexed("a"), hexed("c")}
    np.testing.assert_array_equal(found[hexed("c")], vector_of(2))
    assert list(await opened.store.vectors_of([])) == []


async def test_a_thousand_entries_are_all_there(opened: Opened) -> None:
    for i in range(1000):
        await opened.store.put(entry_of(f"n{i}"), vector_of(i))
    stats = await opened.store.stats()
    assert stats.entries == 1000
    assert stats.bytes > 1000 * 16
    found = {stored.fingerprint: stored.vector async for stored in opened.store.vectors()}
    assert set(found) == {hexed(f"n{i}") for i in range(1000)}
    assert {name async for name, _ in opened.store.fingerprints()} == set(found)
    np.testing.assert_array_equal(found[hexed("n437")], vector_of(437))
    assert (await opened.store.get(hexed("n999"))) is not None


async def test_a_thousand_operations_at_once_all_succeed(opened: Opened) -> None:
    """A burst waits for a connection; if it failed instead, the breaker would take the cache away just then."""
    entries = [entry_of(f"n{i}") for i in range(500)]
    await asyncio.gather(*(opened.store.put(entry, None) for entry in entries))
    assert await asyncio.gather(*(opened.store.get(entry.fingerprint) for entry in entries)) == entries


async def test_a_caller_that_leaves_does_not_spoil_the_connection_for_others(opened: Opened) -> None:
    """A reply that nobody waits for any more must not be taken for the next one's."""
    for i in range(20):
        await opened.store.put(entry_of(f"n{i}"), None)
    draw = random.Random(3)
    for _ in range(20):
        tasks = [asyncio.create_task(opened.store.get(hexed(f"n{i}"))) for i in range(20)]
        for _ in range(draw.randrange(1, 12)):
            await asyncio.sleep(0)
        for task in tasks[::2]:
            task.cancel()
        found = await asyncio.gather(*tasks, return_exceptions=True)
        assert [entry.fingerprint for entry in found[1::2]] == [hexed(f"n{i}") for i in range(1, 20, 2)]


async def test_an_entry_past_its_expiry_is_gone(opened: Opened) -> None:
    store = opened.store
    expired = replace(entry_of("old"), expires=CLOCK.wall() - 1)
    await (store._store if isinstance(store, TieredStore) else store).put(expired, vector_of(1))
    assert await store.get(expired.fingerprint) is None
    assert [stored async for stored in store.vectors()] == []
    assert (await store.stats()).entries == 0


async def test_the_server_itself_forgets_at_the_expiry(on_server: tuple[RedisStore, Redis]) -> None:
    """A gateway that is down must not keep answers alive: the expiry lies with the key."""
    store, client = on_server
    entry = entry_of("a", lifetime_s=90)
    await store.put(entry, vector_of(1))
    (key,) = client.keys("*entry*")
    assert client.pexpiretime(key) == int(entry.expires * 1000)


async def test_only_vectors_of_the_current_embedder_are_yielded(opened: Opened) -> None:
    if opened.url is None:
        pytest.skip("one embedder a memory store")
    other = opened.other("e2")
    await opened.store.put(entry_of("mine"), vector_of(1))
    await other.put(entry_of("theirs"), vector_of(2))
    assert [stored.fingerprint async for stored in opened.store.vectors()] == [hexed("mine")]
    assert [stored.fingerprint async for stored in other.vectors()] == [hexed("theirs")]
    assert await opened.store.get(hexed("theirs")) is not None  # the answer itself is as good as ever
    await other.close()


@pytest.mark.parametrize("record", [b"", b"\xc1", b"garbage", b"\x93\x63\x01\x02", b"\x80"])
async def test_an_unreadable_record_is_absent(on_server: tuple[RedisStore, Redis], record: bytes) -> None:
    store, client = on_server
    entry = entry_of("a")
    await store.put(entry, None)
    (key,) = client.keys("*entry*")
    client.hset(key, "record", record)
    assert await store.get(entry.fingerprint) is None


async def test_a_record_under_a_foreign_key_is_absent(on_server: tuple[RedisStore, Redis]) -> None:
    """A record says itself which request it answers; one that lies elsewhere is nobody's."""
    store, client = on_server
    await store.put(entry_of("a"), None)
    (key,) = client.keys("*entry*")
    client.copy(key, key.replace(hexed("a").encode(), hexed("b").encode()))
    assert await store.get(hexed("b")) is None


@pytest.mark.parametrize(
    "fields",
    [{"vector": b"abc"}, {"vector": b""}, {"expires": b"soon"}, {"scope": b"\xff"}],
    ids=["cut-vector", "empty-vector", "expiry", "scope"],
)
async def test_a_damaged_vector_hides_no_other(on_server: tuple[RedisStore, Redis], fields: dict[str, bytes]) -> None:
    store, client = on_server
    await store.put(entry_of("damaged"), vector_of(1))
    (key,) = client.keys("*entry*")
    await store.put(entry_of("sound"), vector_of(2))
    client.hset(key, mapping=fields)
    assert [stored.fingerprint async for stored in store.vectors()] == [hexed("sound")]


@pytest.mark.parametrize("lease", [0, 7])
async def test_a_server_without_room_refuses_a_put_and_keeps_what_was_there(
    on_server: tuple[RedisStore, Redis], lease: int
) -> None:
    store, client = on_server
    before = entry_of("a", backend="before")
    await store.put(before, vector_of(1), lease)
    policy, kept = client.config_get("maxmemory-policy"), client.config_get("maxmemory")
    client.config_set("maxmemory-policy", "noeviction")
    client.config_set("maxmemory", 1)
    try:
        with pytest.raises(StoreUnavailable, match="the store refused"):
            await store.put(entry_of("a", backend="after", payload=(b"x" * 10_000,)), None, lease)
    finally:
        client.config_set("maxmemory", kept["maxmemory"])
        client.config_set("maxmemory-policy", policy["maxmemory-policy"])
    assert await store.get(before.fingerprint) == before
    assert [stored.fingerprint async for stored in store.vectors()] == [before.fingerprint]


async def test_what_an_answer_had_beside_it_goes_with_it(on_server: tuple[RedisStore, Redis]) -> None:
    store, client = on_server
    await store.put(entry_of("a"), vector_of(1), 7)
    (key,) = client.keys("*entry*")
    client.hset(key, mapping={"former": b"v", "former_embedder": b"e0"})
    await store.put(entry_of("a", backend="after"), None)
    assert set(client.hkeys(key)) == {b"record", b"scope", b"expires", b"worth"}


async def test_a_server_that_was_started_anew_keeps_what_is_put_first(on_server: tuple[RedisStore, Redis]) -> None:
    """What finds out that it is there again finds, too, that it has forgotten its scripts."""
    store, client = on_server
    client.script_flush()
    store._store_client._breaker.eject(CLOCK.monotonic() - COOLDOWN_S)  # one may try whether it is there
    assert await store.put(entry_of("a"), None)
    assert await store.get(hexed("a")) is not None


async def test_keys_of_others_in_the_same_database_are_left_alone(on_server: tuple[RedisStore, Redis]) -> None:
    store, client = on_server
    client.set("session:1", "theirs")
    client.zadd("entries", {"theirs": 0})
    await store.put(entry_of("a"), vector_of(1))
    await store.stats()
    assert len([stored async for stored in store.vectors()]) == 1
    await store.delete([hexed("a"), "session:1"])
    assert client.get("session:1") == b"theirs"
    assert client.zrange("entries", 0, -1) == [b"theirs"]


async def test_a_certificate_that_nobody_vouches_for_is_refused(tls_store: OutsideServer) -> None:
    url = tls_store.url.partition("?")[0]
    store = RedisStore(connect(url, PATIENCE_S), embedder="e1", timeout_s=PATIENCE_S, clock=CLOCK)
    with pytest.raises(StoreUnavailable, match=r"(?i)certificate"):
        await store.get(hexed("a"))
    await store.close()


async def test_a_wrong_password_makes_the_store_unavailable_and_is_not_repeated(outside_store: OutsideServer) -> None:
    store = RedisStore(
        connect(outside_store.url.replace("s3cret", "wr0ng"), PATIENCE_S), embedder="e", timeout_s=5.0, clock=CLOCK
    )
    with pytest.raises(StoreUnavailable) as refused:
        await store.put(entry_of("a"), None)
    assert "wr0ng" not in str(refused.value)
    await store.close()


async def test_an_amendment_replaces_the_record_it_was_made_for_and_keeps_the_vector(opened: Opened) -> None:
    entry, vector = entry_of("a"), vector_of(1)
    await opened.store.put(entry, vector)
    amended = replace(entry, askers=("k",))
    assert await opened.store.amend(entry, amended)
    assert await opened.store.get(entry.fingerprint) == amended
    assert [stored.fingerprint for stored in await opened.store.vectors_of([entry.fingerprint])] == [entry.fingerprint]
    assert not await opened.store.amend(entry, replace(entry, askers=("x",))), "the record is another one now"
    assert await opened.store.get(entry.fingerprint) == amended


async def test_what_is_gone_is_not_amended(opened: Opened) -> None:
    entry = entry_of("a")
    assert not await opened.store.amend(entry, replace(entry, askers=("k",)))
    assert await opened.store.get(entry.fingerprint) is None
