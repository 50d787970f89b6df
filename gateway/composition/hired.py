"""A gateway that is one of several workers behind one address: what its supervisor has given it."""

from __future__ import annotations

import asyncio
import fcntl
import json
import logging
import os
import socket
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from gateway.background import run_within
from gateway.config import Config
from gateway.observing.merged import merge, packed
from gateway.observing.telemetry import Telemetry
from gateway.upkeep.evictions import OF_MEMORY

LOG = logging.getLogger("nearhit.workers")
VARIABLE = "NEARHIT_WORKER"  # not a setting: it has no `__`
FOLDER = "workers"
FIGURES_EVERY_S = 2.0
FOLDED = 8  # files of processes that have ended, before they become one


@dataclass(frozen=True, slots=True)
class Hired:
    """Descriptors are of listening sockets, which the supervisor keeps open, and of the pipe that it is told by."""

    number: int
    workers: int
    data: int
    admin: int | None  # the first worker has the admin port
    told: int
    store: str  # what `store.url` is

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Hired | None:
        given = environ.get(VARIABLE)
        return None if given is None else cls(**json.loads(given))

    def in_words(self) -> str:
        return json.dumps(asdict(self))

    def applied(self, config: Config) -> Config:
        """Its part of what the configuration allows a gateway: together the workers keep to it."""
        store, server, share = config.store, config.server, self.workers
        budget = store.max_bytes
        if budget is None and store.url == "embedded":
            budget = int(OF_MEMORY * store.max_memory)
        return config.model_copy(
            update={
                "data_dir": config.data_dir / FOLDER / str(self.number),
                "store": store.model_copy(
                    update={"url": self.store, "max_bytes": budget, "front_size": store.front_size // share}
                ),
                "server": server.model_copy(update={"max_inflight": _part(server.max_inflight, share)}),
                "jobs": config.jobs.model_copy(update={"workers": _part(config.jobs.workers, share)}),
                "backends": {
                    name: backend.model_copy(update={"max_concurrency": _part(backend.max_concurrency, share)})
                    for name, backend in config.backends.items()
                },
            }
        )

    def say(self, word: str) -> None:
        """To the supervisor: `ready` once it listens, `warm` once its index is complete."""
        os.write(self.told, f"{word}\n".encode())


def data_of(hired: Hired | None) -> socket.socket | None:
    """What its data port listens on already; None: it is to listen by itself."""
    return None if hired is None else socket.socket(fileno=hired.data)


def admin_of(hired: Hired | None) -> socket.socket | None:
    """The same of the admin port."""
    return None if hired is None or hired.admin is None else socket.socket(fileno=hired.admin)


def _part(whole: int, share: int) -> int:
    return -(-whole // share)


class Colleagues:
    """The figures of all workers as one, for the admin port. Each writes its own into a file now and then, and at its
    end; with nobody else they are its own."""

    def __init__(self, telemetry: Telemetry, folder: Path | None) -> None:
        self._own = telemetry
        self._folder = folder
        self._failing = False
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
            merge(self.telemetry, self._own, alive, ended)

    def begin(self, stack: AsyncExitStack, sample: Callable[[], Awaitable[None]]) -> None:
        folder = self._folder
        if folder is None:
            return
        stack.callback(lambda: self._write(folder, packed(self._own)))
        run_within(stack, self._report(folder, sample))

    async def _report(self, folder: Path, sample: Callable[[], Awaitable[None]]) -> None:
        while True:
            await sample()
            await asyncio.to_thread(self._write, folder, packed(self._own))
            await asyncio.sleep(FIGURES_EVERY_S)

    def _write(self, folder: Path, figures: bytes) -> None:
        """What cannot be written now, as on a full disk, is in what is written later."""
        try:
            _write(folder, figures)
        except OSError as error:
            if not self._failing:
                LOG.warning("a worker's figures cannot be written", extra={"fields": {"error": str(error)}})
            self._failing = True
        else:
            self._failing = False


def tell(folder: Path, own: Telemetry) -> None:
    """The figures of this process. Raises `OSError`."""
    _write(folder, packed(own))


def _write(folder: Path, data: bytes) -> None:
    path = folder / str(os.getpid())
    beside = path.with_suffix(".new")
    beside.write_bytes(data)
    beside.replace(path)


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
