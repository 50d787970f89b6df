"""What the garbage collector walks, and when."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections import deque
from collections.abc import Iterator

import pytest

from gateway.adapters.system.memory import OLDER, OLDEST, THRESHOLDS, GarbageCollection, collecting, untrack
from gateway.cache.eviction import EvictionLedger
from tests.fixtures.gateways import Served, at_rest
from tests.fixtures.waiting import until

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

AT_MOST = (THRESHOLDS[OLDER] + 3) * THRESHOLDS[0]  # objects within reach, with what a test itself makes
ALWAYS, NEVER = 1e9, -1.0  # the part of a tick below which a loop is held to be quiet


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.unfreeze()
    assert (gc.get_threshold(), list(gc.callbacks)) == before


def grown(count: int) -> list[list[object]]:
    """So many objects, and as many more as it takes to have them all put out of reach."""
    kept = [[object()] for _ in range(count)]
    walks = walks_of(OLDER)
    while walks_of(OLDER) == walks:
        kept.append([object()])
    return kept


def walks_of(generation: int) -> int:
    return int(gc.get_stats()[generation]["collections"])


def walked() -> int:
    """Objects that a walk of the oldest would look at by now, about."""
    return sum(len(gc.get_objects(generation)) for generation in range(OLDEST + 1))


async def test_what_is_there_is_out_of_reach_until_the_end() -> None:
    gc.unfreeze()  # what earlier tests have put there
    gc.collect()
    there = walked()
    with collecting(GarbageCollection()):
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > 0.9 * there
        assert walked() < THRESHOLDS[0]


async def test_what_outlives_two_walks_is_walked_no_more() -> None:
    kept: list[list[object]] = []
    with collecting(GarbageCollection()):
        for _ in range(400):
            kept += [[object()] for _ in range(1_000)]
            assert walked() < AT_MOST
    assert len(kept) == 400_000


async def test_as_many_new_objects_as_old_ones_go_are_walked_in_time() -> None:
    kept = deque([[object()] for _ in range(50_000)])
    with collecting(GarbageCollection(tick_s=0.001)):
        for _ in range(50):
            for _ in range(1_000):
                kept.popleft()
                kept.append([object()])
            walks = walks_of(0)
            await until(lambda: walks_of(0) > walks)  # noqa: B023
            assert walked() < AT_MOST


async def test_a_cycle_that_is_young_is_found_while_requests_come() -> None:
    with collecting(GarbageCollection(quiet=NEVER)):
        gone = weakref.ref(Cycle())
        kept = [[object()] for _ in range(THRESHOLDS[0] + 1)]
        assert gone() is None
    assert kept


@pytest.mark.parametrize("quiet", [True, False])
async def test_what_is_in_a_cycle_by_then_is_found_once_in_a_while(quiet: bool) -> None:
    with collecting(GarbageCollection(tick_s=0.001, quiet=ALWAYS if quiet else NEVER)):
        settled = gc.get_freeze_count()
        cycle, kept = Cycle(), grown(0)
        gone = weakref.ref(cycle)
        assert cycle not in gc.get_objects(), "it is out of reach"
        del cycle
        kept += grown(settled if quiet else 2 * settled)
        await asyncio.sleep(0.01)  # several ticks
        assert quiet or gone() is not None, "there is not enough to walk it all at once"
        kept += grown(2 * settled)
        await until(lambda: gone() is None)
        assert walked() < AT_MOST
    assert kept


async def test_what_came_and_went_is_no_reason_to_walk_everything() -> None:
    with collecting(GarbageCollection(tick_s=0.001, quiet=NEVER)):
        cycle, settled = Cycle(), gc.get_freeze_count()
        gone = weakref.ref(cycle)
        grown(0)
        del cycle
        for _ in range(6):
            grown(settled)
            await asyncio.sleep(0.01)  # several ticks
        assert gone() is not None


class Leaf:
    """Refers to nothing that can be a part of a cycle."""


def test_what_is_untracked_is_freed_with_its_last_reference() -> None:
    leaf = Leaf()
    untrack(leaf)
    untrack(leaf)  # again: nothing happens
    gone = weakref.ref(leaf)
    assert not gc.is_tracked(leaf)
    del leaf
    assert gone() is None


async def test_a_full_collection_walks_no_entry(served: Served) -> None:
    """Walking a million entries would stop the event loop for seconds."""
    for number in range(5):
        await served.chat(f"what is entry {number}?")
    await at_rest(served)
    residents = served.gateway.parts.space.store._residents
    found = [resident for name in list(residents) if (resident := residents.peek(name)) is not None]
    assert len(found) == 5
    assert not any(gc.is_tracked(each) for resident in found for each in (resident, resident.entry))


def test_a_full_collection_walks_no_place_of_an_eviction_ledger() -> None:
    ledger = EvictionLedger()
    ledger.put("a", 100, 1.0, 0)
    assert not gc.is_tracked(ledger._records["a"])
