"""Signal handlers of the commands: stop, or reload."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from gateway.tasks import cancel_and_wait, spawn


@contextmanager
def stop_event(*, tolerate_repeats: bool = False) -> Iterator[asyncio.Event]:
    """Yield an event that SIGINT or SIGTERM sets. After the block a signal ends the process at once.

    With `tolerate_repeats`, SIGTERM does nothing after the block. A worker needs that: its supervisor sends it SIGTERM,
    and the system may already have sent one to every process of the service.
    """
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT,) if tolerate_repeats else (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):
                loop.remove_signal_handler(number)


async def wait_for_signal() -> None:
    """Wait for SIGINT or SIGTERM."""
    with stop_event() as stop:
        await stop.wait()


@asynccontextmanager
async def on_hangup(action: Callable[[], Coroutine[Any, Any, object]], *, cancel: bool = False) -> AsyncIterator[None]:
    """Run `action` on each SIGHUP during the block. With `cancel`, cancel running actions at its end."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[Any]]()

    def begin() -> None:
        spawn(tasks, action())

    loop.add_signal_handler(signal.SIGHUP, begin)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        if cancel:
            await cancel_and_wait(*tasks)
