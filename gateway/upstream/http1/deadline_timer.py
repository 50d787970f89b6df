"""One timer for a connection's many waits."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable


class Alarm:
    """Calls `ring` once `due` has passed. To move `due` to a later time costs no timer: that is seen when the earlier
    one goes off, so that a connection with a request every millisecond has one timer every few seconds."""

    __slots__ = ("_at", "_due", "_handle", "_loop", "_ring")

    def __init__(self, loop: asyncio.AbstractEventLoop, ring: Callable[[], None]) -> None:
        self._loop = loop
        self._ring = ring
        self._due = self._at = math.inf
        self._handle: asyncio.TimerHandle | None = None

    def set(self, due: float) -> None:
        """`due`: time of the event loop, instead of any earlier one."""
        self._due = due
        if due < self._at:
            if self._handle is not None:
                self._handle.cancel()
            self._at = due
            self._handle = self._loop.call_at(due, self._passed)

    def off(self) -> None:
        """For good."""
        self._due = self._at = math.inf
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def _passed(self) -> None:
        self._handle, self._at, due = None, math.inf, self._due
        if due == math.inf:
            return
        if self._loop.time() < due:
            self.set(due)
            return
        self._due = math.inf
        self._ring()
