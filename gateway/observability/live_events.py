"""What is decided of requests, told as it happens to operators who watch. Costs nothing while nobody does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gateway.errors import Overloaded

MAX_WATCHERS = 8
MAX_WAITING = 256  # of a watcher; then the oldest are dropped, and counted

Decision = dict[str, Any]


class Subscription:
    """One who watches. `dropped`: decisions that came faster than they were taken."""

    def __init__(self) -> None:
        self._waiting: deque[Decision] = deque()
        self._come = asyncio.Event()
        self.dropped = 0
        self.over = False

    def put(self, decision: Decision) -> None:
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
            self.dropped += 1
        self._waiting.append(decision)
        self._come.set()

    def end(self) -> None:
        self.over = True
        self._come.set()

    async def take(self, wait_s: float) -> list[Decision]:
        """All that have come; none after `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                await self._come.wait()
        except TimeoutError:
            return []
        if not self.over:
            self._come.clear()
        taken = list(self._waiting)
        self._waiting.clear()
        return taken


class LiveEvents:
    """To be used from one event loop."""

    def __init__(self) -> None:
        self.watches: set[Subscription] = set()  # that are told
        self._closed = False

    @property
    def watched(self) -> bool:
        return bool(self.watches)

    def tell(self, decision: Decision) -> None:
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
            watch.end()
