"""Publishes the decision on each request to operators who watch the live view. It costs nothing while nobody does."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from gateway.errors import Overloaded

MAX_WATCHERS = 8
MAX_QUEUED = 256  # decisions for one watcher; beyond it the oldest are dropped, and counted

Decision = dict[str, Any]


class Subscription:
    """The queue of one watcher. `dropped` counts decisions that arrived faster than the watcher read them."""

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
        """Wait up to `wait_s` for decisions and return all that have arrived."""
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
    """Publishes decisions to the watchers. For use from one event loop."""

    def __init__(self) -> None:
        self.watches: set[Subscription] = set()
        self._closed = False

    @property
    def is_watched(self) -> bool:
        return bool(self.watches)

    def publish(self, decision: Decision) -> None:
        """Publish a decision: the fields of the access log, without prompts or credentials."""
        for watch in self.watches:
            watch.put(decision)

    @contextmanager
    def watch(self) -> Iterator[Subscription]:
        """Subscribe to decisions. Raise `Overloaded` if there are too many watchers."""
        if self._closed or len(self.watches) >= MAX_WATCHERS:
            raise Overloaded(f"{MAX_WATCHERS} live views are open already: close one of them first", retry_after_s=5)
        watch = Subscription()
        self.watches.add(watch)
        try:
            yield watch
        finally:
            self.watches.discard(watch)

    def close(self) -> None:
        """Close all subscriptions, since the gateway stops."""
        self._closed = True
        for watch in self.watches:
            watch.close()
