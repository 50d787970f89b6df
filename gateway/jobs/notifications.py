"""Who follows which job: told at once of what happens in this gateway, and by looking of what happens in others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from gateway.job_store import JobStatus

MAX_FOLLOWERS = 1_000
POLL_EVERY_S = 1.0
HEARTBEAT_S = 15.0  # most proxies cut what is silent for 30 s and more
MAX_FOLLOW_S = 3_600.0  # then a client has to ask again


class JobNotifications:
    def __init__(self, max_followers: int = MAX_FOLLOWERS) -> None:
        self._max_followers = max_followers
        self._followers = 0
        self._waiting: dict[str, set[asyncio.Event]] = {}

    @property
    def max_beats(self) -> int:
        return int(MAX_FOLLOW_S / HEARTBEAT_S)

    def enter(self) -> bool:
        """Whether one more may follow; who may, leaves."""
        if self._followers >= self._max_followers:
            return False
        self._followers += 1
        return True

    def leave(self) -> None:
        self._followers -= 1

    def over(self, job: str) -> None:
        """It has ended here."""
        for event in self._waiting.get(job, ()):
            event.set()

    async def wait_change(
        self, job: str, seen: JobStatus, poll: Callable[[], Awaitable[JobStatus | None]]
    ) -> JobStatus | None:
        """Another status than `seen`, or `seen` after `HEARTBEAT_S`; None: there is no such job any more. Raises what
        `poll` raises."""
        event = asyncio.Event()
        self._waiting.setdefault(job, set()).add(event)
        try:
            for _ in range(int(HEARTBEAT_S / POLL_EVERY_S)):
                now = await poll()
                if now is not seen:
                    return now
                with suppress(TimeoutError):
                    async with asyncio.timeout(POLL_EVERY_S):
                        await event.wait()
                event.clear()
            return seen
        finally:
            waiting = self._waiting[job]
            waiting.discard(event)
            if not waiting:
                del self._waiting[job]
