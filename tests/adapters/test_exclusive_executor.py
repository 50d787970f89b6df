"""Who touches the index: one at a time, in the order in which it was asked for."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import numpy as np
import pytest

from gateway.adapters.faiss.exclusive_executor import ExclusiveExecutor
from gateway.adapters.faiss.index import FaissIndex
from gateway.adapters.faiss.partition import BRIEF_ENTRIES
from gateway.entries import Vector
from gateway.ports import StoredVector

DIMENSION = 8


@pytest.fixture
def owner() -> Iterator[ExclusiveExecutor]:
    owner = ExclusiveExecutor()
    yield owner
    owner.close()


async def test_the_event_loop_takes_its_turn_where_nobody_is_at_it(owner: ExclusiveExecutor) -> None:
    assert owner.enter()
    assert not owner.enter(), "it is somebody's turn"
    owner.leave()
    assert await owner.run(threading.get_ident) != threading.get_ident()
    assert owner.enter(), "what was asked for is done"
    owner.leave()


async def test_the_thread_waits_for_the_event_loop_to_leave(owner: ExclusiveExecutor) -> None:
    begun: list[str] = []
    assert owner.enter()
    asked = asyncio.ensure_future(owner.run(lambda: begun.append("thread")))
    await asyncio.sleep(0)
    begun.append("loop")
    owner.leave()
    await asked
    assert begun == ["loop", "thread"]


async def test_nothing_overtakes_what_was_asked_for_earlier(owner: ExclusiveExecutor) -> None:
    go = threading.Event()
    asked = asyncio.ensure_future(owner.run(go.wait))
    await asyncio.sleep(0)
    assert not owner.enter()
    go.set()
    await asked
    assert owner.enter()
    owner.leave()


async def test_what_was_given_up_before_its_turn_is_not_waited_for(owner: ExclusiveExecutor) -> None:
    go = threading.Event()
    first = asyncio.ensure_future(owner.run(go.wait))
    await asyncio.sleep(0)
    second = asyncio.ensure_future(owner.run(lambda: None))
    await asyncio.sleep(0)
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    go.set()
    await first
    assert owner.enter()
    owner.leave()


async def test_a_closed_index_is_not_touched(owner: ExclusiveExecutor) -> None:
    owner.close()
    assert not owner.enter()
    with pytest.raises(RuntimeError):
        await owner.run(lambda: None)
    assert not owner.enter()


def at(angle: float) -> Vector:
    vector = np.zeros(DIMENSION, np.float32)
    vector[0], vector[1] = np.cos(angle), np.sin(angle)
    return vector


@pytest.mark.parametrize("entries", [3, BRIEF_ENTRIES + 1])
async def test_small_and_large_scopes_find_the_same_while_others_use_the_index(entries: int) -> None:
    index = FaissIndex(DIMENSION, max_entries=100_000)
    try:
        stored = [StoredVector(f"e{i}", "scope", at(i / entries), 0.0) for i in range(entries)]
        await index.add_all(stored)

        async def busy() -> None:
            for i in range(50):
                await index.add(f"other{i}", "other", at(i))
                await index.remove([f"other{i}"])

        async def asking() -> None:
            for i in range(50):
                (nearest, *_) = await index.search("scope", at((i % entries) / entries), 2)
                assert nearest.fingerprint == f"e{i % entries}"
                assert nearest.similarity == pytest.approx(1.0, abs=1e-5)

        await asyncio.gather(busy(), asking(), busy(), asking())
        assert index.size == entries
    finally:
        index.close()


async def test_no_search_is_made_at_once_while_the_index_is_in_use() -> None:
    index, go = FaissIndex(DIMENSION, max_entries=10), threading.Event()
    try:
        await index.add("e", "scope", at(0.0))
        held = asyncio.ensure_future(index._owner.run(go.wait))
        await asyncio.sleep(0)
        assert index.search_nowait("scope", at(0.0), 1) is None
        go.set()
        await held
        found = index.search_nowait("scope", at(0.0), 1)
        assert found is not None and found[0].fingerprint == "e"
    finally:
        go.set()
        index.close()


async def test_an_addition_comes_after_the_removal_that_was_asked_for_before_it() -> None:
    """Also where that one still waits for the thread: the entry is there in the end."""
    index, go = FaissIndex(DIMENSION, max_entries=10), threading.Event()
    try:
        await index.add("e", "scope", at(0.0))
        held = asyncio.ensure_future(index._owner.run(go.wait))
        await asyncio.sleep(0)
        removal = asyncio.ensure_future(index.remove(["e"]))
        await asyncio.sleep(0)
        addition = asyncio.ensure_future(index.add("e", "scope", at(1.0)))
        await asyncio.sleep(0)
        go.set()
        await asyncio.gather(held, removal, addition)
        (found,) = await index.search("scope", at(1.0), 1)
        assert (found.fingerprint, index.size) == ("e", 1)
    finally:
        index.close()
