"""Until a signal ends what runs."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def told_to_stop(*, patiently: bool = False) -> Iterator[asyncio.Event]:
    """Set by SIGINT or SIGTERM, until the end of the block: the next one ends the process at once. `patiently`: another
    SIGTERM does not. A worker is told by its supervisor, also where the system has told every process of a service."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        yield stop
    finally:
        for number in (signal.SIGINT,) if patiently else (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):
                loop.remove_signal_handler(number)


async def until_signalled() -> None:
    """Returns on SIGINT or SIGTERM."""
    with told_to_stop() as stop:
        await stop.wait()
