"""A store that is far away: how often a request and a purge wait for it. Round trips are counted, not timed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import pytest

from gateway.adapters.redis.store_client import Script
from gateway.features.replicas import store as replica_store
from gateway.features.replicas.lease_store import LOOK_UP, RENEW
from gateway.tasks import cancel_and_wait
from tests.fixtures.entries import entry_of
from tests.fixtures.far_store import FarStore, Sent, far_store
from tests.fixtures.gateways import Served, at_rest, config_of, gateway_of
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

DELAY_S = 0.02  # in each direction: commands that do not wait for each other are sent within it
ENTRIES = 826
PATIENCE_S = 60.0


@pytest.fixture
async def far(outside_store: OutsideServer) -> AsyncIterator[FarStore]:
    async with far_store(outside_store.url, DELAY_S) as store:
        yield store


@pytest.fixture
async def served(
    far: FarStore, upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Served]:
    monkeypatch.setattr(replica_store, "TTL_S", 600.0)
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, store={"url": far.url})
    async with gateway_of(config) as gateway:
        await at_rest(gateway)
        yield gateway


def concerns(fingerprint: str) -> Callable[[Sent], bool]:
    """Return the test for commands about an entry. Leases are renewed in the background."""
    return lambda command: not runs(command, RENEW) and any(fingerprint.encode() in word for word in command.words[1:])


def runs(command: Sent, script: Script) -> bool:
    return script.digest.encode() in command.words or script.text.encode() in command.words


def fingerprint_of(commands: Sequence[Sent]) -> str:
    """Return the fingerprint of the only lookup among commands."""
    (lookup,) = (command for command in commands if runs(command, LOOK_UP))
    return lookup.words[3].rpartition(b":")[2].decode()


async def settled(served: Served) -> None:
    """Return when the store has confirmed all writes."""
    leases = served.gateway.parts.fleet.leasing.leases
    assert leases is not None
    await until(lambda: leases.active == 0)


async def released(served: Served, fingerprint: str) -> None:
    """Return when nobody holds the lease of an entry. No lease of these tests ends by time."""
    leases = served.gateway.stores.shared.leases
    assert leases is not None
    async with asyncio.timeout(PATIENCE_S):
        while await leases.holders([fingerprint]) != [0]:
            await asyncio.sleep(0.01)


async def warmed(served: Served) -> None:
    """Let the server learn the scripts, and the gateway open its connection."""
    await served.chat("one before")
    await settled(served)


async def test_a_miss_waits_for_one_round_trip_before_the_call_and_for_none_after_it(
    served: Served, far: FarStore, upstream: Upstream
) -> None:
    await warmed(served)
    far.commands.clear()
    upstream.gate.clear()
    upstream.arrived.clear()
    asking = asyncio.create_task(served.chat("what is the time?"))
    async with asyncio.timeout(PATIENCE_S):
        await upstream.arrived.wait()
    fingerprint = fingerprint_of(far.commands)
    assert far.round_trips(concerns(fingerprint)) == 1
    assert len(list(filter(concerns(fingerprint), far.commands))) == 1
    with far.silent():
        upstream.gate.set()
        async with asyncio.timeout(PATIENCE_S):
            answer = await asking
            assert answer.cache_status == "nearhit; fwd=miss; stored"
            again = await served.chat("what is the time?")
            assert again.cache_status.startswith("nearhit; hit; detail=exact")
    await settled(served)
    assert await served.gateway.stores.redis.get(fingerprint) is not None
    assert len(list(filter(concerns(fingerprint), far.commands))) == 3, "the write, and the read of this test"


async def test_a_stream_ends_without_the_store(served: Served, far: FarStore, upstream: Upstream) -> None:
    await warmed(served)
    upstream.gate.clear()
    upstream.arrived.clear()
    asking = asyncio.create_task(served.chat("what is the time?", stream=True))
    async with asyncio.timeout(PATIENCE_S):
        await upstream.arrived.wait()
        with far.silent():
            upstream.gate.set()
            assert b"[DONE]" in (await asking).body
            assert (await served.chat("what is the time?")).cache_status.startswith("nearhit; hit; detail=exact")


async def test_the_lease_of_an_answer_lasts_until_the_store_has_it(
    served: Served, far: FarStore, upstream: Upstream
) -> None:
    await warmed(served)
    leases = served.gateway.parts.fleet.leasing.leases
    assert leases is not None
    upstream.gate.clear()
    upstream.arrived.clear()
    asking = asyncio.create_task(served.chat("what is the time?"))
    async with asyncio.timeout(PATIENCE_S):
        await upstream.arrived.wait()
        with far.silent():
            upstream.gate.set()
            await asking
            assert leases.active == 1
        await settled(served)


async def test_a_similar_hit_returns_the_lease(served: Served, far: FarStore, upstream: Upstream) -> None:
    await warmed(served)
    await served.chat("What is the capital of France?")
    await settled(served)
    far.commands.clear()
    answer = await served.chat("what is the capital of France?")
    assert answer.cache_status.startswith("nearhit; hit; detail=semantic")
    fingerprint, redis = fingerprint_of(far.commands), served.gateway.stores.redis
    await released(served, fingerprint)
    assert await redis.get(fingerprint) is None


async def test_a_client_that_leaves_during_the_lookup_leaves_no_lease(served: Served, far: FarStore) -> None:
    await warmed(served)
    far.commands.clear()
    with far.silent():
        asking = asyncio.create_task(served.chat("what is the time?"))
        await until(lambda: any(runs(command, LOOK_UP) for command in far.commands))
        await cancel_and_wait(asking)
        await until(lambda: served.gateway.inflight.count == 0)
    await released(served, fingerprint_of(far.commands))


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
