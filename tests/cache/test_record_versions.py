"""Gateways of two versions of the record on one store: each has entries of its own, and a removal reaches both."""

from __future__ import annotations

import time
from dataclasses import astuple
from pathlib import Path
from struct import pack
from zlib import crc32

import msgpack

from gateway.adapters.redis.keyspace import ONE_SERVER
from gateway.adapters.redis.records import NAMELESS, encode
from gateway.cache.bans import Ban, BanConditions
from gateway.cache.bans import encode as encode_ban
from gateway.entries import Entry
from tests.features.erasure.test_erasure import ALICE, SECRET, erase, purge
from tests.features.jobs.asking import main_of
from tests.fixtures.entries import entry_of, hexed
from tests.fixtures.gateways import BOTH_CACHES, EXACT_CACHE, config_of, gateway_of
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

(FORMER,) = ONE_SERVER.former
UNREADABLE = b"\x09 of a version that nobody here reads"
ENVIRON = {"ERASURE": SECRET}


def put_former(server: OutsideServer, entry: Entry, record: bytes) -> str:
    """Store an entry as a gateway of a former version does. Return its key."""
    key = FORMER.entry(entry.fingerprint)
    server.client.hset(key, mapping={"record": record, "scope": entry.scope, "expires": entry.expires})
    server.client.pexpireat(key, int(entry.expires * 1000))
    server.client.zadd(FORMER.list_keys[0], {entry.fingerprint: entry.expires})
    return key


def as_former(entry: Entry) -> bytes:
    """Return a record of the version before."""
    packed = msgpack.packb(astuple(entry)[:-1])
    return pack(">BI", NAMELESS, crc32(packed)) + packed


async def test_a_version_leaves_the_entries_of_another_alone(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    """Neither takes the other's record for a damaged one, fetches the answer again and overwrites it."""
    config = config_of(tmp_path, main_of(upstream), store={"url": outside_store.url, "front_size": "1B"})
    async with gateway_of(config, EXACT_CACHE) as served:
        await served.chat("one")
        await until(lambda: outside_store.client.keys(ONE_SERVER.entry("*")))
        (key,) = outside_store.client.keys(ONE_SERVER.entry("*"))
        fingerprint = key.decode().removeprefix(ONE_SERVER.entry(""))
        other = put_former(outside_store, entry_of(fingerprint=fingerprint), UNREADABLE)
        assert "hit" in (await served.chat("one")).cache_status
        assert len(upstream.chats) == 1
        await served.chat("two")
        assert outside_store.client.hget(other, "record").startswith(b"\x09")
        assert await served.gateway.stores.redis.delete([fingerprint]) == 1
        assert outside_store.client.exists(other)


async def test_the_list_of_a_version_that_nobody_uses_is_trimmed(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    outside_store.client.zadd(FORMER.list_keys[0], {hexed("gone"): time.time() - 1})
    config = config_of(tmp_path, main_of(upstream), store={"url": outside_store.url})
    async with gateway_of(config, EXACT_CACHE) as served:
        assert (await served.gateway.stores.redis.stats()).entries == 0
    assert not outside_store.client.exists(FORMER.list_keys[0])


async def test_a_removal_reaches_the_entries_of_a_former_version(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    section = {"url": outside_store.url, "erasure_key_env": "ERASURE"}
    entries = [entry_of(name, subjects=(ALICE,) if name == "alice" else ()) for name in ("alice", "bob", "carol")]
    keys = [put_former(outside_store, entry, encode(entry)) for entry in entries[:2]]
    keys.append(put_former(outside_store, entries[2], UNREADABLE))
    async with gateway_of(config_of(tmp_path, main_of(upstream), store=section), EXACT_CACHE, ENVIRON) as served:
        report = (await erase(served, "user:alice"))["report"]
        assert report["counts"]["entries"] == 1
        assert [outside_store.client.exists(key) for key in keys] == [0, 1, 1]
        assert any(note.startswith("not reached: 1 stored records") for note in report["notes"])
        assert (await purge(served, route="default"))["removed"] == 1
        done = await purge(served, all=True)
        assert not any("not reached" in note for note in done["notes"])
        assert not outside_store.client.keys(FORMER.entry("*"))


async def test_the_only_gateway_of_a_store_keeps_its_answers_in_the_next_version(
    upstream: Upstream, tmp_path: Path
) -> None:
    question = "how do I reset my password"
    async with gateway_of(config_of(tmp_path, main_of(upstream)), BOTH_CACHES) as served:
        await served.chat(question)
        redis = served.gateway.stores.redis
        (name,) = [name async for name, _ in redis.fingerprints()]
        entry = await redis.get(name)
        assert entry is not None
        await redis.send("HSET", ONE_SERVER.entry(name), "record", as_former(entry))
        await redis.send("RENAME", ONE_SERVER.entry(name), FORMER.entry(name))
        await redis.send("RENAME", ONE_SERVER.list_keys[0], FORMER.list_keys[0])
    async with gateway_of(config_of(tmp_path, main_of(upstream)), BOTH_CACHES) as served:
        await until(lambda: served.gateway.recovery.ready)
        redis = served.gateway.stores.redis
        assert await redis.send("KEYS", "nearhit:1:entry:*") == [ONE_SERVER.entry(name).encode()]
        assert await redis.send("PTTL", ONE_SERVER.entry(name)) > 0
        assert await redis.send("EXISTS", FORMER.list_keys[0]) == 0
        assert served.gateway.parts.space.index.size == 1
        assert "hit" in (await served.chat(question)).cache_status
        assert len(upstream.chats) == 1


async def test_a_removal_by_a_gateway_of_a_former_version_deletes_the_entries_of_this_one(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    """The other gateway does not know their names. They are not served, and must not stay on disk either."""
    section = {"url": outside_store.url, "erasure_key_env": "ERASURE"}
    async with gateway_of(config_of(tmp_path, main_of(upstream), store=section), EXACT_CACHE, ENVIRON) as served:
        await served.chat("of alice", user="alice")
        await served.chat("of bob", user="bob")
        await until(lambda: len(outside_store.client.keys(ONE_SERVER.entry("*"))) == 2)
        ban = Ban("theirs", time.time() + 1, time.time() + 60, BanConditions(subjects=frozenset([ALICE])), erasure=True)
        fields = msgpack.unpackb(encode_ban(ban))
        del fields["records"]
        outside_store.client.hset(ONE_SERVER.key("bans"), ban.id, msgpack.packb(fields))
        outside_store.client.incr(ONE_SERVER.key("bans:version"))
        await until(lambda: len(outside_store.client.keys(ONE_SERVER.entry("*"))) == 1)
        assert "hit" in (await served.chat("of bob", user="bob")).cache_status
