"""When Python's garbage collector looks for cycles, and at what: so that it holds the event loop for milliseconds.

Where it looks seldom it walks a hundred thousand young objects at once, 26 ms; and the old ones, which are those of all
stored entries, whenever there are a quarter more. Here it walks few at a time, and whatever has outlived a walk of the
oldest is put out of its reach: nearly all of that is freed by counting, whenever it is. What is in a cycle by then is
found when everything is walked, once in a while.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

# So many objects more than went since the last walk; beyond how many walks of a generation the next older one is walked
# as well. That is 5,000, 10,000 and 30,000 objects: 0.6, 1.4 and 5.5 ms, 8 ms at most, as stored answers were made.
THRESHOLDS = (5_000, 0, 1)
OLDEST = 2
# Everything is walked (120 ms of CPU with 155,000 objects of the start and as many more) where walks of the oldest have
# found so many objects in cycles, and as many may be out of reach; or where so many times what there was is there.
FOUND, TIMES = 50_000, 4


class Collector:
    """`begin` puts all that is there out of reach."""

    def __init__(self, found: int = FOUND, times: int = TIMES) -> None:
        self._most_found, self._times = found, times
        self._settled = 0  # out of reach after the last walk of everything
        self._since = self._found = 0  # put there since, and found in cycles
        self._walking = False

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._before = gc.get_threshold()
        self._settle()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._collected)

    def end(self) -> None:
        gc.callbacks.remove(self._collected)
        gc.set_threshold(*self._before)

    def _collected(self, phase: str, info: dict[str, Any]) -> None:
        """In whichever thread it happened."""
        if phase != "stop" or info["generation"] != OLDEST or self._walking:
            return
        self._found += info["collected"]
        self._since += len(gc.get_objects(OLDEST))
        gc.freeze()
        if self._found > self._most_found or self._since > self._times * self._settled:
            self._found = self._since = 0  # once
            self._loop.call_soon_threadsafe(self._walk)

    def _walk(self) -> None:
        gc.unfreeze()
        self._settle()

    def _settle(self) -> None:
        self._walking = True
        gc.collect()
        gc.freeze()
        gc.collect()  # of nothing: the collector waits for a quarter more than it has walked the last time
        self._settled, self._since, self._found = gc.get_freeze_count(), 0, 0
        self._walking = False


@contextmanager
def collected_briefly(collector: Collector) -> Iterator[None]:
    collector.begin()
    try:
        yield
    finally:
        collector.end()
