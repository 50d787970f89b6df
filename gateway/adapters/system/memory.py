"""Memory of this process: returns freed memory to the system, and schedules the garbage collector."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


def trim_heap() -> None:
    """Return freed memory to the system, with glibc's malloc_trim; elsewhere do nothing.

    glibc keeps free memory between used blocks, and blocks of up to 32 MB once such large ones were freed. Returning
    660 MB took 31 ms, during which no other thread gets memory from the arena being trimmed.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


untrack: Callable[[object], None] = ctypes.PYFUNCTYPE(None, ctypes.py_object)(("PyObject_GC_UnTrack", ctypes.pythonapi))
"""Takes an object out of the lists of the garbage collector: CPython's PyObject_GC_UnTrack, 0.3 us.

A full collection walks all listed objects, and a cache holds a few for each entry. Give only objects of classes written
in Python that never become a part of a cycle. They are freed with their last reference, as always, and the objects they
refer to stay listed. `gc.is_tracked` tells the result.
"""

# Scheduling of Python's garbage collector, so that it never blocks the event loop for long.
#
# Answered requests leave no cycles and are freed by reference counting. Failed or abandoned requests leave a hundred
# objects in cycles. So the collector scans few objects at a time, twice, and survivors are frozen, because repeated
# scans of them take long. Frozen objects that become part of a cycle are found by a full collection: in a quiet moment,
# or else when their number has multiplied.

# A collection starts when 2,000 more objects were created than freed. Every sixth one includes those of the five
# before, 12,000 objects. They take 0.2 and 2.4 ms of CPU while entries are created (30,000 at once: 8.5 ms); counting
# them takes a tenth of that. The last threshold is never reached.
THRESHOLDS = (2_000, 4, 1_000)

OLDER, OLDEST = 1, 2

# If old objects are freed as fast as new ones are created, as with evictions, the collector's counters do not grow. It
# would scan nothing for long, and then everything at once. So a timer runs it, too.
TICK_S = 1.0

# A full collection takes 187 ms of CPU for 500,000 objects, 110,000 of them from the start. Stored entries are not
# among them (`untrack`): with a million, it would stall the loop for seconds. It runs in a tick in which the loop was
# almost idle, if there may be a quarter more objects than last time. Otherwise it runs at `MAX_GROWTH` times as many,
# if they still exist: counting them takes a seventh of the collection.
IDLE_CPU_SHARE = 0.02

GROWTH_WHEN_QUIET = 0.25

MAX_GROWTH = 4


class GarbageCollection:
    """`GarbageCollection` schedules collections on the loop in which `begin` is called. `begin` freezes all existing
    objects. Only that loop's thread runs full collections."""

    def __init__(self, tick_s: float = TICK_S, quiet: float = IDLE_CPU_SHARE) -> None:
        self._tick_s, self._quiet = tick_s, quiet
        self._frozen_count = 0  # frozen objects after the last full collection
        self._promoted_since = 0  # frozen since then, whether or not they still exist

    def begin(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._previous_threshold = gc.get_threshold()
        gc.collect()  # not what is frozen since the imports: it takes 0.1 s, and finds 3,000 objects of 200,000
        self._freeze_all()
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
        """Run in the thread in which the collection took place."""
        if phase == "stop" and info["generation"] == OLDER:
            self._promoted_since += len(gc.get_objects(OLDEST))
            gc.freeze()

    def _check_frozen(self) -> None:
        self._promoted_since = 0  # in any case: check again only after as many more
        if gc.get_freeze_count() > MAX_GROWTH * self._frozen_count:
            self._collect_all()

    def _collect_all(self) -> None:
        gc.unfreeze()
        gc.collect()
        self._freeze_all()

    def _freeze_all(self) -> None:
        gc.freeze()
        self._frozen_count, self._promoted_since = gc.get_freeze_count(), 0


@contextmanager
def collecting(collector: GarbageCollection) -> Iterator[None]:
    collector.begin()
    try:
        yield
    finally:
        collector.end()
