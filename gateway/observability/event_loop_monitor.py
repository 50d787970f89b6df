"""Whether the event loop turns: by how much it is late, what keeps it, and where it stands.

The loop notes every `TICK_S` by how much it was late to do so; that is what whatever is due in it has to wait, requests
among it. A stall is more than `STALL_S`. A thread looks meanwhile where a loop stands that does not tick: at names of
code alone, never at what the code works on. A loop with nothing to do ticks less often, and is hardly woken for it.
"""

from __future__ import annotations

import asyncio
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
TICK_S, IDLE_TICK_S = 0.01, 0.05  # a stall is seen less up to that much of its length
IDLE = 0.05  # the part of a tick that a loop computes, below which it has nothing to do
STALL_S = 0.02
WATCH_INTERVAL_S = 0.05
LOG_INTERVAL_S = 60.0  # between two lines of the log
MAX_FRAMES = 12  # of a stack that are kept
NO_CODE = "the event loop itself"  # sockets, timers, and the wait for either: C
RUNNER_MODULE = "asyncio.runners"  # the frames from there on are those of whoever runs the loop


class Cause(StrEnum):
    BUSY = "busy"  # it computed
    STARVED = "starved"  # it was ready to, and had no processor
    WAITING = "waiting"  # in a call that blocks, or for the interpreter's lock


@dataclass(frozen=True, slots=True)
class StackSample:
    """Seconds: of the monotonic clock, that the loop's thread has computed, that it has wanted a processor in vain;
    until the next reading is due."""

    at: float
    ran: float
    starved: float
    tick: float = TICK_S


@dataclass(frozen=True, slots=True)
class Stall:
    """`stack`: innermost first, each as module:function:line; empty where the loop was in no Python code. None: nobody
    looked in time, as it was over before, or as the thread that looks had no processor either."""

    seconds: float
    cause: Cause
    stack: tuple[str, ...] | None

    @property
    def where(self) -> str | None:
        """The innermost code of ours, or else of anybody's; None where nobody knows."""
        if not self.stack:
            return None if self.stack is None else NO_CODE
        ours = (frame for frame in self.stack if frame.startswith("gateway."))
        return next(ours, self.stack[0])

    def as_json(self) -> dict[str, Any]:
        """`where` is there where it is known."""
        summary = {"ms": round(1e3 * self.seconds, 1), "cause": str(self.cause)}
        return summary if self.where is None else summary | {"where": self.where}


def lateness_s(previous: StackSample, now: StackSample) -> float:
    """Seconds by which a tick came too late."""
    return max(0.0, now.at - previous.at - previous.tick)


def next_tick(previous: StackSample, now: StackSample) -> float:
    """Seconds until the next reading."""
    return TICK_S if now.ran - previous.ran > IDLE * (now.at - previous.at) else IDLE_TICK_S


def cause_of(previous: StackSample, now: StackSample) -> Cause:
    """What took most of the time by which a tick came too late."""
    ran, starved = now.ran - previous.ran, now.starved - previous.starved
    parts = {Cause.BUSY: ran, Cause.STARVED: starved, Cause.WAITING: lateness_s(previous, now) - ran - starved}
    return max(parts, key=parts.__getitem__)


def stack_of(frame: FrameType | None) -> tuple[str, ...]:
    """Names of code, innermost first, up to who runs the loop."""
    names: list[str] = []
    while frame is not None and len(names) < MAX_FRAMES:
        module = frame.f_globals.get("__name__", "")
        if module == RUNNER_MODULE:
            break
        names.append(f"{module}:{frame.f_code.co_qualname}:{frame.f_lineno}")
        frame = frame.f_back
    return tuple(names)


class EventLoopMonitor:
    """Of the loop that `begin` is called in. `last` and `longest`: stalls since then."""

    def __init__(self, telemetry: Telemetry) -> None:
        self.last: Stall | None = None
        self.longest: Stall | None = None
        self._lag, self._stalls = telemetry.loop_lag_seconds, telemetry.loop_stalls
        for cause in Cause:
            self._stalls.add(str(cause), amount=0)
        self._running = threading.Lock()  # cheaper to wait for than an event; free once it is over
        self._stack_sample: tuple[float, tuple[str, ...]] = (
            0.0,
            (),
        )  # the tick before a stall, and where the loop stood then
        self._logged_at, self._suppressed = -LOG_INTERVAL_S, 0

    def begin(self, stack: AsyncExitStack) -> None:
        """`stack` ends it."""
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
        """What the loop stood still for until now does not count."""
        self._previous = self._read()

    def shown(self) -> dict[str, Any]:
        """For operators: see `Stall.plain`."""
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
        # 3 us of CPU: the kernel's own count of nanoseconds ready and not running.
        starved = 0.0 if self._file is None else int(os.pread(self._file, 64, 0).split()[1]) / 1e9
        return StackSample(time.monotonic(), time.thread_time(), starved)

    def _watch(self) -> None:
        """In a thread of its own: the first that it sees of a stall is where the loop stands."""
        while not self._running.acquire(timeout=WATCH_INTERVAL_S):
            previous = self._previous
            if time.monotonic() - previous.at > previous.tick + STALL_S and self._stack_sample[0] != previous.at:
                self._stack_sample = previous.at, stack_of(sys._current_frames().get(self._thread))


def _schedstat() -> int | None:
    """None where the kernel does not tell."""
    try:
        path = Path(f"/proc/self/task/{threading.get_native_id()}/schedstat")
        return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
