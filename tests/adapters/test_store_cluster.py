"""Gateways on a Redis Cluster do what they do on one server: real nodes, real gateways."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from redis.crc import key_slot

from gateway.adapters.redis.keyspace import BUCKETS, CLUSTERED, ONE_SERVER, WIDTH
from gateway.adapters.redis.records import VERSION
from gateway.adapters.redis.replies import nothing
from gateway.cli.doctor.store import store as look_at
from tests.admin.test_purge import purged
from tests.features.jobs.asking import over
from tests.fixtures.entries import hexed
from tests.fixtures.gateways import BOTH_CACHES, Served, config_of, gateway_of, recovered
from tests.fixtures.store_cluster import ClusterFleet, store_cluster
from tests.fixtures.store_fleets import ENVIRON, Certificates, eventually
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

ALIKE = BOTH_CACHES.replace("max_wrong_hits: 1%", "min_similarity: 0.8")
ASKED, SAME = "how do I reset the password of my account", "How do I reset the password of my account?"


@given(st.text(min_size=1))
def test_an_entry_lies_with_its_lease_its_list_and_their_counter(name: str) -> None:
    keys = [part(name) for part in (CLUSTERED.entry, CLUSTERED.lease, CLUSTERED.list_key, CLUSTERED.counter)]
    assert len({key_slot(key.encode()) for key in keys}) == 1
    assert CLUSTERED.list_key(name) in CLUSTERED.list_keys
    assert key_slot(keys[0].encode()) // WIDTH == key_slot(name.encode()) // WIDTH


def test_entries_spread_evenly_over_the_slots() -> None:
    buckets = Counter(key_slot(key.encode()) // WIDTH for key in CLUSTERED.list_keys)
    assert buckets == dict.fromkeys(range(BUCKETS), 1)


def test_the_names_of_entries_have_the_version_of_the_record() -> None:
    assert ONE_SERVER.entry("f") == f"nearhit:1:entry:{VERSION}:f"
    assert ONE_SERVER.list_keys == [f"nearhit:1:entries:{VERSION}"]
    assert [names.entry("f") for names in ONE_SERVER.former] == ["nearhit:1:entry:f"]
    assert [names.list_keys for names in ONE_SERVER.former] == [["nearhit:1:entries"]]
    names = {part("f") for part in (ONE_SERVER.lease, ONE_SERVER.counter)}
    assert names == {f"nearhit:1:lease:{VERSION}:f", f"nearhit:1:leases:{VERSION}"}
    assert ONE_SERVER.key("bans:version") == "nearhit:1:bans:version"


def config_for(cluster: ClusterFleet, upstream: Upstream, folder: Path) -> Any:
    store = {**cluster.section, "timeout": "10s", "front_size": "1kB"}
    return config_of(folder, {"main": {"adapter": "openai", "url": upstream.url}}, store=store)


async def test_gateways_on_a_cluster_share_answers_in_other_words_and_removals(
    cluster: ClusterFleet, upstream: Upstream, tmp_path: Path
) -> None:
    async with (
        gateway_of(config_for(cluster, upstream, tmp_path / "1"), ALIKE, ENVIRON) as one,
        gateway_of(config_for(cluster, upstream, tmp_path / "2"), ALIKE, ENVIRON) as other,
    ):
        await recovered(one)
        await recovered(other)
        await one.chat(ASKED, headers={"Cache-Tag": "t"})
        for number in range(20):
            await one.chat(hexed(str(number)), headers={"Cache-Tag": "t"})
        assert (await other.chat(ASKED)).cache_status.startswith("nearhit; hit; detail=exact")
        stored = (await one.gateway.stores.redis.stats()).entries  # some of the others are alike
        assert stored > 10
        await until(lambda: other.gateway.parts.space.index.size == stored)
        assert (await other.chat(SAME)).cache_status == "nearhit; hit; detail=semantic"
        assert all(node.client.dbsize() for node in cluster.nodes), "entries lie on all nodes"
        assert await purged(one, tags=["t"]) == stored
        await until(lambda: len(other.gateway.stores.front.bans) == 1)
        assert not (await other.chat(ASKED)).cache_status.startswith("nearhit; hit")
        assert errors(one) == errors(other) == 0


def errors(served: Served) -> float:
    return float(served.gateway.parts.telemetry.store_errors.total())


async def test_jobs_limits_and_what_is_learnt_live_in_a_cluster(
    cluster: ClusterFleet, upstream: Upstream, tmp_path: Path
) -> None:
    policy = ALIKE + "    limits:\n      - {requests: 2/h}\n"
    config = config_for(cluster, upstream, tmp_path)
    async with gateway_of(config, policy, ENVIRON) as served:
        await recovered(served)
        body = {"model": "m", "messages": [{"role": "user", "content": "later"}]}
        accepted = await served.post("/v1/jobs", {"path": "/v1/chat/completions", "body": body})
        assert accepted.status == 202, accepted.body
        assert (await over(served, accepted.json["id"]))["status"] == "completed"
        statuses = [(await served.chat(f"question {number}")).status for number in range(3)]
        assert sorted(statuses) == [200, 429, 429], "the job was one of two"
        assert errors(served) == 0
    (said, *_) = await look_at(config, ENVIRON, gateway_runs=False)
    assert said.level.name == "OK", said.found


@pytest.mark.parametrize("many", [1, 400])
async def test_many_entries_are_deleted_at_once(
    cluster: ClusterFleet, upstream: Upstream, tmp_path: Path, many: int
) -> None:
    async with gateway_of(config_for(cluster, upstream, tmp_path), ALIKE, ENVIRON) as served:
        await recovered(served)
        store = served.gateway.stores.redis
        await served.chat("kept")
        names = [f"{number:064x}" for number in range(many)]
        for name in names:
            await store.execute(
                lambda client, name=name: client.hset(store.names.entry(name), "record", b"x"), 5.0, read=nothing
            )
        assert await store.delete(names) == many
        assert (await served.chat("kept")).cache_status.startswith("nearhit; hit")


async def test_nodes_that_speak_tls_alone_and_ask_for_a_certificate(upstream: Upstream, tmp_path: Path) -> None:
    with store_cluster(tmp_path, certificates=Certificates(tmp_path)) as cluster:
        async with gateway_of(config_for(cluster, upstream, tmp_path / "1"), ALIKE, ENVIRON) as one:
            await recovered(one)
            for number in range(20):
                await one.chat(hexed(str(number)))
            await one.chat(ASKED)
            # Replicas follow by TLS, too.
            await asyncio.to_thread(eventually, lambda: all(node.client.dbsize() for node in cluster.nodes))
            assert (await one.chat(SAME)).cache_status == "nearhit; hit; detail=semantic"
            assert await purged(one, all=True) > 10
            # The client remembers where slots lie: another node takes this one's place, and it has to find that out.
            primary, replica = cluster.primary_and_replica(CLUSTERED.key("bans"))
            cluster.miss_soon()
            primary.kill()
            await asyncio.to_thread(eventually, lambda: replica.role() == "master")
            assert (await one.chat("after that")).status == 200


async def test_slots_that_move_to_another_node_while_requests_come(upstream: Upstream, tmp_path: Path) -> None:
    """What lies in them is found all the while, but for what is on its way in that moment, which is a miss."""
    with store_cluster(tmp_path, replicas=False) as cluster:
        async with gateway_of(config_for(cluster, upstream, tmp_path / "1"), ALIKE, ENVIRON) as one:
            await recovered(one)
            questions = [hexed(str(number)) for number in range(30)]
            for question in questions:
                await one.chat(question)
            stored = (await one.gateway.stores.redis.stats()).entries  # some are alike
            fingerprints = list(await one.gateway.parts.space.index.fingerprints())
            moved = [CLUSTERED.entry(fingerprint) for fingerprint in fingerprints[:10]]
            moved += [CLUSTERED.key(name) for name in ("bans", "changes", "quota", "spoken")]
            moving = asyncio.create_task(asyncio.to_thread(lambda: [cluster.move_slot(key) for key in moved]))
            asked = 0
            while not moving.done():
                assert (await one.chat(questions[asked % len(questions)])).status == 200
                asked += 1
            await moving
            for question in questions:
                assert (await one.chat(question)).cache_status.startswith("nearhit; hit")
            assert asked > 0
            assert await purged(one, all=True) >= stored > 20
            assert not (await one.chat(questions[0])).cache_status.startswith("nearhit; hit")
