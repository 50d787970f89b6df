"""Hits whose entry has left memory: read from the store in front of the stages, and nobody can tell but by the time."""

from __future__ import annotations

import asyncio
import os
import re
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.records import decode, encode, frame_of
from gateway.cache.removal import Ban, Conditions
from gateway.data_port.front import Front, Recall
from gateway.data_port.plain_connection import PlainConnection
from gateway.policy.load import policy_from_text
from tests.fixtures.clock import FakeClock
from tests.fixtures.entries import entry_of
from tests.fixtures.gateways import EXACT_CACHE, Served, config_of, gateway_of, store_pid
from tests.fixtures.stores import frozen
from tests.fixtures.upstream import Upstream, completion
from tests.fixtures.waiting import until
from tests.fixtures.wire import Wire, connected

NO_ROOM = "1kB"  # for no entry
BODY = b'{"model": "m", "messages": [{"role": "user", "content": "hi"}]}'
HI = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)


@dataclass
class Recalled:
    served: Served
    recalls: list[bytes | None]  # what came of each

    async def hit(self, question: str = "hi") -> str:
        """The answer's text, of a request that is answered in front of the stages."""
        before = len(self.recalls)
        answer = await self.served.chat(question)
        assert answer.cache_status.startswith("nearhit; hit; detail=exact"), answer.cache_status
        assert len(self.recalls) == before + 1
        assert self.recalls[-1] is not None
        return answer.text

    async def not_hit(self, question: str = "hi") -> str:
        answer = await self.served.chat(question)
        assert answer.status == 200
        assert not answer.cache_status.startswith("nearhit; hit"), answer.cache_status
        return answer.text

    async def known(self, question: str = "hi") -> None:
        """A miss, a hit of the stages."""
        for _ in range(2):
            await self.served.chat(question)


@pytest.fixture
def recalls(monkeypatch: pytest.MonkeyPatch) -> list[bytes | None]:
    came: list[bytes | None] = []
    recall = Front.recall

    def noted(self: Front, what: Recall, then: Callable[[bytes | None], None]) -> asyncio.Future[Any] | None:
        def told(found: bytes | None) -> None:
            came.append(found)
            then(found)

        return recall(self, what, told)

    monkeypatch.setattr(Front, "recall", noted)
    return came


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def it(
    upstream: Upstream, tmp_path: Path, clock: FakeClock, recalls: list[bytes | None]
) -> AsyncIterator[Recalled]:
    backends, server = {"main": {"adapter": "openai", "url": upstream.url}}, {"drain_timeout": "60s"}
    config = config_of(tmp_path, backends, store={"front_size": NO_ROOM}, server=server)
    async with gateway_of(config, policy=EXACT_CACHE, clock=clock) as served:
        yield Recalled(served, recalls)


VARYING = re.compile(r"[0-9a-f]{24}|dur=[0-9.]+|ttl=\d+")


async def test_it_answers_as_the_stages_do_and_counts_alike(it: Recalled, upstream: Upstream) -> None:
    await it.served.chat("hi")
    by_stages = await it.served.chat("hi")
    assert it.recalls == []
    requests, used = it.served.gateway.parts.telemetry.requests.total(), it.served.gateway.parts.telemetry
    recalled = await it.served.chat("hi")
    assert len(it.recalls) == 1
    assert recalled.text == by_stages.text
    seen = [
        {name: VARYING.sub("-", value) for name, value in answer.headers.items() if name.lower() != "date"}
        for answer in (by_stages, recalled)
    ]
    assert seen[0] == seen[1]
    assert used.requests.total() == requests + 1
    assert len(upstream.calls) == 1


async def test_what_was_removed_is_not_recalled(it: Recalled) -> None:
    await it.known()
    await it.hit()
    served = it.served
    async with served.session.post(served.admin_url + "/admin/cache/purge", json={"all": True}) as purged:
        assert (await purged.json())["removed"] == 1
    await it.not_hit()


async def test_what_a_ban_covers_is_not_recalled(it: Recalled, clock: FakeClock) -> None:
    """It holds before the store has been swept: the record still lies there."""
    await it.known()
    await it.hit()
    now = clock.wall()
    it.served.gateway.stores.front.bans.add(Ban("b", now, now + 3600, Conditions()), now)
    await it.not_hit()


async def test_an_answer_that_was_fetched_anew_is_the_one_that_is_served(it: Recalled, upstream: Upstream) -> None:
    await it.known()
    old = await it.hit()

    async def another(_: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response(completion(call, "another one"))

    upstream.answer = another
    await it.served.chat("hi", headers={"Cache-Control": "no-cache"})
    new = (await it.served.chat("hi")).text
    assert new != old
    assert await it.hit() == new


async def test_what_is_no_longer_fresh_is_the_stages_business(it: Recalled, clock: FakeClock) -> None:
    await it.known()
    await it.hit()
    clock.advance(3601)
    await it.not_hit()


async def test_another_policy_is_heeded_at_once(it: Recalled) -> None:
    await it.known()
    await it.hit()
    gateway = it.served.gateway
    gateway.apply(policy_from_text(EXACT_CACHE.replace("default", "other"), "p", gateway.config))
    assert (await it.served.chat("hi")).headers["x-nearhit-route"] == "other"
    assert len(it.recalls) == 1


@pytest.mark.usefixtures("killed_for_good")
async def test_a_store_that_is_away_is_a_miss(it: Recalled) -> None:
    await it.known()
    await it.hit()
    os.kill(store_pid(it.served), signal.SIGKILL)
    await it.not_hit()


async def test_a_client_that_leaves_while_the_store_is_asked_is_counted(it: Recalled) -> None:
    await known_on_the_wire(it)
    gateway = it.served.gateway
    requests = gateway.parts.telemetry.requests
    async with waiting_for_the_store(it) as (wire, connection, _):
        wire.writer.transport.abort()
        await until(lambda: connection not in gateway.data_port._connections._plain)  # type: ignore[union-attr]
        await until(lambda: requests.values.get(("default", "openai", "miss", "499")) == 1)
    await until(lambda: gateway.data_port.inflight == 0)
    assert it.recalls == [None]


async def test_nothing_is_written_to_a_client_that_leaves_as_the_store_answers(
    it: Recalled, monkeypatch: pytest.MonkeyPatch
) -> None:
    await known_on_the_wire(it)
    late: list[Callable[[], None]] = []
    recall, plain = Front.recall, it.served.gateway.data_port._connections._plain  # type: ignore[union-attr]

    def in_the_same_turn(self: Front, what: Recall, then: Callable[[bytes | None], None]) -> asyncio.Future[Any] | None:
        """The connection is lost once the reply is there, and before anybody was told of it."""
        there: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        there.set_result(None)
        assert recall(self, what, lambda found: late.append(partial(then, found))) is not None
        return there

    monkeypatch.setattr(Front, "recall", in_the_same_turn)
    async with connected(it.served.url) as wire:
        await wire.send(HI)
        (connection,) = await recalling(it)
        wire.writer.transport.abort()
        await until(lambda: connection not in plain)
    await until(lambda: late)
    written: list[bytes] = []
    monkeypatch.setattr(connection._transport, "write", written.append)
    late[0]()
    assert written == []


async def test_a_hit_of_the_store_is_counted_once_when_the_gateway_stops_meanwhile(it: Recalled) -> None:
    await known_on_the_wire(it)
    gateway = it.served.gateway
    requests = gateway.parts.telemetry.requests
    before = requests.values["default", "openai", "exact", "200"]
    async with waiting_for_the_store(it) as (wire, connection, thaw):
        stopping = asyncio.create_task(gateway.data_port.stop())
        await until(lambda: not connection.goes_on)
        thaw()
        answered = await wire.rest()
    await stopping
    assert answered.startswith(b"HTTP/1.1 200 OK\r\n") and answered.count(b"detail=exact") == 1
    assert answered.lower().count(b"\r\nconnection: close\r\n") == 1
    assert requests.values["default", "openai", "exact", "200"] == before + 1


async def known_on_the_wire(it: Recalled) -> None:
    """As `known`, in the very bytes that are sent next."""
    async with connected(it.served.url) as wire:
        for _ in range(2):
            await wire.send(HI)
            await wire.message()


async def recalling(it: Recalled) -> list[PlainConnection]:
    """Connections for which the store is asked, once there are any."""
    plain = it.served.gateway.data_port._connections._plain  # type: ignore[union-attr]
    await until(lambda: any(isinstance(each._task, asyncio.Future) for each in plain))
    return [each for each in plain if isinstance(each._task, asyncio.Future)]


@asynccontextmanager
async def waiting_for_the_store(it: Recalled) -> AsyncIterator[tuple[Wire, PlainConnection, Callable[[], None]]]:
    """A client, its connection, for which a store is asked that is frozen, and what thaws that."""
    with frozen(store_pid(it.served)) as thaw:
        async with connected(it.served.url) as wire:
            await wire.send(HI)
            (connection,) = await recalling(it)
            yield wire, connection, thaw


async def test_an_entry_with_room_in_memory_goes_there_again(
    upstream: Upstream, tmp_path: Path, recalls: list[bytes | None]
) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, policy=EXACT_CACHE) as served:
        it = Recalled(served, recalls)
        await it.known()
        await served.chat("hi")
        assert recalls == [], "it lies in memory"
        front = served.gateway.stores.front
        for name in [*front._kept.entries]:
            front.forget(name)
        await it.hit()
        await served.chat("hi")
        assert len(recalls) == 1
        assert len(front) == 1


@given(
    st.binary(max_size=300),
    st.text(max_size=50) | st.none(),
    st.lists(st.text(max_size=10), max_size=3),
    st.floats(0, 1e6),
)
def test_a_records_frame_is_all_but_its_answer(body: bytes, question: str | None, tags: list[str], cost: float) -> None:
    entry = replace(entry_of("a"), payload=(body,), question=question, tags=tuple(tags), cost_dollars=cost)
    record = encode(entry)
    before, behind = frame_of(entry)
    assert before + body + behind == record
    assert frame_of(decode(record)) == (before, behind), "also of one that was read"
    longer = encode(replace(entry, payload=(body + b"x",)))
    assert not longer.startswith(before) or len(longer) != len(record)
