"""What the garbage collector walks, and when."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from gateway.adapters.collector import OLDEST, THRESHOLDS, Collector, collected_briefly
from tests.fixtures.waiting import until


class Cycle:
    def __init__(self) -> None:
        self.itself = self


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = gc.get_threshold(), list(gc.callbacks)
    yield
    gc.unfreeze()
    assert (gc.get_threshold(), list(gc.callbacks)) == before


def walked() -> int:
    """Objects that a walk of the oldest would look at by now, about."""
    return sum(len(gc.get_objects(generation)) for generation in range(OLDEST + 1))


async def test_what_is_there_is_out_of_reach_until_the_end() -> None:
    before = gc.get_freeze_count()
    with collected_briefly(Collector()):
        assert gc.get_threshold() == THRESHOLDS
        assert gc.get_freeze_count() > before
        assert walked() < 5_000


async def test_what_outlives_a_walk_of_the_oldest_is_walked_no_more() -> None:
    kept: list[list[object]] = []
    with collected_briefly(Collector()):
        for _ in range(40):
            kept += [[object()] for _ in range(10_000)]
            assert walked() < 60_000
    assert len(kept) == 400_000


@pytest.mark.parametrize("enough", ["found", "put there"])
async def test_what_is_in_a_cycle_by_then_is_found_once_in_a_while(enough: str) -> None:
    kept: list[list[object]] = []
    with collected_briefly(Collector(found=10_000, times=1)):
        cycle = Cycle()
        gone = weakref.ref(cycle)
        gc.collect()
        assert cycle not in gc.get_objects(), "it is out of reach"
        del cycle
        gc.collect()
        assert gone() is not None
        if enough == "found":
            garbage = [Cycle() for _ in range(11_000)]
            del garbage
        else:
            kept += [[object()] for _ in range(gc.get_freeze_count() + 100_000)]
        gc.collect()
        await until(lambda: gone() is None)
        assert walked() < 60_000
