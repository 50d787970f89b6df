"""Work that no client waits for, such as refreshes and audits. It is bounded, and ends with the gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, TypeVar

T = TypeVar("T")
LOG = logging.getLogger("nearhit")
MAX_TASKS = 64
FIRST_PAUSE_S, MAX_PAUSE_S, STEADY_UPTIME_S = 0.5, 30.0, 60.0  # for restarts, see `Backoff`


class Background:
    """`Background` runs at most `limit` tasks at once. Further work is dropped, because it only serves optimisations.
    Use it from one event loop."""

    def __init__(self, limit: int = MAX_TASKS) -> None:
        self._limit = limit
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, key: str, work: Coroutine[Any, Any, None]) -> bool:
        """Start `work`, unless work of that key is in progress. Return False if it was not started."""
        if key in self._tasks or len(self._tasks) >= self._limit:
            work.close()
            return False
        task = self._tasks[key] = asyncio.create_task(self._run(work))
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return True

    async def close(self) -> None:
        """Cancel all tasks, and return when they have ended."""
        await cancel_and_wait(*self._tasks.values())

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            LOG.exception("background work failed")


class Backoff:
    """Delays before restarts. Each is twice the one before; after an uptime of `steady_s` they start again at the
    first."""

    def __init__(self, first_s: float, max_pause_s: float, steady_s: float) -> None:
        self._first_s = first_s
        self._max_pause_s = max_pause_s
        self._steady_s = steady_s
        self._next_s = first_s

    def next_delay(self, uptime_s: float) -> float:
        delay_s = self._first_s if uptime_s > self._steady_s else self._next_s
        self._next_s = min(self._max_pause_s, 2 * delay_s)
        return delay_s


def spawn(tasks: set[asyncio.Task[T]], work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    """Start `work`, and keep it in `tasks` until it ends: the event loop keeps only weak references to tasks."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def start_task(job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """Start a job that runs as long as the gateway. Log a failure at once: nobody awaits the task, so the event loop
    would report it only when the gateway ends."""
    task = asyncio.create_task(job, name=getattr(job, "__qualname__", None))
    task.add_done_callback(_log_failure)
    return task


def _log_failure(job: asyncio.Task[None]) -> None:
    error = None if job.cancelled() else job.exception()
    if error is not None:
        LOG.error("a part of the gateway has ended", exc_info=error, extra={"fields": {"job": job.get_name()}})


async def restart_on_failure(job: Callable[[], Coroutine[Any, Any, None]], backoff: Backoff | None = None) -> None:
    """Run a job as long as the gateway, and restart it after a failure. One unexpected error must not disable it for
    all later requests."""
    backoff = backoff or Backoff(FIRST_PAUSE_S, MAX_PAUSE_S, STEADY_UPTIME_S)
    time = asyncio.get_running_loop().time
    while True:
        since = time()
        try:
            return await job()
        except Exception as error:
            delay_s = backoff.next_delay(time() - since)
            name = getattr(job.func if isinstance(job, partial) else job, "__qualname__", "")
            fields = {"job": name, "again_in_s": delay_s}
            LOG.error("a part of the gateway has failed and is restarted", exc_info=error, extra={"fields": fields})
        await asyncio.sleep(delay_s)


def run_in(stack: AsyncExitStack, job: Coroutine[Any, Any, None]) -> None:
    """Start a job that `stack` cancels."""
    stack.push_async_callback(cancel_and_wait, start_task(job))


async def cancel_and_wait(*tasks: asyncio.Task[None]) -> None:
    """Cancel background tasks, and wait for their end.

    A cancellation that arrives while a library closes a connection can be lost. This was seen with the store's client
    at a failed start. So the cancellation is repeated until the task ends.
    """
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.5)
