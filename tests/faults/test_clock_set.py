"""The machine's clock is set while answers are removed: what was removed stays so."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.admin.test_purge import PLAIN, purge, purged, verdict
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

TAGGED = {"Cache-Tag": "a"}


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path, clock: FakeClock) -> AsyncIterator[Served]:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, PLAIN, clock=clock) as gateway:
        yield gateway


@pytest.mark.parametrize("what", [{"all": True}, {"tags": ["a"]}, {"like": "one"}], ids=str)
@pytest.mark.parametrize("back_s", [0.5, 60.0])
async def test_what_was_stored_before_the_clock_was_set_back_can_be_removed(
    served: Served, clock: FakeClock, what: dict[str, Any], back_s: float
) -> None:
    """It claims to come from the future; a second of that is no fault, and longer ones pass."""
    await served.chat("one", headers=TAGGED)
    assert verdict(await served.chat("one")) == "exact"
    clock.set_wall(clock.wall() - back_s)
    assert await purged(served, **what) == 1
    clock.advance(back_s + 1)
    assert verdict(await served.chat("one", headers=TAGGED)) == "fwd=miss; stored"
    assert verdict(await served.chat("one")) == "exact"


async def test_what_memory_alone_has_from_before_the_clock_was_set_back_can_be_removed(
    served: Served, clock: FakeClock
) -> None:
    await served.chat("one", headers=TAGGED)
    await served.gateway.stores.redis.delete(list(served.gateway.stores.front._residents))
    clock.set_wall(clock.wall() - 0.5)
    assert (await purge(served, tags=["a"])).status == 200
    clock.advance(1.0)
    assert verdict(await served.chat("one")) == "fwd=miss; stored"


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_was_fetched_before_a_removal_is_not_kept_though_the_clock_was_set_forward(
    served: Served, upstream: Upstream, clock: FakeClock, stream: bool
) -> None:
    upstream.gate.clear()
    waiting = asyncio.create_task(served.chat("one", stream=stream, headers=TAGGED))
    await until(lambda: upstream.calls)
    assert await purged(served, tags=["a"]) == 0
    await purged(served, tags=["b"])
    clock.set_wall(clock.wall() + 30)
    await purged(served, tags=["c"])
    await served.gateway.removal.refresh()  # as it hears of its own removals by the store
    upstream.gate.set()
    assert verdict(await waiting).startswith("fwd=miss")
    clock.advance(1.0)
    assert verdict(await served.chat("one", headers=TAGGED)) == "fwd=miss; stored"
