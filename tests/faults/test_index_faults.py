"""The vector index failing or hanging under a gateway: misses, never a failed request."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.adapters.faiss.index import FaissIndex
from tests.fixtures.gateways import LOOSE, Served, config_of, gateway_of
from tests.fixtures.upstream import Upstream
from tests.fixtures.waiting import until

STORED, ASKED, OTHER = (f"alpha beta gamma delta {last}" for last in ("epsilon", "zeta", "eta"))


@pytest.fixture
async def served(upstream: Upstream, tmp_path: Path) -> AsyncIterator[Served]:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, LOOSE) as gateway:
        yield gateway


@pytest.fixture
def index(served: Served) -> FaissIndex:
    found = served.gateway.parts.space.index
    assert isinstance(found, FaissIndex)
    return found


async def test_an_index_that_fails_makes_misses_and_exact_hits_go_on(
    served: Served, index: FaissIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.chat(STORED)

    def broken(*_: Any) -> Any:
        raise RuntimeError("Error in virtual void faiss::search")

    with monkeypatch.context() as patch:
        for looked in ("search", "nearest"):
            patch.setattr(type(index._contents), looked, broken)
        patch.setattr(index, "_add", broken)
        assert (await served.chat(ASKED)).status == 200
        assert (await served.chat(ASKED)).cache_status.startswith("nearhit; hit; detail=exact")
        assert (await served.chat(ASKED, stream=True)).status == 200
    assert (await served.chat(OTHER)).cache_status == "nearhit; hit; detail=semantic"
    assert served.gateway.parts.telemetry.store_errors.total() >= 1


async def test_an_index_that_takes_nothing_leaves_no_answer_waiting(
    served: Served, index: FaissIndex, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.chat(STORED)

    def broken(*_: Any) -> Any:
        raise RuntimeError("Error in virtual void faiss::add")

    with monkeypatch.context() as patch:
        patch.setattr(index, "_add", broken)
        async with asyncio.timeout(20):
            answers = [await served.chat(f"nothing like it {i}") for i in range(3)]
    assert [(answer.status, answer.cache_status) for answer in answers] == [(200, "nearhit; fwd=miss")] * 3
    assert served.gateway.parts.telemetry.store_errors.total() == 3


@pytest.fixture
def held() -> Iterator[threading.Event]:
    go = threading.Event()
    try:
        yield go
    finally:
        go.set()


async def test_an_index_that_hangs_costs_its_timeout_and_no_request(
    served: Served, index: FaissIndex, held: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    await served.chat(STORED)
    monkeypatch.setattr(index, "_timeout_s", 0.05)
    hanging = asyncio.create_task(index._owner.run(lambda: held.wait(30.0)))
    await until(lambda: index._owner._lock.locked())
    answer = await served.chat(ASKED)
    assert (answer.status, answer.text) == (200, f"upstream answers: {ASKED}")
    held.set()
    await hanging
    monkeypatch.setattr(index, "_timeout_s", 10.0)
    assert (await served.chat(OTHER)).cache_status == "nearhit; hit; detail=semantic"
