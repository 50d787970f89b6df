"""The embedded store for as long as a gateway lives: one that ends though nobody has stopped it is started again, on
the same folder and socket. Connections come back by themselves; what it may have lost `told` is there for."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from gateway.adapters.redis.embedded_valkey import EmbeddedValkey
from gateway.adapters.system.child_process import ChildFailed, exit_said
from gateway.tasks import Pauses, begun, cancelled

LOG = logging.getLogger("nearhit")
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0
STEADY_S = 60.0  # one that has lived for so long has not failed at its start
STOP_S = 10.0  # for one that is being started to be stopped again


class KeptValkey:
    """Started with `start`. `told`: called each time that the store is back."""

    def __init__(self, server: EmbeddedValkey, launch: Callable[[], Awaitable[EmbeddedValkey]]) -> None:
        self._server = server
        self._launch = launch
        self.url = server.url
        self.told: Callable[[], None] = _nobody
        self._keeping = begun(self._keep())

    @classmethod
    async def start(cls, data_dir: Path, *, max_memory: int, fsync: bool = False) -> KeptValkey:
        """As `EmbeddedValkey.start`: one that cannot be started at first is not tried again. Raises `ChildFailed`."""
        launch = partial(EmbeddedValkey.start, data_dir, max_memory=max_memory, fsync=fsync)
        return cls(await launch(), launch)

    @property
    def pid(self) -> int:
        """Of the last one that came to answer."""
        return self._server.pid

    async def stop(self) -> None:
        """Also one that is just being started."""
        self._keeping.cancel()
        await asyncio.wait({self._keeping}, timeout=STOP_S)
        await cancelled(self._keeping)
        await self._server.stop()

    async def _keep(self) -> None:
        pauses = Pauses(FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_S)
        while True:
            since = time.monotonic()
            code = await self._server.wait()
            ended = time.monotonic()
            pause_s = pauses.after(ended - since)
            fields = {"pid": self.pid, "ended_with": exit_said(code), "log": str(_set_aside(self._server.log))}
            LOG.error(
                "the embedded store has ended by itself: until it is back, what is not in memory is a miss",
                extra={"fields": {**fields, "again_in_s": pause_s}},
            )
            while not await self._again(pause_s):
                pause_s = pauses.after(0.0)
            away_s = round(time.monotonic() - ended, 3)
            LOG.warning("the embedded store is back", extra={"fields": {"pid": self.pid, "away_s": away_s}})
            self.told()

    async def _again(self, pause_s: float) -> bool:
        """What a machine has too little of now it may have later."""
        await asyncio.sleep(pause_s)
        try:
            self._server = await self._launch()
        except (ChildFailed, OSError) as error:
            LOG.error("the embedded store cannot be started again yet", extra={"fields": {"error": str(error)}})
            return False
        return True


def _nobody() -> None:
    """Who is told while nobody has asked to be."""


def _set_aside(log: Path) -> Path:
    """The next one makes its log anew."""
    ended = log.with_name("valkey.ended.log")
    try:
        return log.replace(ended)
    except OSError:
        return log
