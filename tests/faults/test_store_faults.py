"""The cache is an optimisation: whatever becomes of the store or of the embedder, requests are answered.

The stores here are real processes that are really frozen, killed and filled.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.redis.store_client import COOLDOWN_S, FAILURES
from gateway.cache import recovery
from gateway.circuit_breaker import BreakerState
from tests.fixtures.clock import FakeClock
from tests.fixtures.entries import entry_of, vector_of
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of, recovered, store_pid
from tests.fixtures.stores import OutsideServer, frozen, outside_server
from tests.fixtures.triton import free_ports
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

pytestmark = pytest.mark.usefixtures("killed_for_good")

NO_FRONT = "1kB"  # too small for an entry: every lookup asks the store
HUNG_S = 0.1  # that a store is waited for which hangs; one that does not has as long as a busy machine needs
PATIENCE_S = 60.0  # who waits longer is stuck


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


def config_for(upstream: Upstream, path: Path, url: str = "embedded") -> Any:
    store = {"url": url, "front_size": NO_FRONT}
    return config_of(path, {"main": {"adapter": "openai", "url": upstream.url, "adaptive": "off"}}, store=store)


@pytest.fixture
async def embedded(upstream: Upstream, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Served]:
    """With an embedded store that no answer is kept in front of."""
    async with gateway_of(config_for(upstream, tmp_path), clock=clock) as served:
        yield served


def is_hit(answer: Answer) -> bool:
    return answer.status == 200 and answer.cache_status.startswith("nearhit; hit")


def is_miss(answer: Answer) -> bool:
    return answer.status == 200 and answer.cache_status.startswith("nearhit; fwd=miss")


@contextmanager
def hung(served: Served) -> Iterator[None]:
    """Its store keeps its connections and answers nothing."""
    with pytest.MonkeyPatch.context() as patch, frozen(store_pid(served)):
        patch.setattr(served.gateway.stores.redis._store_client, "_timeout_s", HUNG_S)
        yield


async def hits_again(served: Served, clock: FakeClock) -> None:
    """Once the breaker's cooldown is over; what others asked before may fail behind that, and another one begins."""
    async with asyncio.timeout(PATIENCE_S):
        clock.advance(COOLDOWN_S + 0.1)
        while not is_hit(await served.chat("hi")):
            clock.advance(COOLDOWN_S + 0.1)


async def ready(served: Served) -> dict[str, Any]:
    answer = await served.get("/readyz")
    assert answer.status == 200
    return dict(answer.json)


async def test_a_hung_store_costs_its_timeout_and_no_request(embedded: Served, clock: FakeClock) -> None:
    assert is_miss(await embedded.chat("hi"))
    assert is_hit(await embedded.chat("hi"))
    with hung(embedded):
        for _ in range(FAILURES):
            async with asyncio.timeout(PATIENCE_S):  # a lookup and a put, each cut off: the store itself never answers
                assert is_miss(await embedded.chat("hi"))
        assert (await ready(embedded))["store_breaker"] == "open"
        errors = embedded.gateway.parts.telemetry.store_errors.total()
        async with asyncio.timeout(PATIENCE_S):
            for answer in await asyncio.gather(*(embedded.chat(f"hi {i}") for i in range(50))):
                assert is_miss(answer)
        assert embedded.gateway.parts.telemetry.store_errors.total() >= errors + 50
    await hits_again(embedded, clock)
    assert (await ready(embedded))["store_breaker"] == "closed"


async def test_the_breaker_opens_after_five_failures_at_most(embedded: Served) -> None:
    with hung(embedded):
        await asyncio.gather(*(embedded.chat(f"hi {i}") for i in range(FAILURES)))
        assert embedded.gateway.stores.redis.breaker is BreakerState.OPEN


async def test_a_probe_of_a_store_that_still_hangs_delays_one_request_only(embedded: Served, clock: FakeClock) -> None:
    with hung(embedded):
        await asyncio.gather(*(embedded.chat(f"hi {i}") for i in range(10)))
        clock.advance(COOLDOWN_S + 0.1)
        async with asyncio.timeout(PATIENCE_S):
            answers = await asyncio.gather(*(embedded.chat(f"ho {i}") for i in range(30)))
        assert all(map(is_miss, answers))
        # The probe may have been taken by work beside the requests, which has more time.
        await until(lambda: embedded.gateway.stores.redis.breaker is BreakerState.OPEN)


async def test_a_killed_store_makes_every_request_a_miss(embedded: Served) -> None:
    assert is_miss(await embedded.chat("hi"))
    os.kill(store_pid(embedded), signal.SIGKILL)
    for i in range(20):
        assert is_miss(await embedded.chat("hi" if i % 2 else f"hi {i}", stream=i % 3 == 0))
    assert embedded.gateway.stores.redis.breaker is BreakerState.OPEN
    assert (await embedded.get("/readyz")).status == 200, "a gateway without its cache serves"


async def test_hot_answers_outlive_the_store(served: Served, upstream: Upstream) -> None:
    await served.chat("hi")
    os.kill(store_pid(served), signal.SIGKILL)
    for stream in (False, True, False):
        assert is_hit(await served.chat("hi", stream=stream))
    assert len(upstream.calls) == 1


async def test_a_store_that_is_absent_at_the_start_is_used_once_it_is_there(
    upstream: Upstream, tmp_path: Path, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index is filled then, too: what other gateways have stored is found by its meaning."""
    monkeypatch.setattr(recovery, "RETRY_S", 0.01)
    (port,) = free_ports(1)
    url = f"redis://:s3cret@127.0.0.1:{port}/0"
    config = config_for(upstream, tmp_path / "one", url)
    async with gateway_of(config, clock=clock) as served:
        assert is_miss(await served.chat("hi"))
        await until(lambda: served.gateway.stores.redis.breaker is BreakerState.OPEN)
        assert (await ready(served))["index_ready"] is False
        with outside_server(tmp_path, port=port):
            async with gateway_of(config_for(upstream, tmp_path / "two", url), clock=clock) as other:
                await other.chat("what is the answer to everything else")
            clock.advance(COOLDOWN_S + 0.1)
            await until(lambda: served.gateway.recovery.ready)
            assert served.gateway.parts.space.index.size == 1
            assert is_hit(await served.chat("what is the answer to everything else"))
            semantic = await served.chat("What is the answer to everything else?")
            assert semantic.cache_status == "nearhit; hit; detail=semantic"


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru"])
async def test_a_full_store_still_serves_what_it_holds(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer, policy: str
) -> None:
    client = outside_store.client
    async with gateway_of(config_for(upstream, tmp_path, outside_store.url)) as served:
        assert is_miss(await served.chat("first"))
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory-policy", policy)
        client.config_set("maxmemory", used + (0 if policy == "noeviction" else 400_000))
        try:
            for i in range(40):
                assert is_miss(await served.chat(f"{i} " + "x" * 20_000))
            if policy == "noeviction":
                assert is_hit(await served.chat("first"))
            assert served.gateway.stores.redis.breaker is BreakerState.CLOSED, "a server that answers is not down"
            assert client.info("memory")["used_memory"] < used + 1_000_000
        finally:
            client.config_set("maxmemory", 0)
        assert is_miss(await served.chat("last"))
        assert is_hit(await served.chat("last"))


async def test_a_burst_of_refused_writes_does_not_take_the_reads_away(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer
) -> None:
    """A full server refuses to write and reads as ever: that is no reason to open the breaker."""
    client = outside_store.client
    async with gateway_of(config_for(upstream, tmp_path, outside_store.url)) as served:
        assert is_miss(await served.chat("first"))
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", 1)
        try:
            upstream.gate.clear()
            crowd = [asyncio.create_task(served.chat(f"hi {i}")) for i in range(12)]
            await until(lambda: len(upstream.calls) == 13)
            upstream.gate.set()  # twelve writes with no read between them
            assert all(map(is_miss, await asyncio.gather(*crowd)))
            assert is_hit(await served.chat("first"))
        finally:
            client.config_set("maxmemory", 0)


async def test_stored_vectors_that_the_index_refuses_do_not_keep_it_from_the_others(
    upstream: Upstream, tmp_path: Path, clock: FakeClock
) -> None:
    config = config_for(upstream, tmp_path)
    async with gateway_of(config, clock=clock) as served:
        await served.chat("hi")
        await served.gateway.parts.store.put(entry_of("odd"), vector_of(1, dimension=7))
    async with gateway_of(config, clock=clock) as served:
        await recovered(served)
        assert served.gateway.parts.space.index.size == 1
