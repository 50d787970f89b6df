"""Calls of which several came with one turn of the event loop are looked up together, each as if it had been alone."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from gateway.data_port.plain_connection import PlainConnection
from gateway.data_port.turns import ENOUGH, EVERY, MOST, PATIENCE
from gateway.policy.load import policy_from_text
from tests.data_port.test_lookups import ALIKE, ANSWER, POLICY, UNLIKE, chat, gathering, lookups, new
from tests.data_port.test_straight import TRACES, One, Scripted, answer, gateway_by, one, said, upstream_that_says
from tests.fixtures.gateways import EXACT_CACHE, aboard
from tests.fixtures.waiting import until
from tests.fixtures.wire import Message, Wire, connected

upstream = upstream_that_says(answer(ANSWER))
it = gateway_by(POLICY, chat())


@dataclass
class Looked:
    """How many were looked up at once, and how many together each time."""

    alone: int = 0
    together: list[int] = field(default_factory=list)


def looked(it: One, monkeypatch: pytest.MonkeyPatch) -> Looked:
    """From now on."""
    seen, find, together = Looked(), lookups(it).find, lookups(it).find_together

    def counted(came: Any) -> Any:
        seen.alone += 1
        return find(came)

    def counted_together(came: Sequence[Any]) -> None:
        seen.together.append(len(came))
        together(came)

    monkeypatch.setattr(lookups(it), "find", counted)
    monkeypatch.setattr(lookups(it), "find_together", counted_together)
    return seen


def connections(it: One) -> list[PlainConnection]:
    return [*it.served.gateway.data_port._connections._plain]  # type: ignore[union-attr]


async def open_wires(it: One, stack: AsyncExitStack, count: int) -> list[Wire]:
    """Connections that the gateway has read from."""
    wires = [await stack.enter_async_context(connected(it.served.url)) for _ in range(count)]
    for wire in wires:
        await wire.send(chat())
        await wire.message()
    return wires


@asynccontextmanager
async def open_wire(it: One) -> AsyncIterator[tuple[Wire, PlainConnection]]:
    """The only one, and its connection."""
    async with AsyncExitStack() as stack:
        (wire,) = await open_wires(it, stack, 1)
        (connection,) = connections(it)
        yield wire, connection


async def turn(it: One, count: int) -> None:
    """One that brings so many calls."""
    for connection in connections(it)[:count]:
        connection.data_received(chat(ALIKE))
    for _ in range(2):
        await asyncio.sleep(0)


async def at_once(it: One, *requests: bytes) -> list[Message]:
    """The answers to requests that are all there when the gateway looks, on a connection each."""
    async with AsyncExitStack() as stack:
        wires = await open_wires(it, stack, len(requests))
        for wire, request in zip(wires, requests, strict=True):
            wire.writer.write(request)
        return [await wire.message() for wire in wires]


def statuses(answers: Sequence[Message]) -> list[str]:
    return [each.all("cache-status")[0].split("; ttl")[0] for each in answers]


async def test_turns_that_bring_few_are_looked_up_at_once(it: One, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = looked(it, monkeypatch)
    async with AsyncExitStack() as stack:
        await open_wires(it, stack, ENOUGH - 1)
        seen.alone = 0
        for _ in range(4 * EVERY):
            await turn(it, ENOUGH - 1)
    assert (seen.alone, seen.together) == (4 * EVERY * (ENOUGH - 1), [])


@pytest.mark.parametrize("count", [ENOUGH, 5, 6, 9, 17])
async def test_turns_that_bring_enough_are_seen(it: One, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Wherever in a turn it is looked."""
    seen = looked(it, monkeypatch)
    async with AsyncExitStack() as stack:
        await open_wires(it, stack, count)
        for _ in range(EVERY):  # each place in a turn is met
            await turn(it, count)
    assert seen.together[-2:] == [count] * 2


async def test_turns_that_bring_enough_are_gathered_until_they_do_not(it: One, monkeypatch: pytest.MonkeyPatch) -> None:
    seen = looked(it, monkeypatch)
    async with AsyncExitStack() as stack:
        await open_wires(it, stack, ENOUGH)
        while ENOUGH not in seen.together:
            await turn(it, ENOUGH)
        seen.alone, seen.together = 0, []
        expected = []
        for count in [*[ENOUGH] * 20, *[1] * (PATIENCE - 1), ENOUGH, *[1] * PATIENCE]:
            await turn(it, count)
            expected.append(count)
        assert (seen.alone, seen.together) == (0, expected)
        seen.together = []
        for _ in range(EVERY):
            await turn(it, 1)
    assert (seen.alone, seen.together) == (EVERY, [])


async def test_each_has_its_own_answer(it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    gathering(it, monkeypatch)
    seen = looked(it, monkeypatch)
    kinds = {
        "nearhit; hit; detail=semantic": lambda n: chat(f"{ALIKE} {n}"),
        "nearhit; hit; detail=exact": lambda n: new(user=str(n)),
        "nearhit; fwd=miss; stored": lambda n: chat(f"{UNLIKE} {'x' * n}", temperature=n / 100),
    }
    expected = [kind for kind in kinds for _ in range(5)][::2] * 2
    requests = [
        kinds[kind](n).replace(b"Host: g\r\n", b"Host: g\r\nX-Request-Id: %d\r\n" % n)
        for n, kind in enumerate(expected)
    ]
    answers = await at_once(it, *requests)
    assert statuses(answers) == expected
    assert [each.all("x-request-id")[0] for each in answers] == [str(n) for n in range(len(requests))]
    assert max(seen.together) > 1


async def test_what_cannot_be_looked_up_holds_nobody_up(it: One, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a call that cannot be read, nor one of a route that has one cache of the two, nor a hit that the stages
    put together."""
    gathering(it, monkeypatch)
    seen = looked(it, monkeypatch)
    await said(it.served, chat(model="exact"))
    answers = await at_once(
        it,
        chat(ALIKE),
        new().replace(b'"messages"', b'"massages"'),
        new(model="exact"),
        new(stream=True),
        new(headers=TRACES),
        new(model="semantic"),
    )
    assert [each.status for each in answers] == [200, 400, 200, 200, 200, 200]
    assert [each.all("cache-status")[0].split("; ")[1] for each in answers if each.status == 200] == [
        "hit", "hit", "hit", "hit", "fwd=miss",
    ]  # fmt: skip
    assert max(seen.together) > 1


async def test_who_asks_the_same_shares_a_call(it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    gathering(it, monkeypatch)
    seen = looked(it, monkeypatch)
    async with AsyncExitStack() as stack:
        wires = await open_wires(it, stack, 8)
        upstream.hold.clear()
        upstream.seen.clear()
        for n, wire in enumerate(wires):
            wire.writer.write(chat(UNLIKE, metadata={"n": str(n)}))
        await until(lambda: aboard(it.served) == 8)
        upstream.hold.set()
        answers = [await wire.message() for wire in wires]
    assert statuses(answers).count("nearhit; fwd=miss; stored") == len(upstream.seen) == 1
    assert statuses(answers).count("nearhit; fwd=miss; collapsed") == 7
    assert max(seen.together) > 1


async def test_no_more_than_so_many_hold_the_loop(it: One, monkeypatch: pytest.MonkeyPatch) -> None:
    gathering(it, monkeypatch)
    seen = looked(it, monkeypatch)
    answers = await at_once(it, *[chat(f"{ALIKE} {n}") for n in range(MOST + 20)])
    assert set(statuses(answers)) == {"nearhit; hit; detail=semantic"}
    assert 1 < max(seen.together) <= MOST


async def test_who_leaves_is_not_looked_up_and_counted(
    it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathering(it, monkeypatch)
    seen = looked(it, monkeypatch)
    async with AsyncExitStack() as stack:
        await open_wires(it, stack, 2)
        upstream.seen.clear()
        it.logged()
        seen.together.clear()
        some = connections(it)
        for connection in some:
            connection.data_received(chat(UNLIKE))
        some[0].connection_lost(None)
        await until(lambda: upstream.seen and it.served.gateway.data_port.inflight == 0)
    assert (seen.together, len(upstream.seen)) == ([1], 1)
    assert sorted(line["status"] for line in it.logged()) == [200, 499]


async def test_whose_connection_ends_is_told_so_by_the_stages(
    it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathering(it, monkeypatch)
    async with open_wire(it) as (wire, connection):
        answered = lookups(it).answered
        connection.data_received(chat(ALIKE))
        connection.finish()
        told = await wire.message()
    assert statuses([told]) == ["nearhit; hit; detail=semantic"]
    assert told.all("connection") == ["close"]
    assert lookups(it).answered == answered


async def test_a_gateway_that_stops_loses_none(it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    gathering(it, monkeypatch)
    async with AsyncExitStack() as stack:
        wires = await open_wires(it, stack, 3)
        for connection in connections(it):
            connection.data_received(chat(ALIKE))
        await it.served.gateway.data_port.stop()
        answers = [await wire.message() for wire in wires]
    assert statuses(answers) == ["nearhit; hit; detail=semantic"] * 3
    assert it.served.gateway.data_port.inflight == 0


async def test_the_policy_that_a_call_met_is_kept(it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch) -> None:
    """As by the stages: those that come behind a reload meet the new one."""
    gathering(it, monkeypatch)
    gateway = it.served.gateway
    async with AsyncExitStack() as stack:
        wires = await open_wires(it, stack, 4)
        for connection, request in zip(connections(it)[:2], [chat(ALIKE), chat(UNLIKE)], strict=True):
            connection.data_received(request)
        gateway.apply(policy_from_text(EXACT_CACHE.replace("default", "another"), "policy.yaml", gateway.config))
        for connection, request in zip(connections(it)[2:], [chat(ALIKE), chat(UNLIKE)], strict=True):
            connection.data_received(request)
        answers = [await wire.message() for wire in wires]
        routes = [line["route"] for line in it.logged()[-4:]]
    assert sorted(statuses(answers)) == ["nearhit; fwd=miss; stored"] * 3 + ["nearhit; hit; detail=semantic"]
    assert sorted(routes) == ["another", "another", "both", "both"]


async def test_what_has_left_memory_since_it_came_is_looked_for(
    it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    gathering(it, monkeypatch)
    async with open_wire(it) as (wire, connection):
        answered, kept = lookups(it).answered, it.served.gateway.parts.store._kept
        connection.data_received(chat(ALIKE))
        for fingerprint in [*kept.entries]:
            kept.drop(fingerprint)
        told = await wire.message()
    assert statuses([told]) == ["nearhit; hit; detail=semantic"]  # of the store, by the stages
    assert lookups(it).answered == answered


async def test_what_goes_wrong_with_one_is_left_to_the_stages(
    it: One, upstream: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And so are those that have not been told of theirs: everybody is answered once."""
    gathering(it, monkeypatch)
    seen, outcome = looked(it, monkeypatch), lookups(it)._outcome

    def failing(came: Any) -> Any:
        if came.asked.call.question.endswith(" 3"):
            raise RuntimeError
        return outcome(came)

    monkeypatch.setattr(lookups(it), "_outcome", failing)
    answers = await at_once(it, *[chat(f"{ALIKE} {n}") for n in range(6)])
    assert statuses(answers) == ["nearhit; hit; detail=semantic"] * 6
    assert max(seen.together) > 1


async def test_those_of_one_turn_are_shed_too(
    tmp_path: Path, upstream: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with one(tmp_path, upstream, POLICY, server={"max_inflight": 2}) as it:
        await said(it.served, chat())
        gathering(it, monkeypatch)
        async with AsyncExitStack() as stack:
            wires = await open_wires(it, stack, 6)
            upstream.hold.clear()
            for n, wire in enumerate(wires):
                wire.writer.write(chat(f"{UNLIKE} {'x' * n}", temperature=n / 10))
            reading = [asyncio.create_task(wire.message()) for wire in wires]
            await until(lambda: sum(each.done() for each in reading) == 4)
            upstream.hold.set()
            answers = [await each for each in reading]
    assert sorted(each.status for each in answers) == [200, 200, 503, 503, 503, 503]
