"""Until a signal ends what runs."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress


async def until_signalled() -> None:
    """Returns on SIGINT or SIGTERM."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    try:
        await stop.wait()
    finally:
        for number in (signal.SIGINT, signal.SIGTERM):
            with suppress(ValueError):
                loop.remove_signal_handler(number)
