"""Until a signal ends what runs."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress


async def until_signalled(*, patiently: bool = False) -> None:
    """Returns on SIGINT or SIGTERM; the next one ends the process at once. `patiently`: another SIGTERM does not. A
    worker is told by its supervisor, also where the system has told every process of a service."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        await stop.wait()
    finally:
        for number in (signal.SIGINT,) if patiently else (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):
                loop.remove_signal_handler(number)
