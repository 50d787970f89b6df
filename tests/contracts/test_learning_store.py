"""What every store of what was learnt must do: the real one on real servers, and the fake."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.adapters.redis.client import connect
from gateway.adapters.redis.embedded_valkey import EmbeddedValkey
from gateway.adapters.redis.store import MAX_ROUTES, RedisStore
from gateway.adapters.system.clock import SystemClock
from gateway.errors import StoreUnavailable
from gateway.ports import LearningStore
from tests.contracts.test_response_store import OUTSIDE
from tests.fixtures.fakes import MemoryStore
from tests.fixtures.gateways import PATIENT_S

CLOCK = SystemClock()


@pytest.fixture(params=["embedded", "redis", "cluster", "memory"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[LearningStore]:
    async with AsyncExitStack() as stack:
        if request.param == "memory":
            yield MemoryStore(CLOCK)
            return
        if request.param == "embedded":
            server = await EmbeddedValkey.start(tmp_path, max_memory=2**26)
            stack.push_async_callback(server.stop)
            url = server.url
        else:
            url = request.getfixturevalue(OUTSIDE[request.param]).url
        opened = RedisStore(connect(url, PATIENT_S), embedder="e1", timeout_s=PATIENT_S, clock=CLOCK)
        stack.push_async_callback(opened.close)
        yield opened


async def test_a_snapshot_comes_back_byte_by_byte(store: LearningStore) -> None:
    snapshot = bytes(range(256)) * 6000  # as large as a full one
    await store.put_learning("default", snapshot)
    assert await store.learning("default") == snapshot


async def test_a_route_that_never_learnt_has_none(store: LearningStore) -> None:
    await store.put_learning("default", b"one")
    assert await store.learning("other") is None


async def test_the_last_snapshot_of_a_route_counts(store: LearningStore) -> None:
    await store.put_learning("default", b"one")
    await store.put_learning("default", b"two")
    assert await store.learning("default") == b"two"


async def test_routes_are_bounded_and_the_one_that_is_put_stays(store: LearningStore) -> None:
    for i in range(MAX_ROUTES + 3):
        await store.put_learning(f"route-{i}", b"x")
        assert await store.learning(f"route-{i}") == b"x"
    kept = [await store.learning(f"route-{i}") for i in range(MAX_ROUTES + 3)]
    assert len([each for each in kept if each is not None]) == MAX_ROUTES


async def test_a_store_that_is_away_says_so() -> None:
    memory = MemoryStore(CLOCK)
    memory.down = True
    nowhere = RedisStore(connect("redis://127.0.0.1:1"), embedder="e1", timeout_s=5.0, clock=CLOCK)
    for store in (memory, nowhere):
        with pytest.raises(StoreUnavailable):
            await store.put_learning("default", b"x")
        with pytest.raises(StoreUnavailable):
            await store.learning("default")
    await nowhere.close()
