"""The store keeps within its budget, what saves least leaves first, and index, front and store hold the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.adapters.redis.keyspace import ONE_SERVER
from gateway.adapters.redis.replies import nothing
from gateway.adapters.redis.store import worth_of
from gateway.cache.eviction import EvictionLedger
from gateway.errors import StoreUnavailable
from gateway.tasks import cancel_and_wait
from tests.fixtures.entries import entry_of
from tests.fixtures.gateways import Served, at_rest, config_of, gateway_of, recovered
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until


def evicted(ledger: EvictionLedger, entries: int, size: int | None = None) -> list[tuple[str, str]]:
    return list(ledger.pop_surplus(entries, size))


def test_what_saves_least_a_byte_leaves_first() -> None:
    ledger = EvictionLedger()
    ledger.put("dear", 100, 0.5, 1)
    ledger.put("cheap", 100, 0.1, 1)
    ledger.put("large", 1000, 0.5, 1)
    assert evicted(ledger, 1) == [("large", "entries"), ("cheap", "entries")]
    assert (len(ledger), ledger.bytes) == (1, 100)


def test_hits_keep_an_entry() -> None:
    ledger = EvictionLedger()
    for name in "abc":
        ledger.put(name, 100, 0.1, 1)
    for name in "aac":
        ledger.used(name)
    assert evicted(ledger, 3, 150) == [("b", "bytes"), ("c", "bytes")]


def test_what_was_popular_long_ago_leaves_in_the_end() -> None:
    ledger = EvictionLedger()
    ledger.put("old", 1, 1.0, 1)
    for _ in range(9):
        ledger.used("old")
    for i in range(30):
        ledger.put(f"new{i}", 1, 1.0, 1)
        evicted(ledger, 2)
    assert "old" not in ledger


def test_an_answer_without_a_price_is_worth_its_tokens() -> None:
    short = worth_of(entry_of(cost_dollars=0.0, output_tokens=5))
    assert 0 < short < worth_of(entry_of(cost_dollars=0.0, output_tokens=500)) < worth_of(entry_of(cost_dollars=0.01))


STEPS = st.lists(
    st.tuples(st.sampled_from(["put", "used", "drop", "seen"]), st.sampled_from("abcdefgh"), st.integers(1, 50)),
    max_size=80,
)


@given(STEPS, st.integers(0, 8), st.integers(0, 200))
def test_the_ledger_is_within_its_budget_and_its_sums_are_right(
    steps: list[tuple[str, str, int]], entries: int, size: int
) -> None:
    ledger, sizes = EvictionLedger(), dict[str, int]()
    for step, name, number in steps:
        if step == "put":
            ledger.put(name, number, number / 7, 1)
            sizes[name] = number
        elif step == "drop":
            ledger.drop(name)
            sizes.pop(name, None)
        else:
            ledger.used(name) if step == "used" else ledger.mark_seen(name, 2)
        for gone, _ in ledger.pop_surplus(entries, size):
            del sizes[gone]
        assert (len(ledger), ledger.bytes) == (len(sizes), sum(sizes.values()))
        assert len(ledger) <= entries
        assert ledger.bytes <= size
        assert {name for name in ledger.names() if ledger.is_unseen_since(name, 3)} == set(sizes)


@pytest.fixture
async def small(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    """Room for ten entries."""
    async with gateway_with(upstream, tmp_path, max_entries=10) as served:
        await at_rest(served)
        yield served


def gateway_with(upstream: Upstream, tmp_path: Path, **store: Any) -> Any:
    config = config_of(
        tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, store={"timeout": "10s", **store}
    )
    return gateway_of(config)


async def contents(served: Served) -> tuple[set[str], set[str]]:
    """The fingerprints that the store and the index hold."""
    parts = served.gateway.parts
    stored = {name async for name, _ in parts.store.fingerprints() if await served.gateway.stores.redis.get(name)}
    return stored, set(await parts.space.index.fingerprints())


async def settled(served: Served, entries: int) -> None:
    parts = served.gateway.parts
    await until(lambda: len(parts.evictions.ledger) == entries and parts.space.index.size == entries)
    await evicted_all(served)


async def evicted_all(served: Served) -> None:
    """What makes room leaves the ledger first, then the index, the store last."""
    await until(lambda: not served.gateway.parts.evictions._pending_removals)


async def test_store_front_and_index_keep_to_the_budget_and_hold_the_same(small: Served, upstream: Upstream) -> None:
    parts = small.gateway.parts
    for i in range(25):
        await small.chat(f"question number {i} about subject {i * 7919}")
        await small.chat("the one that is asked all the time")
    await settled(small, 10)
    stored, indexed = await contents(small)
    assert len(stored) == 10
    assert stored == indexed
    assert len(parts.store) == 10
    await small.gateway.gauges.sample()
    assert parts.telemetry.cache_entries.values[("store",)] == 10
    assert parts.telemetry.evictions.values[("entries",)] == 16
    before = len(upstream.calls)
    assert (await small.chat("the one that is asked all the time")).cache_status.startswith("nearhit; hit")
    assert len(upstream.calls) == before


async def test_a_budget_of_bytes_is_kept(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_with(upstream, tmp_path, max_bytes="30kB") as served:
        await recovered(served)
        for i in range(30):
            await served.chat(f"question number {i} about subject {i * 7919}")
        ledger = served.gateway.parts.evictions.ledger
        await until(lambda: ledger.bytes <= 30_000 and served.gateway.parts.space.index.size == len(ledger))
        await evicted_all(served)
        stored, indexed = await contents(served)
        assert 0 < len(stored) < 30
        assert stored == indexed
        assert set(served.gateway.parts.telemetry.evictions.values) == {("bytes",)}


async def test_what_the_server_itself_let_go_leaves_list_and_index(small: Served) -> None:
    for i in range(5):
        await small.chat(f"question number {i} about subject {i * 7919}")
    parts, redis = small.gateway.parts, small.gateway.stores.redis
    gone = [name async for name, _ in parts.store.fingerprints()][:2]
    await redis.execute(
        lambda client: client.unlink(*map(ONE_SERVER.entry, gone)), 5.0, read=nothing
    )  # as maxmemory does
    assert (await redis.stats()).entries == 5  # the overcount
    await parts.evictions.compare()
    assert (await redis.stats()).entries == 3
    assert not set(gone) & set(await parts.space.index.fingerprints())
    assert len(parts.evictions.ledger) == parts.space.index.size == 3
    assert parts.telemetry.evictions.values == {("memory",): 2.0}


async def test_a_restart_knows_what_it_holds_and_keeps_to_a_smaller_budget(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_with(upstream, tmp_path) as served:
        for i in range(12):
            await served.chat(f"question number {i} about subject {i * 7919}")
    async with gateway_with(upstream, tmp_path, max_entries=4) as served:
        await recovered(served)
        await settled(served, 4)
        stored, indexed = await contents(served)
        assert len(stored) == 4
        assert stored == indexed


async def test_what_the_index_alone_has_is_forgotten(small: Served) -> None:
    await small.chat("a question that stays")
    parts = small.gateway.parts
    ours = next(iter(await parts.space.index.fingerprints()))
    found = (await parts.store.vectors_of([ours]))[0]
    await parts.space.index.add("f" * 64, found.scope, found.vector)
    await parts.evictions.compare()
    assert await parts.space.index.fingerprints() == [ours]


async def test_a_store_that_is_away_is_told_once_and_once_that_it_is_back(
    small: Served, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    evictions, failures = small.gateway.parts.evictions, iter(range(3))

    async def compare() -> None:
        if next(failures, None) is not None:
            raise StoreUnavailable("refused")

    monkeypatch.setattr("gateway.cache.eviction.RETRY_S", 0.001)
    monkeypatch.setattr(evictions, "compare", compare)
    caplog.set_level("INFO", "nearhit.store")
    running = asyncio.create_task(evictions.run())
    await until(lambda: "the store answers again" in caplog.messages)
    await cancel_and_wait(running)
    # only what the store says: on a slow machine the watch of the event loop has a line of its own
    said = [record.message.partition(":")[0] for record in caplog.records if record.name == "nearhit.store"]
    assert said == [
        "the store does not answer",
        "the store answers again",
    ]
