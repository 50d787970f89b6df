"""A worker, as its supervisor sees it."""

from __future__ import annotations

import asyncio
import logging
import signal
import time
from contextlib import suppress

LOG = logging.getLogger("nearhit.workers")
START_S = 120.0  # for a worker to listen: a model that is loaded from a slow disk
WARM_S = 60.0  # in a hand-over, for its index to be complete, before the old one ends all the same


class Worker:
    """A process; `told` is what it says of itself."""

    def __init__(self, number: int, process: asyncio.subprocess.Process, told: asyncio.StreamReader) -> None:
        self.number = number
        self.process = process
        self._told = told
        self.begun = time.monotonic()

    async def says(self, word: str, within_s: float) -> bool:
        """Whether it does, before it ends and in time."""
        try:
            async with asyncio.timeout(within_s):
                while line := await self._told.readline():
                    if line.decode().strip() == word:
                        return True
        except TimeoutError:
            pass
        return False

    async def fault(self) -> str | None:
        """Why it cannot take another's place; None once it can."""
        if not await self.says("ready", START_S):
            return "a new worker has not come to listen"
        if not await self.says("warm", WARM_S) and self._told.at_eof():
            return "a new worker has ended before it was warm"
        return None

    def signal(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)

    async def end(self, grace_s: float) -> None:
        self.signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(grace_s):
                await self.process.wait()
        except TimeoutError:
            LOG.warning("a worker did not end in time and is killed", extra={"fields": {"pid": self.process.pid}})
            self.signal(signal.SIGKILL)
            await self.process.wait()
