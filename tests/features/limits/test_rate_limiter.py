"""What one gateway does with limits: what it tells the store, when, and what becomes of it where that is silent."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from gateway.errors import StoreUnavailable
from gateway.features.limits.demands import (
    MICROS,
    Cost,
    Demand,
    LimitPart,
    Meters,
    PacedLimit,
    Return,
    Slot,
    TakeResult,
    window_of,
)
from gateway.features.limits.rate_limiter import MAX_PENDING, RateLimiter
from gateway.observability.telemetry import Telemetry
from tests.fixtures.clock import FakeClock

CAP = Cost("cap", 1000, 100, "day", soft=False)


class MemoryQuotas:
    """The store's half in process. `down`: it does not answer; `held`: it answers when that is set."""

    def __init__(self, clock: FakeClock) -> None:
        self.meters = Meters()
        self.clock = clock
        self.down = False
        self.held = asyncio.Event()
        self.held.set()
        self.told: list[Return] = []

    async def take(self, demands: Sequence[Demand]) -> TakeResult:
        if self.down:
            raise StoreUnavailable("down")
        return self.meters.take(demands, self._now(), int(self.clock.wall() * MICROS))

    async def settle(self, returns: Sequence[Return]) -> None:
        await self.held.wait()
        if self.down:
            raise StoreUnavailable("down")
        self.told += returns
        self.meters.settle(returns, self._now())

    async def beat(self, gateway: str, places: Sequence[tuple[str, str]]) -> int:
        return 1

    def _now(self) -> int:
        return int(self.clock.monotonic() * MICROS)


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> MemoryQuotas:
    return MemoryQuotas(clock)


@pytest.fixture
def quotas(store: MemoryQuotas, clock: FakeClock) -> RateLimiter:
    return RateLimiter(store, clock, Telemetry())


async def test_what_is_spent_without_the_store_is_told_to_it_once_and_as_it_was(
    quotas: RateLimiter, store: MemoryQuotas, clock: FakeClock
) -> None:
    store.down = True
    demands = [CAP, LimitPart("part", 0.5), LimitPart("whole", 1.0)]
    grant = await quotas.take(demands)
    assert grant.local
    assert grant.taken.granted
    quotas.refund(grant, [Return("part", "whole")])
    today = window_of("day", int(clock.wall() * MICROS))
    quotas.settle(grant, demands, [Return("spend", "cap", -70, today)])
    assert not await quotas.flush()
    store.down = False
    assert await quotas.flush()
    assert store.told == [Return("spend", "cap", 30, today)]
    assert quotas.waiting == 0


async def test_what_was_to_be_given_back_is_lost_where_the_store_does_not_hear_it(
    quotas: RateLimiter, store: MemoryQuotas, clock: FakeClock
) -> None:
    today = window_of("day", int(clock.wall() * MICROS))
    demands: list[Demand] = [CAP, PacedLimit("pace", 1.0, 10, 5), Slot("place", 3, "m")]
    grant = await quotas.take(demands)
    returns = [Return("spend", "cap", -70, today), Return("pace", "pace", -2.0), Return("place", "place", of="m")]
    quotas.settle(grant, demands, returns)
    store.down = True
    assert not await quotas.flush()
    store.down = False
    assert await quotas.flush()
    assert store.told == returns[2:]


async def test_who_would_be_refused_for_what_has_just_been_given_back_is_let_in(
    quotas: RateLimiter, store: MemoryQuotas
) -> None:
    one: list[Demand] = [Slot("place", 1, "a")]
    grant = await quotas.take(one)
    quotas.settle(grant, one, [Return("place", "place", of="a")])
    assert store.told == []
    assert (await quotas.take([Slot("place", 1, "b")])).taken.granted
    assert not (await quotas.take([Slot("place", 1, "c")])).taken.granted


async def test_a_client_that_leaves_while_others_returns_are_told_loses_none_of_them(
    quotas: RateLimiter, store: MemoryQuotas
) -> None:
    one: list[Demand] = [Slot("place", 1, "a")]
    grant = await quotas.take(one)
    quotas.settle(grant, one, [Return("place", "place", of="a")])
    store.held.clear()
    waiting = asyncio.create_task(quotas.take([Slot("place", 1, "b")]))
    while quotas._pending:
        await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    store.held.set()
    assert await quotas.flush()
    assert {item.of for item in store.told} == {"a", "b"}
    assert (await quotas.take([Slot("place", 1, "c")])).taken.granted


async def test_what_waits_for_the_store_is_bounded(quotas: RateLimiter, store: MemoryQuotas) -> None:
    grant = await quotas.take([CAP])
    for i in range(MAX_PENDING + 500):
        quotas.settle(grant, [], [Return("place", f"k{i}", of="m")])
    assert quotas.waiting == MAX_PENDING == len(quotas._pending)


async def test_a_route_without_limits_never_speaks_of_them_to_the_store(
    store: MemoryQuotas, quotas: RateLimiter
) -> None:
    beats = []

    async def beat(gateway: str, places: Sequence[tuple[str, str]]) -> int:
        beats.append(gateway)
        return 1

    store.beat = beat  # type: ignore[method-assign]
    task = asyncio.create_task(quotas.run())
    for _ in range(10):
        await asyncio.sleep(0)
    assert beats == []
    await quotas.take([CAP])
    while not beats:
        await asyncio.sleep(0)
    task.cancel()
