"""The server that takes writes is killed under load, and another takes over: real sentinels, a real cluster."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.redis.keyspace import CLUSTERED
from gateway.circuit_breaker import BreakerState
from tests.admin.test_purge import purged
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of, recovered
from tests.fixtures.store_cluster import store_cluster
from tests.fixtures.store_fleets import ENVIRON, sentinel_fleet
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

# asyncio leaves the transport of a handshake that is cut off to the collector (Python 3.11), whenever that comes.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed transport:ResourceWarning")
CLIENTS = 8


class Load:
    """Clients who ask all the time, half of it what was asked before, until they are stopped."""

    def __init__(self, served: Served) -> None:
        self._served = served
        self._numbers = count()
        self._stopped = False
        self.answers: list[Answer] = []

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for _ in range(CLIENTS):
                group.create_task(self._client())

    def stop(self) -> None:
        self._stopped = True

    async def _client(self) -> None:
        while not self._stopped:
            number = next(self._numbers)
            self.answers.append(await self._served.chat(f"question {number if number % 2 else number % 20}"))

    def hits_since(self, number: int) -> int:
        return sum(is_hit(answer) for answer in self.answers[number:])


async def survives(
    store: dict[str, Any], upstream: Upstream, folder: Path, kill: Callable[[], object], promoted: Callable[[], object]
) -> None:
    """No request fails, what was stored before is found again, and what was removed is not."""
    # However busy the machine, a server that works answers within that; one that is cut off costs it once a probe.
    section = {**store, "timeout": "3s", "front_size": "1kB"}
    config = config_of(folder, {"main": {"adapter": "openai", "url": upstream.url}}, store=section)
    async with gateway_of(config, environ=ENVIRON) as served:
        await recovered(served)
        kept = [f"kept {number}" for number in range(9)]
        for question in kept:
            await served.chat(question)
        await served.chat("removed", headers={"Cache-Tag": "gone"})
        assert is_hit(await served.chat("removed"))
        load = Load(served)
        running = asyncio.create_task(load.run())
        await until(lambda: len(load.answers) > 200)
        assert await purged(served, tags=["gone"]) == 1
        kill()
        killed_at = len(load.answers)
        await until(promoted)
        promoted_at = len(load.answers)
        await until(lambda: load.hits_since(promoted_at) > 20)
        load.stop()
        await running
        assert {answer.status for answer in load.answers} == {200}
        assert promoted_at > killed_at, "clients were served meanwhile"
        await until(lambda: served.gateway.stores.redis.breaker is BreakerState.CLOSED)
        assert all([is_hit(await served.chat(question)) for question in kept])
        assert not is_hit(await served.chat("removed"))


def is_hit(answer: Answer) -> bool:
    return answer.cache_status.startswith("nearhit; hit")


async def test_no_request_fails_while_sentinels_replace_the_primary_and_no_removal_is_undone(
    upstream: Upstream, tmp_path: Path
) -> None:
    with sentinel_fleet(tmp_path) as fleet:
        await survives(fleet.section, upstream, tmp_path, fleet.kill_primary, lambda: fleet.replica.role() == "master")


async def test_no_request_fails_while_a_cluster_replaces_a_primary_and_no_removal_is_undone(
    upstream: Upstream, tmp_path: Path
) -> None:
    """The one that has the rules of removals."""
    with store_cluster(tmp_path) as cluster:
        primary, replica = cluster.primary_and_replica(CLUSTERED.key("bans"))

        def kill() -> None:
            cluster.miss_soon()
            primary.kill()

        await survives(cluster.section, upstream, tmp_path, kill, lambda: replica.role() == "master")


async def test_a_node_that_is_cut_off_is_replaced_as_one_that_died(upstream: Upstream, tmp_path: Path) -> None:
    """Its connections stay open, and nothing comes from them."""
    with store_cluster(tmp_path) as cluster:
        primary, replica = cluster.primary_and_replica(CLUSTERED.key("bans"))

        def cut_off() -> None:
            cluster.miss_soon()
            primary.process.send_signal(signal.SIGSTOP)

        await survives(cluster.section, upstream, tmp_path, cut_off, lambda: replica.role() == "master")
