"""What is decided of requests, told as it happens to operators who watch. Costs nothing while nobody does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gateway.errors import Overloaded

MAX_WATCHERS = 8
MAX_QUEUED = 256  # of a watcher; then the oldest are dropped, and counted

Decision = dict[str, Any]


class Subscription:
    """One who watches. `dropped`: decisions that came faster than they were taken."""

    def __init__(self) -> None:
        self._queue: deque[Decision] = deque()
        self._ready = asyncio.Event()
        self.dropped = 0
        self.is_closed = False

    def put(self, decision: Decision) -> None:
        if len(self._queue) >= MAX_QUEUED:
            self._queue.popleft()
            self.dropped += 1
        self._queue.append(decision)
        self._ready.set()

    def close(self) -> None:
        self.is_closed = True
        self._ready.set()

    async def take(self, wait_s: float) -> list[Decision]:
        """All that have come; none after `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                await self._ready.wait()
        except TimeoutError:
            return []
        if not self.is_closed:
            self._ready.clear()
        taken = list(self._queue)
        self._queue.clear()
        return taken


class LiveEvents:
    """To be used from one event loop."""

    def __init__(self) -> None:
        self.watches: set[Subscription] = set()  # that are told
        self._closed = False

    @property
    def is_watched(self) -> bool:
        return bool(self.watches)

    def publish(self, decision: Decision) -> None:
        """The fields of the access log: neither prompts nor credentials."""
        for watch in self.watches:
            watch.put(decision)

    @contextmanager
    def watch(self) -> Iterator[Subscription]:
        """Raises `Overloaded`."""
        if self._closed or len(self.watches) >= MAX_WATCHERS:
            raise Overloaded(f"{MAX_WATCHERS} watch already: close another live view first", retry_after_s=5)
        watch = Subscription()
        self.watches.add(watch)
        try:
            yield watch
        finally:
            self.watches.discard(watch)

    def close(self) -> None:
        """Lets all who watch go: the gateway ends."""
        self._closed = True
        for watch in self.watches:
            watch.close()
