"""The server that takes writes is killed under load, and another takes over: real servers, real sentinels."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from tests.admin.test_purge import purged
from tests.fixtures.gateways import Answer, Served, config_of, gateway_of, recovered
from tests.fixtures.store_fleets import ENVIRON, SentinelFleet, sentinel_fleet
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

pytestmark = pytest.mark.timeout(90)
CLIENTS = 8


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SentinelFleet]:
    with sentinel_fleet(tmp_path_factory.mktemp("sentinels")) as started:
        yield started


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
        return sum(answer.cache_status.startswith("nearhit; hit") for answer in self.answers[number:])


async def test_no_request_fails_while_sentinels_replace_the_primary_and_no_removal_is_undone(
    fleet: SentinelFleet, upstream: Upstream, tmp_path: Path
) -> None:
    store = {**fleet.section, "timeout": "250ms", "front_size": "1kB"}
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}}, store=store)
    async with gateway_of(config, environ=ENVIRON) as served:
        await recovered(served)
        await served.chat("kept")
        await served.chat("removed", headers={"Cache-Tag": "gone"})
        assert (await served.chat("removed")).cache_status.startswith("nearhit; hit")
        load = Load(served)
        running = asyncio.create_task(load.run())
        await until(lambda: len(load.answers) > 200)
        assert await purged(served, tags=["gone"]) == 1
        fleet.primary.kill()
        killed_at = len(load.answers)
        await until(lambda: fleet.replica.role() == "master")
        promoted_at = len(load.answers)
        await until(lambda: load.hits_since(promoted_at) > 20)
        load.stop()
        await running
        assert {answer.status for answer in load.answers} == {200}
        assert promoted_at > killed_at, "clients were served meanwhile"
        assert (await served.chat("kept")).cache_status.startswith("nearhit; hit")
        assert not (await served.chat("removed")).cache_status.startswith("nearhit; hit")
