"""The dashboard of any gateway on a store says what all of them do: real gateways, a real Valkey."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from redis.asyncio import Redis

from gateway.adapters.redis.store import RedisStore
from gateway.adapters.system.clock import SystemClock
from gateway.features.replicas.metrics_store import MetricsSnapshots
from tests.features.replicas.test_replicas import Start, on, start
from tests.fixtures.gateways import Served
from tests.fixtures.stores import OutsideServer, outside_server
from tests.fixtures.upstream import Upstream

__all__ = ["start"]
KEEP_S = 600


async def stats(served: Served) -> dict[str, Any]:
    async with served.session.get(f"{served.admin_url}/admin/stats") as response:
        report: dict[str, Any] = await response.json()
        return report


async def until_told(served: Served, *, gateways: int, requests: int) -> dict[str, Any]:
    async with asyncio.timeout(120):
        while True:
            report = await stats(served)
            if (report["gateways"], report["requests"]) == (gateways, requests):
                return report


async def test_any_of_them_says_what_all_have_done(start: Start) -> None:
    one, two = await start("one"), await start("two")
    for question in ("a", "b", "c"):
        await one.chat(question)
    await two.chat("d")
    for served in (one, two):
        report = await until_told(served, gateways=2, requests=4)
        assert report["started"] == one.gateway.figures.started < two.gateway.figures._own_start
        assert report["verdicts"]["miss"] == 4


async def test_metrics_are_of_each_of_them(start: Start) -> None:
    """Prometheus asks all, and adds up."""
    one, two = await start("one"), await start("two")
    await one.chat("a")
    await until_told(two, gateways=2, requests=1)
    async with two.session.get(f"{two.admin_url}/metrics") as response:
        assert "nearhit_requests_total{" not in await response.text()


async def test_without_the_store_it_is_its_own_figures(upstream: Upstream, tmp_path: Path) -> None:
    with outside_server(tmp_path) as server:
        async with on(server, upstream, tmp_path / "one") as one, on(server, upstream, tmp_path / "two") as two:
            await two.chat("a")
            await until_told(one, gateways=2, requests=1)
            server.kill()
            report = await stats(one)
            assert (report["gateways"], report["requests"]) == (1, 0)


@pytest.fixture
async def speaking(outside_store: OutsideServer) -> AsyncIterator[tuple[Redis, MetricsSnapshots, MetricsSnapshots]]:
    client = Redis.from_url(outside_store.url)
    store = RedisStore(client, embedder="e", timeout_s=10.0, clock=SystemClock())
    yield client, MetricsSnapshots(store, client, "one"), MetricsSnapshots(store, client, "two")
    await store.close()


async def test_who_says_nothing_is_forgotten(speaking: tuple[Redis, MetricsSnapshots, MetricsSnapshots]) -> None:
    client, one, two = speaking
    await one.publish(b"1", keep_s=KEEP_S)
    assert (await one.others(), await two.others()) == ([], [b"1"])
    await client.zadd("nearhit:1:figures:spoken", {"one": 1})  # it spoke long ago
    await two.publish(b"2", keep_s=KEEP_S)
    assert (await one.others(), await two.others()) == ([b"2"], [])
    assert 0 < await client.ttl("nearhit:1:figures") <= KEEP_S


async def test_what_another_version_says_is_left_out(start: Start, outside_store: OutsideServer) -> None:
    one = await start("one")
    outside_store.client.hset("nearhit:1:figures", "other", b"\xc1")
    report = await stats(one)
    assert report["gateways"] == 1
