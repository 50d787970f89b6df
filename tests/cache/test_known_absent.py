"""The embedded store is not asked for what it is known not to have; all that is promised of it holds."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.redis.entry_sizes import RedisEntrySizes
from gateway.adapters.redis.store import RedisStore
from gateway.cache.eviction import Evictor
from gateway.cache.memory_cache import TieredStore
from gateway.entries import Entry
from gateway.errors import StoreUnavailable
from gateway.ports import EntrySize
from tests.fixtures.entries import hexed
from tests.fixtures.gateways import EXACT_CACHE, Served, at_rest, config_of, gateway_of
from tests.fixtures.processes import served_by_process, write_config
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

NO_FRONT = {"timeout": "10s", "front_size": "1kB"}  # too small for an entry: every hit is the store's


def gateway_before(upstream: Upstream, directory: Path, **store: Any) -> Any:
    config = config_of(directory, {"main": {"adapter": "openai", "url": upstream.url}}, store={**NO_FRONT, **store})
    return gateway_of(config, EXACT_CACHE)


@pytest.fixture
async def alone(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    async with gateway_before(upstream, tmp_path) as served:
        await at_rest(served)
        yield served


@pytest.fixture
def looked_up(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The fingerprints that the store was asked for."""
    asked, get = list[str](), RedisStore.get

    async def noted(store: RedisStore, fingerprint: str) -> Entry | None:
        asked.append(fingerprint)
        return await get(store, fingerprint)

    monkeypatch.setattr(RedisStore, "get", noted)
    return asked


async def test_a_miss_is_not_asked_of_the_store_and_a_hit_is(looked_up: list[str], alone: Served) -> None:
    for number in range(5):
        assert (await alone.chat(f"question {number}")).cache_status.startswith("nearhit; fwd=miss; stored")
    assert not looked_up
    for number in range(5):
        assert (await alone.chat(f"question {number}")).cache_status.startswith("nearhit; hit")
    assert len(looked_up) == 5


async def test_until_the_first_comparison_the_store_is_asked(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with gateway_before(upstream, tmp_path) as served:
        await served.chat("hi")

    async def not_yet(_: Evictor) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(Evictor, "compare", not_yet)
    async with gateway_before(upstream, tmp_path) as served:
        assert (await served.chat("hi")).cache_status.startswith("nearhit; hit")


async def test_on_a_store_of_several_gateways_it_is_always_asked(
    upstream: Upstream, tmp_path: Path, outside_store: OutsideServer
) -> None:
    url = outside_store.url
    async with (
        gateway_before(upstream, tmp_path / "a", url=url) as one,
        gateway_before(upstream, tmp_path / "b", url=url) as other,
    ):
        await at_rest(other)
        await one.chat("hi")
        assert not other.gateway.parts.evictions.is_absent(hexed("never stored"))
        assert (await other.chat("hi")).cache_status.startswith("nearhit; hit")


async def test_what_was_removed_is_a_miss_and_its_next_answer_a_hit(alone: Served, upstream: Upstream) -> None:
    await alone.chat("hi")
    async with alone.session.post(alone.admin_url + "/admin/cache/purge", json={"all": True}) as answer:
        assert (await answer.json())["removed"] == 1
    assert (await alone.chat("hi")).cache_status.startswith("nearhit; fwd=miss; stored")
    assert (await alone.chat("hi")).cache_status.startswith("nearhit; hit")
    assert len(upstream.calls) == 2


async def test_what_is_imported_is_found_at_once(upstream: Upstream, tmp_path: Path) -> None:
    async with gateway_before(upstream, tmp_path / "from") as served:
        await served.chat("hi")
        async with served.session.get(served.admin_url + "/admin/cache/export") as answer:
            lines = await answer.read()
    async with gateway_before(upstream, tmp_path / "to") as served:
        await at_rest(served)
        async with served.session.post(served.admin_url + "/admin/cache/import", data=lines) as answer:
            assert (await answer.json())["imported"] == 1
        assert (await served.chat("hi")).cache_status.startswith("nearhit; hit")


async def test_what_was_said_to_be_stored_is_there_after_a_kill(upstream: Upstream, tmp_path: Path) -> None:
    backends = {"main": {"adapter": "openai", "url": upstream.url}}
    config = write_config(tmp_path, backends, EXACT_CACHE, store=NO_FRONT)
    asked = [f"question {number}" for number in range(20)]
    async with served_by_process(config) as served:
        answers = await asyncio.gather(*map(served.chat, asked))
        await served.kill()
    assert all(answer.cache_status.startswith("nearhit; fwd=miss; stored") for answer in answers)
    async with served_by_process(config) as served:
        await served.recovered()
        again = await asyncio.gather(*map(served.chat, asked))
    assert all(answer.cache_status.startswith("nearhit; hit") for answer in again)
    assert [answer.body for answer in again] == [answer.body for answer in answers]
    assert len(upstream.calls) == len(asked)


async def test_what_is_stored_while_the_store_is_compared_stays_known(
    alone: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A page that was read before says of it that it is gone."""
    evictions = alone.gateway.parts.evictions

    async def weights(_: RedisEntrySizes) -> AsyncIterator[list[EntrySize]]:
        await alone.chat("hi")
        yield [EntrySize(name, 0, 0.0, expired=True) for name in evictions.ledger.names()]

    monkeypatch.setattr(RedisEntrySizes, "weights", weights)
    await evictions.compare()
    assert (await alone.chat("hi")).cache_status.startswith("nearhit; hit")


async def test_what_is_on_its_way_out_is_found_until_it_has_left(
    upstream: Upstream, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def unavailable(_: TieredStore, fingerprints: Sequence[str]) -> int:
        raise StoreUnavailable("not now")

    monkeypatch.setattr(TieredStore, "delete", unavailable)
    async with gateway_before(upstream, tmp_path, max_entries=1) as served:
        await at_rest(served)
        await served.chat("one")
        await served.chat("another")
        await until(lambda: len(served.gateway.parts.evictions.ledger) == 1)
        for question in ("one", "another"):
            assert (await served.chat(question)).cache_status.startswith("nearhit; hit")
