"""A bound on what is in flight to one backend, and on what waits for a place."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from gateway.errors import BackendFull

QUEUE_FACTOR = 4  # waiters per place: at a steady service time nobody waits longer than four answers take


class Place:
    """A place at a gate. `leave` it as often as you like: only the first time counts."""

    __slots__ = ("_left",)

    def __init__(self, left: Callable[[], None]) -> None:
        self._left: Callable[[], None] | None = left

    def leave(self) -> None:
        left, self._left = self._left, None
        if left is not None:
            left()


class Gate:
    def __init__(self, backend: str, limit: int, max_wait_s: float) -> None:
        self._backend = backend
        self._places = asyncio.Semaphore(limit)
        self._max_queue = limit * QUEUE_FACTOR
        self._max_wait_s = max_wait_s
        self._waiting = 0
        self.inflight = 0

    async def enter(self) -> Place:
        """Raises `BackendFull` (another backend may be asked) when there is no place in time."""
        if self._places.locked():
            await self._wait()
        else:
            await self._places.acquire()
        self.inflight += 1
        return Place(self._left)

    def _left(self) -> None:
        self.inflight -= 1
        self._places.release()

    async def _wait(self) -> None:
        if self._waiting >= self._max_queue:
            raise self._full()
        self._waiting += 1
        try:
            async with asyncio.timeout(self._max_wait_s):
                await self._places.acquire()
        except TimeoutError:
            raise self._full() from None
        finally:
            self._waiting -= 1

    def _full(self) -> BackendFull:
        return BackendFull(f"backend '{self._backend}' is at its limit of concurrent requests")
