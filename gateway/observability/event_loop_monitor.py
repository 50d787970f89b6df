"""Monitors the event loop: how late it is, why, and in which code it stalls.

Every `TICK_S` the loop measures how late it is; every callback waits that long, including requests. A stall is more
than `STALL_S`. During a stall a thread samples the stack of the loop: only names of code, never its data. An idle loop
ticks less often, so that it is hardly woken.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import sys
import threading
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from types import FrameType
from typing import Any

from gateway.observability.telemetry import Telemetry

LOG = logging.getLogger("nearhit.loop")
TICK_S, IDLE_TICK_S = 0.01, 0.05  # a stall may be measured too short by up to one tick
IDLE = 0.05  # a loop that computes for less than this share of a tick is idle
STALL_S = 0.02
WATCH_INTERVAL_S = 0.05
LOG_INTERVAL_S = 60.0  # between two log lines
MAX_FRAMES = 12  # kept of a stack
NO_CODE = "the event loop itself"  # C code: sockets, timers, and the wait for them
RUNNER_MODULE = "asyncio.runners"  # from there on the frames belong to the code that runs the loop


class Cause(StrEnum):
    """The reason why a loop was late."""

    BUSY = "busy"  # it computed
    STARVED = "starved"  # it was ready to run, but had no processor
    WAITING = "waiting"  # it was in a blocking call, or waited for the interpreter's lock


@dataclass(frozen=True, slots=True)
class StackSample:
    """A reading of the clocks of the loop's thread, in seconds."""

    at: float  # monotonic clock
    ran: float  # CPU time of the thread
    starved: float  # time that the thread was ready but had no processor
    tick: float = TICK_S  # until the next reading is due


@dataclass(frozen=True, slots=True)
class Stall:
    """A stall of the loop. `stack` lists the frames as module:function:line, the innermost first, and is empty if no
    Python code ran. It is None without a sample: the stall was short, or the sampling thread had no processor
    either."""

    seconds: float
    cause: Cause
    stack: tuple[str, ...] | None

    @property
    def where(self) -> str | None:
        """The innermost frame of the gateway's code, else the innermost of all, or None if not known."""
        if not self.stack:
            return None if self.stack is None else NO_CODE
        ours = (frame for frame in self.stack if frame.startswith("gateway."))
        return next(ours, self.stack[0])

    def as_json(self) -> dict[str, Any]:
        """Return the stall for operators, with `where` if it is known."""
        summary = {"ms": round(1e3 * self.seconds, 1), "cause": str(self.cause)}
        return summary if self.where is None else summary | {"where": self.where}


def lateness_s(previous: StackSample, now: StackSample) -> float:
    """Return the seconds by which a tick was late."""
    return max(0.0, now.at - previous.at - previous.tick)


def next_tick(previous: StackSample, now: StackSample) -> float:
    """Return the seconds until the next reading."""
    return TICK_S if now.ran - previous.ran > IDLE * (now.at - previous.at) else IDLE_TICK_S


def cause_of(previous: StackSample, now: StackSample) -> Cause:
    """Return the cause of most of the time by which a tick was late."""
    ran, starved = now.ran - previous.ran, now.starved - previous.starved
    parts = {Cause.BUSY: ran, Cause.STARVED: starved, Cause.WAITING: lateness_s(previous, now) - ran - starved}
    return max(parts, key=parts.__getitem__)


def stack_of(frame: FrameType | None) -> tuple[str, ...]:
    """Return the names of the frames, innermost first, up to the code that runs the loop."""
    names: list[str] = []
    while frame is not None and len(names) < MAX_FRAMES:
        module = frame.f_globals.get("__name__", "")
        if module == RUNNER_MODULE:
            break
        names.append(f"{module}:{frame.f_code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(names)


def sample_stack(thread: int) -> tuple[str, ...]:
    """Return the stack of another thread, as `stack_of` does. The garbage collector pauses meanwhile.

    In CPython 3.11 it may run while this makes objects of the other thread's frames. A finalizer can then let that
    thread go on, and the frame is gone; or the threads wait for each other for ever (python/cpython#106883).
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        return stack_of(sys._current_frames().get(thread))
    finally:
        if enabled:
            gc.enable()


class EventLoopMonitor:
    """Monitors the loop in which `begin` is called. `last` and `longest` are stalls since then."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.last: Stall | None = None
        self.longest: Stall | None = None
        self._lag, self._stalls = telemetry.loop_lag_seconds, telemetry.loop_stalls
        for cause in Cause:
            self._stalls.add(str(cause), amount=0)
        self._running = threading.Lock()  # cheaper to wait for than an event; released at the end
        self._stack_sample: tuple[float, tuple[str, ...]] = (
            0.0,
            (),
        )  # the tick before a stall, and the stack in the stall
        self._logged_at, self._suppressed = -LOG_INTERVAL_S, 0

    def begin(self, stack: AsyncExitStack) -> None:
        """Start to monitor; `stack` ends it."""
        self._thread = threading.get_ident()
        self._file = _schedstat()
        if self._file is not None:
            stack.callback(os.close, self._file)
        self._previous = self._read()
        stack.callback(lambda: self._next.cancel())
        self._schedule_tick()
        self._running.acquire()
        watcher = threading.Thread(target=self._watch, name="nearhit-loop-watch", daemon=True)
        watcher.start()
        stack.callback(watcher.join, 1.0)
        stack.callback(self._running.release)

    def reset(self) -> None:
        """Do not count the time since the last tick as a stall."""
        self._previous = self._read()

    def shown(self) -> dict[str, Any]:
        """Return the last and the longest stall for operators; see `Stall.as_json`."""
        stalls = {"last": self.last, "longest": self.longest}
        return {name: None if stall is None else stall.as_json() for name, stall in stalls.items()}

    def _schedule_tick(self) -> None:
        self._next = asyncio.get_running_loop().call_later(self._previous.tick, self._tick)

    def _tick(self) -> None:
        previous, now = self._previous, self._read()
        lag = lateness_s(previous, now)
        self._lag.observe(lag)
        if lag > STALL_S:
            at, stack = self._stack_sample
            self._record_stall(Stall(lag, cause_of(previous, now), stack if at == previous.at else None), now.at)
        self._previous = replace(now, tick=next_tick(previous, now))
        self._schedule_tick()

    def _record_stall(self, stall: Stall, now: float) -> None:
        self._stalls.add(str(stall.cause))
        self.last = stall
        if self.longest is None or stall.seconds > self.longest.seconds:
            self.longest = stall
        if now - self._logged_at < LOG_INTERVAL_S:
            self._suppressed += 1
            return
        fields = stall.as_json() | ({"stack": list(stall.stack)} if stall.stack else {}) | {"unsaid": self._suppressed}
        LOG.warning("the event loop stood still", extra={"fields": fields})
        self._logged_at, self._suppressed = now, 0

    def _read(self) -> StackSample:
        # The kernel's count of nanoseconds that the thread was ready but did not run; one read takes 3 us of CPU.
        starved = 0.0 if self._file is None else int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        return StackSample(time.monotonic(), time.thread_time(), starved)

    def _watch(self) -> None:
        """Sample the stack of the loop once in each stall; runs in a separate thread."""
        while not self._running.acquire(timeout=WATCH_INTERVAL_S):
            previous = self._previous
            if time.monotonic() - previous.at > previous.tick + STALL_S and self._stack_sample[0] != previous.at:
                self._stack_sample = previous.at, sample_stack(self._thread)


def _schedstat() -> int | None:
    """Open the scheduler statistics of this thread, or None if the kernel has none."""
    try:
        path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
