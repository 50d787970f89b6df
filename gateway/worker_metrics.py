"""The figures of all processes behind one address: each leaves its own in a file of one folder, and the worker with the
admin port reads those of the others."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path

from gateway.config import Config
from gateway.observability.aggregation import Strange, merge, packed
from gateway.observability.telemetry import Telemetry
from gateway.tasks import run_within
from gateway.worker import FOLDER, Hired

LOG = logging.getLogger("nearhit.workers")
FIGURES_EVERY_S = 2.0
FOLDED = 8  # files of processes that have ended, before they become one


class OwnFigures:
    """Those of this process, in `folder` for the others to read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failing = False

    def write(self, figures: bytes) -> None:
        """`figures`: as `packed` makes them. What cannot be written now, as on a full disk, is in what is written
        later."""
        path = self._folder / str(os.getpid())
        beside = path.with_suffix(".new")
        try:
            beside.write_bytes(figures)
            beside.replace(path)
        except OSError as error:
            if not self._failing:
                LOG.warning("the figures of this process cannot be written", extra={"fields": {"error": str(error)}})
            self._failing = True
        else:
            self._failing = False


class Colleagues:
    """The figures of all workers as one, for the admin port. Each writes its own now and then, and at its end; with
    nobody else they are its own."""

    def __init__(self, telemetry: Telemetry, folder: Path | None) -> None:
        self._own = telemetry
        self._folder = folder
        self._strange = Strange()
        self.telemetry = telemetry if folder is None else Telemetry()

    def sampling(self, sample: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """The same, and then what the others say."""

        async def sampled() -> None:
            await sample()
            await self.gather()

        return sampled

    async def gather(self) -> None:
        """Makes `telemetry` what all of them say."""
        if self._folder is not None:
            alive, ended = await asyncio.to_thread(_read, self._folder)
            self._strange.tell(merge(self.telemetry, self._own, alive, ended))

    def begin(self, stack: AsyncExitStack, sample: Callable[[], Awaitable[None]]) -> None:
        if self._folder is None:
            return
        figures = OwnFigures(self._folder)
        stack.callback(lambda: figures.write(packed(self._own)))
        run_within(stack, self._report(figures, sample))

    async def _report(self, figures: OwnFigures, sample: Callable[[], Awaitable[None]]) -> None:
        while True:
            await sample()
            await asyncio.to_thread(figures.write, packed(self._own))
            await asyncio.sleep(FIGURES_EVERY_S)


def _read(folder: Path) -> tuple[list[bytes], list[bytes]]:
    """Of the other processes: those that live, and those that have ended."""
    alive: list[bytes] = []
    ended: list[bytes] = []
    with _alone(folder, fcntl.LOCK_SH):
        for path in folder.iterdir():
            if path.suffix or path.name == str(os.getpid()):
                continue
            living = Path("/proc", path.name).exists()
            (alive if living else ended).append(path.read_bytes())
    return alive, ended


def fold(folder: Path) -> None:
    """What processes that have ended have left becomes one file, where there are some of them. By the supervisor."""
    with _alone(folder, fcntl.LOCK_EX):
        ended = [path for path in folder.iterdir() if not path.suffix and not Path("/proc", path.name).exists()]
        if len(ended) < FOLDED:
            return
        into = Telemetry()
        merge(into, Telemetry(), (), [path.read_bytes() for path in ended])
        for path in ended:
            path.unlink()
        (folder / "ended").write_bytes(packed(into))


@contextmanager
def _alone(folder: Path, how: int) -> Iterator[None]:
    with (folder / "lock.lock").open("w") as lock:
        fcntl.flock(lock, how)
        yield


def figures_folder(data_dir: Path) -> Path:
    """`data_dir` as the configuration has it."""
    return data_dir / FOLDER / "figures"


def colleagues_of(config: Config, hired: Hired | None, telemetry: Telemetry) -> Colleagues:
    """`config`: as `Hired.applied` has made it."""
    return Colleagues(telemetry, None if hired is None else config.data_dir.parent / "figures")
