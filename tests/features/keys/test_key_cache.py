"""How long a key is believed, and what is asked of the store for it; and what the store has to do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.adapters.redis.client import connect
from gateway.adapters.redis.store import RedisStore
from gateway.adapters.system.clock import SystemClock
from gateway.config.key_format import digest_of, new_key
from gateway.errors import Overloaded, StoreUnavailable
from gateway.features.keys import cache
from gateway.features.keys.admin import KeyAdmin, KeyRotation, KeySpec, KeyUpdate
from gateway.features.keys.cache import MAX_AGE_S, KeyCache
from gateway.features.keys.records import KeyChange, VersionConflict
from gateway.features.keys.redis import RedisApiKeys
from gateway.observability.telemetry import Telemetry
from gateway.principal import Principal
from tests.admin.keys import ADMIN, admin, bearer, create, keyed
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import EXACT_CACHE, PATIENT_S, gateway_of
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream

WANTED = KeySpec(name="app", tenant="acme")


@pytest.fixture
async def store(outside_store: OutsideServer) -> AsyncIterator[RedisApiKeys]:
    client = connect(outside_store.url, PATIENT_S)
    redis = RedisStore(client, embedder="e", timeout_s=PATIENT_S, clock=SystemClock())
    yield RedisApiKeys(redis)
    await redis.close()


def keyring_of(store: RedisApiKeys, clock: FakeClock) -> KeyCache:
    return KeyCache(store, {}, clock, Telemetry(), grace_s=60.0)


async def test_a_change_of_what_has_changed_meanwhile_is_refused(store: RedisApiKeys) -> None:
    change = KeyChange("key_a", None, b"1", ["d1"], [])
    await store.swap(change)
    assert await store.by_digest("d1") == await store.by_id("key_a") == b"1"
    with pytest.raises(VersionConflict):
        await store.swap(change)
    versions = [await store.version()]
    await store.swap(KeyChange("key_a", b"1", b"2", ["d2", "d3"], ["d1"]))
    assert [await store.by_digest(name) for name in ("d1", "d2", "d3")] == [None, b"2", b"2"]
    versions.append(await store.version())
    assert await store.swap(KeyChange("key_a", b"2", None, [], ["d2", "d3"]), synced=True) is False, "no file, no disk"
    versions.append(await store.version())
    assert len(set(versions)) == 3
    assert await store.listed() == []
    assert await store.by_digest("d2") is None


async def test_a_key_that_another_gateway_ends_is_believed_for_a_second_at_most(store: RedisApiKeys) -> None:
    """Also where its version cannot be asked for: then each use asks the store."""
    clock = FakeClock()
    here, there = keyring_of(store, clock), keyring_of(store, clock)
    chain = KeyAdmin(store, there.refresh, clock)
    key, text = await chain.create(WANTED, {}, "test")
    await here.refresh()
    permit = await here.find(digest_of(text))
    assert isinstance(permit, Principal)
    assert here.cached(digest_of(text)) is permit
    await chain.revoke(key.id)
    assert here.is_valid(permit), "it has not heard of it"
    clock.advance(MAX_AGE_S + 0.001)
    assert not here.is_valid(permit)
    assert await here.find(digest_of(text)) == "revoked"
    await here.refresh()
    assert await here.find(digest_of(text)) == "revoked"


async def test_what_is_no_key_is_asked_for_once_until_a_key_changes(store: RedisApiKeys) -> None:
    keyring = keyring_of(store, FakeClock())
    await keyring.refresh()
    stranger = digest_of(new_key())
    for _ in range(3):
        assert await keyring.find(stranger) == "unknown"
    assert keyring._telemetry.key_lookups.values == {("absent",): 1}
    await KeyAdmin(store, keyring.refresh, FakeClock()).create(WANTED, {}, "test")
    assert await keyring.find(stranger) == "unknown"
    assert keyring._telemetry.key_lookups.values == {("absent",): 2}


async def test_what_is_known_is_bounded_and_strangers_push_out_no_key(
    store: RedisApiKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "MAX_KNOWN", 5)
    monkeypatch.setattr(cache, "MAX_UNKNOWN", 3)
    keyring = keyring_of(store, FakeClock())
    chain = KeyAdmin(store, keyring.refresh, FakeClock())
    texts = [(await chain.create(WANTED, {}, "test"))[1] for _ in range(7)]
    for text in texts:
        await keyring.find(digest_of(text))
    for _ in range(20):
        await keyring.find(digest_of(new_key()))
    assert list(keyring._known) == [digest_of(text) for text in texts[-5:]]
    assert len(keyring._unknown) == 3


async def test_a_crowd_that_shows_one_key_asks_once(store: RedisApiKeys) -> None:
    keyring = keyring_of(store, FakeClock())
    _, text = await KeyAdmin(store, keyring.refresh, FakeClock()).create(WANTED, {}, "test")
    found = await asyncio.gather(*(keyring.find(digest_of(text)) for _ in range(50)))
    assert all(isinstance(each, Principal) for each in found)
    assert keyring._telemetry.key_lookups.values == {("found",): 1}


async def test_grace_counts_from_when_the_store_last_confirmed_a_key(
    store: RedisApiKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = FakeClock()
    keyring = keyring_of(store, clock)
    chain = KeyAdmin(store, keyring.refresh, clock)
    _, text = await chain.create(WANTED, {}, "test")
    await keyring.find(digest_of(text))
    clock.advance(3600)  # an hour in which the store has said all the time that nothing changed
    await keyring.refresh()
    await chain.create(WANTED, {}, "test")  # and then something did, which is the last that is heard of it

    async def away(*_: object) -> bytes:
        raise StoreUnavailable("away")

    monkeypatch.setattr(store, "by_digest", away)
    monkeypatch.setattr(store, "version", away)
    clock.advance(59)
    assert isinstance(await keyring.find(digest_of(text)), Principal)
    clock.advance(2)
    with pytest.raises(Overloaded):
        await keyring.find(digest_of(text))


async def test_two_who_change_a_key_at_once_both_do(store: RedisApiKeys) -> None:
    clock = FakeClock()
    chain = KeyAdmin(store, keyring_of(store, clock).refresh, clock)
    key, _ = await chain.create(WANTED, {}, "test")
    await asyncio.gather(
        chain.rotate(key.id, KeyRotation()),
        chain.change(key.id, KeyUpdate(models=("a-*",)), {"models": ["a-*"]}),
        chain.rotate(key.id, KeyRotation()),
    )
    after = await chain.get_key(key.id)
    assert (len(after.secrets), after.models) == (3, ("a-*",))


async def test_a_revocation_holds_on_the_other_gateway_within_a_second(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer
) -> None:
    """By the real clock, on two gateways, while the key is in use: hits of the front included."""
    async with AsyncExitStack() as stack:
        first, second = [
            await stack.enter_async_context(
                gateway_of(keyed(tmp_path / name, upstream, store={"url": outside_store.url}), EXACT_CACHE, ADMIN)
            )
            for name in ("first", "second")
        ]
        took = []
        for _ in range(3):
            made = await create(first)
            for _ in range(3):
                assert (await second.chat("hi", headers=bearer(made["key"]))).status == 200
            assert (await admin(first, "POST", f"/admin/keys/{made['id']}/revoke")).status == 200
            revoked = begun = time.monotonic()
            while (await second.chat("hi", headers=bearer(made["key"]))).status == 200:
                took.append(begun - revoked)  # this one was let in, however long the machine took to answer it
                await asyncio.sleep(0.005)
                begun = time.monotonic()
            assert (await first.chat("hi", headers=bearer(made["key"]))).status == 401
    assert max(took, default=0.0) <= MAX_AGE_S, took
