"""Notify clients that follow a job: at once of events in this gateway, and by polling of events in others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress

from gateway.features.jobs.store import JobStatus

MAX_FOLLOWERS = 1_000
POLL_EVERY_S = 1.0
HEARTBEAT_S = 15.0  # seconds; most proxies close connections that are silent for 30 s or more
MAX_FOLLOW_S = 3_600.0  # seconds; then the client has to reconnect


class JobNotifications:
    """`JobNotifications` lets up to `max_followers` clients wait for changes of jobs."""

    def __init__(self, max_followers: int = MAX_FOLLOWERS) -> None:
        self._max_followers = max_followers
        self._followers = 0
        self._waiting: dict[str, set[asyncio.Event]] = {}

    @property
    def max_beats(self) -> int:
        return int(MAX_FOLLOW_S / HEARTBEAT_S)

    def enter(self) -> bool:
        """Return whether one more client may follow. If so, call `leave` at its end."""
        if self._followers >= self._max_followers:
            return False
        self._followers += 1
        return True

    def leave(self) -> None:
        self._followers -= 1

    def on_job_end(self, job: str) -> None:
        """Wake the followers of a job that has ended here."""
        for event in self._waiting.get(job, ()):
            event.set()

    async def wait_change(
        self, job: str, seen: JobStatus, poll: Callable[[], Awaitable[JobStatus | None]]
    ) -> JobStatus | None:
        """Return a status other than `seen`, or `seen` after `HEARTBEAT_S`, or None if the job no longer exists.

        Raise whatever `poll` raises.
        """
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
