"""Every store of counterexamples and links keeps them, bounded: the real one on real servers."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from gateway.adapters.redis import store as redis_store
from gateway.adapters.redis.client import connect
from gateway.adapters.redis.embedded_valkey import EmbeddedValkey
from gateway.adapters.redis.store import RedisStore
from gateway.features.replicas.change_log import ChangeLogWriter
from gateway.ports import RelationStore
from tests.contracts.test_response_store import OUTSIDE
from tests.fixtures.clock import FakeClock
from tests.fixtures.gateways import PATIENT_S


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["embedded", "redis", "cluster"])
async def store(request: pytest.FixtureRequest, tmp_path: Path, clock: FakeClock) -> AsyncIterator[RelationStore]:
    async with AsyncExitStack() as stack:
        if request.param == "embedded":
            server = await EmbeddedValkey.start(tmp_path, max_memory=2**26)
            stack.push_async_callback(server.stop)
            url, journal = server.url, None
        else:
            url, journal = request.getfixturevalue(OUTSIDE[request.param]).url, ChangeLogWriter("g1", 100)
        opened = RedisStore(connect(url, PATIENT_S), embedder="e1", timeout_s=PATIENT_S, clock=clock, journal=journal)
        stack.push_async_callback(opened.close)
        yield opened


async def test_relations_come_back_oldest_first_and_each_kind_apart(store: RelationStore, clock: FakeClock) -> None:
    for number, keys in enumerate((["b", "c"], ["a"], ["b"])):
        clock.advance(number)
        await store.add_links(keys)
    await store.add_counterexample("wrong")
    assert await store.links() == ["c", "a", "b"]
    assert await store.counterexamples() == ["wrong"]


async def test_links_are_bounded_and_the_oldest_go(
    store: RelationStore, clock: FakeClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_store, "MAX_LINKS", 3)
    for key in "abcde":
        clock.advance(1)
        await store.add_links([key])
    assert await store.links() == ["c", "d", "e"]
