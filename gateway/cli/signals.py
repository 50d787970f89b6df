"""What a signal has a command do: end, or begin something anew."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from gateway.tasks import cancelled, spawn


@contextmanager
def stop_event(*, tolerate_repeats: bool = False) -> Iterator[asyncio.Event]:
    """Set by SIGINT or SIGTERM, until the end of the block: the next one ends the process at once. `tolerate_repeats`:
    another SIGTERM does not. A worker is told by its supervisor, also where the system has told every process of a
    service."""
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
    """Returns on SIGINT or SIGTERM."""
    with stop_event() as stop:
        await stop.wait()


@asynccontextmanager
async def on_hangup(action: Callable[[], Coroutine[Any, Any, object]], *, cancel: bool = False) -> AsyncIterator[None]:
    """SIGHUP begins it, until the end of the block. `cancel`: what is under way then ends there."""
    loop, tasks = asyncio.get_running_loop(), set[asyncio.Task[Any]]()

    def begin() -> None:
        spawn(tasks, action())

    loop.add_signal_handler(signal.SIGHUP, begin)
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        if cancel:
            await cancelled(*tasks)
