"""Work that no client waits for: refreshes, audits. Bounded, and ended with the gateway."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from typing import Any, TypeVar

T = TypeVar("T")
LOG = logging.getLogger("nearhit")
MAX_TASKS = 64
FIRST_PAUSE_S, MAX_PAUSE_S, STEADY_UPTIME_S = 0.5, 30.0, 60.0  # of what is begun again, see `Backoff`


class Background:
    """Work beyond `limit` at once is not begun: what it is for is an optimisation. To be used from one event loop."""

    def __init__(self, limit: int = MAX_TASKS) -> None:
        self._limit = limit
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, key: str, work: Coroutine[Any, Any, None]) -> bool:
        """Begins `work` unless work of that key is under way. False where it was not begun."""
        if key in self._tasks or len(self._tasks) >= self._limit:
            work.close()
            return False
        task = self._tasks[key] = asyncio.create_task(self._run(work))
        task.add_done_callback(lambda _: self._tasks.pop(key, None))
        return True

    async def close(self) -> None:
        """Cancels what is under way, and returns when it has ended."""
        await cancelled(*self._tasks.values())

    async def _run(self, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        except Exception:
            LOG.exception("background work failed")


class Backoff:
    """Before what has ended by itself is started again: each twice as long as the one before, the first one again after
    a life of `steady_s`."""

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
    """Begins `work`, which is among `tasks` until it is over: the loop itself holds tasks weakly."""
    task = asyncio.get_running_loop().create_task(work)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    return task


def start_task(job: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
    """A job that runs as long as the gateway does. Where it fails that is said at once: nobody waits for it, and the
    loop itself would say so when the gateway ends."""
    task = asyncio.create_task(job, name=getattr(job, "__qualname__", None))
    task.add_done_callback(_log_failure)
    return task


def _log_failure(job: asyncio.Task[None]) -> None:
    error = None if job.cancelled() else job.exception()
    if error is not None:
        LOG.error("a part of the gateway has ended", exc_info=error, extra={"fields": {"job": job.get_name()}})


async def restart_on_failure(job: Callable[[], Coroutine[Any, Any, None]], backoff: Backoff | None = None) -> None:
    """A job that runs as long as the gateway does, and is begun anew where it fails: one fault that nobody has thought
    of must not end for all requests to come what they rely on."""
    backoff = backoff or Backoff(FIRST_PAUSE_S, MAX_PAUSE_S, STEADY_UPTIME_S)
    time = asyncio.get_running_loop().time
    while True:
        since = time()
        try:
            return await job()
        except Exception as error:
            delay_s = backoff.next_delay(time() - since)
            fields = {"job": getattr(job, "__qualname__", ""), "again_in_s": delay_s}
            LOG.error("a part of the gateway has failed and is begun again", exc_info=error, extra={"fields": fields})
        await asyncio.sleep(delay_s)


def run_in(stack: AsyncExitStack, job: Coroutine[Any, Any, None]) -> None:
    """Begins a job that `stack` ends."""
    stack.push_async_callback(cancelled, start_task(job))


async def cancelled(*tasks: asyncio.Task[None]) -> None:
    """Ends background tasks. A cancellation that meets a library in the middle of a connection's end can be lost
    (seen with the store's client at a failed start): it is said again until it is heard."""
    while pending := [task for task in tasks if not task.done()]:
        for task in pending:
            task.cancel()
        await asyncio.wait(pending, timeout=0.5)
