"""Hits whose entry has left memory are read from the store: nobody can tell but by the time."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.cache.bans import Ban, BanConditions
from gateway.config.policy.load import policy_from_text
from gateway.http_server.connections import PlainConnection
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import EXACT_CACHE, Served, config_of, gateway_of, store_pid
from tests.fixtures.stores import frozen
from tests.fixtures.upstream import Upstream, completion
from tests.fixtures.waiting import until
from tests.fixtures.wire import Wire, connected

NO_ROOM = "1kB"  # for no entry
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
HI = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


@dataclass
class FromStore:
    served: Served

    async def hit(self, question: str = "hi") -> str:
        """The answer's text."""
        answer = await self.served.chat(question)
        assert answer.cache_status.startswith("nearhit; hit; detail=exact"), answer.cache_status
        return answer.text

    async def not_hit(self, question: str = "hi") -> str:
        answer = await self.served.chat(question)
        assert answer.status == 200
        assert not answer.cache_status.startswith("nearhit; hit"), answer.cache_status
        return answer.text

    async def known(self, question: str = "hi") -> None:
        """A miss, then a hit."""
        for _ in range(2):
            await self.served.chat(question)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def it(upstream: Upstream, tmp_path: Path, clock: FakeClock) -> AsyncIterator[FromStore]:
    backends, server = {"main": {"adapter": "openai", "url": upstream.url}}, {"drain_timeout": "60s"}
    config = config_of(tmp_path, backends, store={"front_size": NO_ROOM}, server=server)
    async with gateway_of(config, policy=EXACT_CACHE, clock=clock) as served:
        yield FromStore(served)


VARYING = re.compile(r"[0-9a-f]{24}|dur=[0-9.]+|ttl=\d+")


async def test_it_answers_as_from_memory_and_counts_alike(it: FromStore, upstream: Upstream, tmp_path: Path) -> None:
    await it.served.chat("hi")
    requests = it.served.gateway.parts.telemetry.requests
    before = requests.total()
    found = await it.served.chat("hi")
    assert requests.total() == before + 1
    config = config_of(tmp_path / "roomy", {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy=EXACT_CACHE, clock=it.served.gateway.parts.clock) as roomy:
        await roomy.chat("hi")
        in_memory = await roomy.chat("hi")
    assert found.text == in_memory.text
    seen = [
        {name: VARYING.sub("-", value) for name, value in answer.headers.items() if name.lower() != "date"}
        for answer in (in_memory, found)
    ]
    assert seen[0] == seen[1]
    assert len(upstream.calls) == 2


async def test_what_was_removed_is_not_served(it: FromStore) -> None:
    await it.known()
    await it.hit()
    served = it.served
    async with served.session.post(served.admin_url + "/admin/cache/purge", json={"all": True}) as purged:
        assert (await purged.json())["removed"] == 1
    await it.not_hit()


async def test_what_a_ban_covers_is_not_served(it: FromStore, clock: FakeClock) -> None:
    """It holds before the store has been swept: the record still lies there."""
    await it.known()
    await it.hit()
    now = clock.wall()
    it.served.gateway.stores.front.bans.add(Ban("b", now, now + 3600, BanConditions()), now)
    await it.not_hit()


async def test_an_answer_that_was_fetched_anew_is_the_one_that_is_served(it: FromStore, upstream: Upstream) -> None:
    await it.known()
    old = await it.hit()

    async def another(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, "another one"))

    upstream.answer = another
    await it.served.chat("hi", headers={"Cache-Control": "no-cache"})
    new = (await it.served.chat("hi")).text
    assert new != old
    assert await it.hit() == new


async def test_what_is_no_longer_fresh_is_no_hit(it: FromStore, clock: FakeClock) -> None:
    await it.known()
    await it.hit()
    clock.advance(3601)
    await it.not_hit()


async def test_another_policy_is_heeded_at_once(it: FromStore) -> None:
    await it.known()
    await it.hit()
    gateway = it.served.gateway
    gateway.apply(policy_from_text(EXACT_CACHE.replace("default", "other"), "p", gateway.config))
    assert (await it.served.chat("hi")).headers["x-nearhit-route"] == "other"


@pytest.mark.usefixtures("killed_for_good")
async def test_a_store_that_is_away_is_a_miss(it: FromStore) -> None:
    await it.known()
    await it.hit()
    os.kill(store_pid(it.served), signal.SIGKILL)
    await it.not_hit()


async def test_a_client_that_leaves_while_the_store_is_asked_is_counted(it: FromStore) -> None:
    await known_on_the_wire(it)
    gateway = it.served.gateway
    requests = gateway.parts.telemetry.requests
    async with waiting_for_the_store(it) as (wire, connection, _):
        wire.writer.transport.abort()
        await until(lambda: connection not in gateway.data_port._connections._plain)  # type: ignore[union-attr]
        await until(lambda: requests.values.get(("default", "openai", "miss", "499")) == 1)
    await until(lambda: gateway.inflight.count == 0)


async def test_a_hit_of_the_store_is_counted_once_when_the_gateway_stops_meanwhile(it: FromStore) -> None:
    await known_on_the_wire(it)
    gateway = it.served.gateway
    requests = gateway.parts.telemetry.requests
    before = requests.values["default", "openai", "exact", "200"]
    async with waiting_for_the_store(it) as (wire, connection, thaw):
        stopping = asyncio.create_task(gateway.data_port.stop())
        await until(lambda: not connection.keep_alive)
        thaw()
        answered = await wire.rest()
    await stopping
    assert answered.startswith(b"HTTP/1.1 200 OK\r\n") and answered.count(b"detail=exact") == 1
    assert answered.lower().count(b"\r\nconnection: close\r\n") == 1
    assert requests.values["default", "openai", "exact", "200"] == before + 1


async def known_on_the_wire(it: FromStore) -> None:
    """As `known`, in the very bytes that are sent next."""
    async with connected(it.served.url) as wire:
        for _ in range(2):
            await wire.send(HI)
            await wire.message()


async def recalling(it: FromStore) -> list[PlainConnection]:
    """Connections for which the store is asked, once there are any."""
    plain = it.served.gateway.data_port._connections._plain  # type: ignore[union-attr]
    await until(lambda: any(isinstance(each._task, asyncio.Future) for each in plain))
    return [each for each in plain if isinstance(each._task, asyncio.Future)]


@asynccontextmanager
async def waiting_for_the_store(it: FromStore) -> AsyncIterator[tuple[Wire, PlainConnection, Callable[[], None]]]:
    """A client, its connection, for which a store is asked that is frozen, and what thaws that."""
    with frozen(store_pid(it.served)) as thaw:
        async with connected(it.served.url) as wire:
            await wire.send(HI)
            (connection,) = await recalling(it)
            yield wire, connection, thaw


async def test_an_entry_with_room_in_memory_goes_there_again(upstream: Upstream, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy=EXACT_CACHE) as served:
        it = FromStore(served)
        await it.known()
        front = served.gateway.stores.front
        for name in [*front._residents]:
            front.forget(name)
        await it.hit()
        assert len(front) == 1
