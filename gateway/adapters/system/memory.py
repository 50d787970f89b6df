"""Memory of this process: returns freed memory to the system, and schedules the garbage collector."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def trim_heap() -> None:
    """glibc keeps what lies between blocks in use for good, and blocks of up to 32 MB once some so large were freed.
    Elsewhere this does nothing. It took 31 ms to give 660 MB back, in which no other thread gets memory of the arena
    that it is at."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


# When Python's garbage collector looks for cycles, and at what: so that it never holds the event loop for long.
#
# What is answered leaves no cycles, and is freed by counting; what fails, or is given up by its client, leaves a
# hundred objects in them. So few objects are walked at a time, twice, and what has outlived that is put out of reach:
# walking it again and again is what takes long. What gets into a cycle only then is found when everything is walked: in
# a quiet moment, or, where none comes, when there is several times what there was.

# Walked at 2,000 objects more than went, every sixth time with those of the five walks before, 12,000: 0.2 and 2.4 ms
# of CPU as entries are made (30,000 at once: 8.5); to count them is a tenth of that. The last is never met.
THRESHOLDS = (2_000, 4, 1_000)

OLDER, OLDEST = 1, 2

# Where as many old objects go as new ones come, as where entries make room, the collector does not count them: it walks
# nothing for long, and then all of them at once.
TICK_S = 1.0

# Everything: 187 ms of CPU for 500,000 objects, 110,000 of them the start's. In a tick in which the loop has hardly
# computed, once there may be a quarter more than was walked the last time; otherwise at so many times of that, and
# only if they are there still: to count them takes a seventh of the walk.
IDLE_CPU_SHARE = 0.02

GROWTH_WHEN_QUIET = 0.25

MAX_GROWTH = 4


class GarbageCollection:
    """`begin` puts all that is there out of reach. Of the loop that it is called in, whose thread is the only one that
    walks everything."""

    def __init__(self, tick_s: float = TICK_S, quiet: float = IDLE_CPU_SHARE) -> None:
        self._tick_s, self._quiet = tick_s, quiet
        self._frozen_count = 0  # out of reach after the last walk of everything
        self._promoted_since = 0  # put there since, whether or not they are there still

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._previous_threshold = gc.get_threshold()
        self._collect_all()
        gc.set_threshold(*THRESHOLDS)
        gc.callbacks.append(self._on_collection)
        self._schedule_tick()

    def end(self) -> None:
        self._next.cancel()
        gc.callbacks.remove(self._on_collection)
        gc.set_threshold(*self._previous_threshold)

    def _schedule_tick(self) -> None:
        self._cpu_at_tick = time.thread_time()
        self._next = self._loop.call_later(self._tick_s, self._tick)

    def _tick(self) -> None:
        quiet = time.thread_time() - self._cpu_at_tick < self._quiet * self._tick_s
        gc.collect(OLDER if len(gc.get_objects(OLDER)) > THRESHOLDS[0] * THRESHOLDS[OLDER] else 0)
        if self._promoted_since > GROWTH_WHEN_QUIET * self._frozen_count and quiet:
            self._collect_all()
        elif self._promoted_since > (MAX_GROWTH - 1) * self._frozen_count:
            self._check_frozen()
        self._schedule_tick()

    def _on_collection(self, phase: str, info: dict[str, Any]) -> None:
        """In whichever thread it happened."""
        if phase == "stop" and info["generation"] == OLDER:
            self._promoted_since += len(gc.get_objects(OLDEST))
            gc.freeze()

    def _check_frozen(self) -> None:
        self._promoted_since = 0  # whatever comes of it: the next time is after as many more
        if gc.get_freeze_count() > MAX_GROWTH * self._frozen_count:
            self._collect_all()

    def _collect_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        self._frozen_count, self._promoted_since = gc.get_freeze_count(), 0


@contextmanager
def collecting(collector: GarbageCollection) -> Iterator[None]:
    collector.begin()
    try:
        yield
    finally:
        collector.end()
