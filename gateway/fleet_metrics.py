"""Metrics of several processes as one: of the workers of this machine, and of all gateways on a store."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path
from typing import Protocol

import msgpack

from gateway.admin.stats import Gauges
from gateway.cache.stores import Stores
from gateway.config import Config
from gateway.errors import StoreUnavailable
from gateway.observability.aggregation import VersionMismatch, merge, pack_metrics
from gateway.observability.telemetry import Telemetry
from gateway.tasks import run_in
from gateway.worker import FOLDER, WorkerEnvironment

# The figures of all processes behind one address: each leaves its own in a file of one folder, and the worker with the
# admin port reads those of the others.
LOG = logging.getLogger("nearhit.workers")

FIGURES_EVERY_S = 2.0

COMPACT_AT = 8  # files of processes that have ended, before they become one


class OwnMetrics:
    """Those of this process, in `folder` for the others to read."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failing = False

    def write(self, figures: bytes) -> None:
        """`figures`: as `pack_metrics` makes them. What cannot be written now, as on a full disk, is in what is written
        later."""
        path = self._folder / str(os.getpid())
        temporary = path.with_suffix(".new")
        try:
            temporary.write_bytes(figures)
            temporary.replace(path)
        except OSError as error:
            if not self._failing:
                LOG.warning("the figures of this process cannot be written", extra={"fields": {"error": str(error)}})
            self._failing = True
        else:
            self._failing = False


class WorkerMetrics:
    """The figures of all workers as one, for the admin port. Each writes its own now and then, and at its end; with
    nobody else they are its own."""

    def __init__(self, telemetry: Telemetry, folder: Path | None) -> None:
        self._own = telemetry
        self._folder = folder
        self._mismatch = VersionMismatch()
        self.telemetry = telemetry if folder is None else Telemetry()

    def sampling_all(self, sample: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """The same, and then what the others say."""

        async def sampled() -> None:
            await sample()
            await self.merge_workers()

        return sampled

    async def merge_workers(self) -> None:
        """Makes `telemetry` what all of them say."""
        if self._folder is not None:
            alive, ended = await asyncio.to_thread(_read, self._folder)
            self._mismatch.report(merge(self.telemetry, self._own, alive, ended))

    def begin(self, stack: AsyncExitStack, sample: Callable[[], Awaitable[None]]) -> None:
        if self._folder is None:
            return
        figures = OwnMetrics(self._folder)
        stack.callback(lambda: figures.write(pack_metrics(self._own)))
        run_in(stack, self._report(figures, sample))

    async def _report(self, figures: OwnMetrics, sample: Callable[[], Awaitable[None]]) -> None:
        while True:
            await sample()
            await asyncio.to_thread(figures.write, pack_metrics(self._own))
            await asyncio.sleep(FIGURES_EVERY_S)


def _read(folder: Path) -> tuple[list[bytes], list[bytes]]:
    """Of the other processes: those that live, and those that have ended."""
    alive: list[bytes] = []
    ended: list[bytes] = []
    with _locked(folder, fcntl.LOCK_SH):
        for path in folder.iterdir():
            if path.suffix or path.name == str(os.getpid()):
                continue
            is_alive = Path("/proc", path.name).exists()
            (alive if is_alive else ended).append(path.read_bytes())
    return alive, ended


def compact(folder: Path) -> None:
    """What processes that have ended have left becomes one file, where there are some of them. By the supervisor."""
    with _locked(folder, fcntl.LOCK_EX):
        ended = [path for path in folder.iterdir() if not path.suffix and not Path("/proc", path.name).exists()]
        if len(ended) < COMPACT_AT:
            return
        into = Telemetry()
        merge(into, Telemetry(), (), [path.read_bytes() for path in ended])
        for path in ended:
            path.unlink()
        (folder / "ended").write_bytes(pack_metrics(into))


@contextmanager
def _locked(folder: Path, mode: int) -> Iterator[None]:
    with (folder / "lock.lock").open("w") as lock:
        fcntl.flock(lock, mode)
        yield


def figures_folder(data_dir: Path) -> Path:
    """`data_dir` as the configuration has it."""
    return data_dir / FOLDER / "figures"


def worker_metrics_of(
    config: Config, worker_environment: WorkerEnvironment | None, telemetry: Telemetry
) -> WorkerMetrics:
    """`config`: as `WorkerEnvironment.applied` has made it."""
    return WorkerMetrics(telemetry, None if worker_environment is None else config.data_dir.parent / "figures")


PUBLISH_EVERY_S = 2.0

RETENTION_S = 15  # after which a gateway that says nothing is gone


class MetricsStore(Protocol):
    """Where gateways on one store leave their figures. Both raise `StoreUnavailable`."""

    async def publish(self, figures: bytes, keep_s: int) -> None:
        """This gateway's. Those of gateways that have said nothing for `keep_s` seconds go."""

    async def others(self) -> list[bytes]:
        """What the other gateways have said."""


class FleetMetrics:
    """`telemetry` is what all of them say together, at most `PUBLISH_EVERY_S` old for the others, after `refresh`.
    While the store is away, and where nobody else is on it, it is this gateway's own: `gateways` says of how many it
    is."""

    def __init__(self, store: MetricsStore | None, workers: WorkerMetrics, gauges: Gauges, started: float) -> None:
        """`workers`: the workers of this gateway; `gauges`: of this process. `started`: seconds since 1970."""
        self._store = store
        self._workers = workers
        self._gauges = gauges
        self._own_start = started
        self._mismatch = VersionMismatch()
        self.own = workers.telemetry  # of this gateway with its workers, once `sample` has run
        self.sample = workers.sampling_all(gauges.sample)
        self.telemetry = self.own if store is None else Telemetry()
        self.started, self.gateways = started, 1

    async def refresh(self) -> None:
        await self.sample()
        if self._store is None:
            return
        try:
            others = [data for data in map(_unpack, await self._store.others()) if data is not None]
        except StoreUnavailable:
            others = []
        self._mismatch.report(merge(self.telemetry, self.own, [figures for _, figures in others], ()))
        self.started = min([self._own_start, *(started for started, _ in others)])
        self.gateways = 1 + len(others)

    def begin(self, stack: AsyncExitStack, worker_environment: WorkerEnvironment | None) -> None:
        """Begins to tell the other workers, and the other gateways: there the first worker speaks for all."""
        self._workers.begin(stack, self._gauges.sample)
        if self._store is not None and (worker_environment is None or worker_environment.admin is not None):
            run_in(stack, self._publish(self._store))

    async def _publish(self, store: MetricsStore) -> None:
        while True:
            self._gauges.sample_pools()  # what the store has is the same for all: who is asked looks by itself
            await self._workers.merge_workers()
            with suppress(StoreUnavailable):  # the next time all of it is said again
                await store.publish(msgpack.packb((self._own_start, pack_metrics(self.own))), RETENTION_S)
            await asyncio.sleep(PUBLISH_EVERY_S)


def _unpack(data: bytes) -> tuple[float, bytes] | None:
    """None for what another version has said."""
    try:
        started, figures = msgpack.unpackb(data)
    except (ValueError, TypeError, msgpack.UnpackException):
        return None
    return (started, figures) if isinstance(started, float) and isinstance(figures, bytes) else None


def figures_of(
    config: Config,
    worker_environment: WorkerEnvironment | None,
    stores: Stores,
    telemetry: Telemetry,
    gauges: Gauges,
    started: float,
) -> FleetMetrics:
    """`config`: as `WorkerEnvironment.applied` has made it."""
    return FleetMetrics(stores.figures, worker_metrics_of(config, worker_environment, telemetry), gauges, started)
