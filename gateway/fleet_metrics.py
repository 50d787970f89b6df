"""Metrics of several processes as one: of the workers on this machine, and of all gateways on a store."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from pathlib import Path

import msgpack

from gateway.admin.stats import Gauges
from gateway.cache.stores import Stores
from gateway.config import Config
from gateway.errors import StoreUnavailable
from gateway.files import WORKERS
from gateway.observability.aggregation import VersionMismatch, merge, pack_metrics
from gateway.observability.telemetry import Telemetry
from gateway.ports import MetricsStore
from gateway.tasks import run_in
from gateway.worker import WorkerEnvironment

# Workers share one admin port. Each writes its metrics to a file in one folder, and the worker with the admin port
# reads the files of the others.
LOG = logging.getLogger("nearhit.workers")

FIGURES_EVERY_S = 2.0

COMPACT_AT = 8  # files of ended processes, before they are merged into one


class OwnMetrics:
    """`OwnMetrics` writes the metrics of this process to `folder`, for the other workers."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._failing = False

    def write(self, figures: bytes) -> None:
        """Write `figures`, in the format of `pack_metrics`. If a write fails, for example on a full disk, the next one
        contains everything."""
        path = self._folder / str(os.getpid())
        temporary = path.with_suffix(".new")
        try:
            temporary.write_bytes(figures)
            temporary.replace(path)
        except OSError as error:
            if not self._failing:
                LOG.warning("the metrics of this process cannot be written", extra={"fields": {"error": str(error)}})
            self._failing = True
        else:
            self._failing = False


class WorkerMetrics:
    """`WorkerMetrics` merges the metrics of all workers, for the admin port.

    Each worker writes its metrics periodically and when it ends. A single process uses its own metrics directly.
    """

    def __init__(self, telemetry: Telemetry, folder: Path | None) -> None:
        self._own = telemetry
        self._folder = folder
        self._mismatch = VersionMismatch()
        self.telemetry = telemetry if folder is None else Telemetry()

    def sampling_all(self, sample: Callable[[], Awaitable[None]]) -> Callable[[], Awaitable[None]]:
        """Return a function that calls `sample` and then merges the metrics of the other workers."""

        async def sampled() -> None:
            await sample()
            await self.merge_workers()

        return sampled

    async def merge_workers(self) -> None:
        """Set `telemetry` to the merged metrics of all workers."""
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
    """Return the files of other processes: those alive, and those that have ended."""
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
    """Merge the files of ended processes into one, if there are at least `COMPACT_AT`. The supervisor calls it."""
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
    """Return the folder of the workers' metrics. `data_dir` is the configured one."""
    return data_dir / WORKERS / "figures"


def worker_metrics_of(
    config: Config, worker_environment: WorkerEnvironment | None, telemetry: Telemetry
) -> WorkerMetrics:
    """`config` is the result of `WorkerEnvironment.applied`."""
    return WorkerMetrics(telemetry, None if worker_environment is None else config.data_dir.parent / "figures")


PUBLISH_EVERY_S = 2.0

RETENTION_S = 15  # seconds after which a silent gateway no longer counts


class FleetMetrics:
    """`FleetMetrics` merges the metrics of all gateways on a store.

    After `refresh`, `telemetry` has the merged metrics; those of other gateways are at most `PUBLISH_EVERY_S` old. If
    the store is unavailable or has no other gateway, it has only this gateway's own. `gateways` is the number of
    gateways that it covers.
    """

    def __init__(self, store: MetricsStore | None, workers: WorkerMetrics, gauges: Gauges, started: float) -> None:
        """`workers` covers the workers of this gateway, `gauges` this process. `started` is in seconds since 1970."""
        self._store = store
        self._workers = workers
        self._gauges = gauges
        self._own_start = started
        self._mismatch = VersionMismatch()
        self.own = workers.telemetry  # this gateway with its workers, after `sample`
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
        """Start to report to the other workers and gateways. To other gateways only the first worker reports, for
        all."""
        self._workers.begin(stack, self._gauges.sample)
        if self._store is not None and (worker_environment is None or worker_environment.admin is not None):
            run_in(stack, self._publish(self._store))

    async def _publish(self, store: MetricsStore) -> None:
        while True:
            # gauges of the store are the same for all gateways, so the reader samples them itself
            self._gauges.sample_pools()
            await self._workers.merge_workers()
            with suppress(StoreUnavailable):  # the next publication contains everything again
                await store.publish(msgpack.packb((self._own_start, pack_metrics(self.own))), RETENTION_S)
            await asyncio.sleep(PUBLISH_EVERY_S)


def _unpack(data: bytes) -> tuple[float, bytes] | None:
    """Return None for data of another version."""
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
    """`config` is the result of `WorkerEnvironment.applied`."""
    figures = None if stores.shared is None else stores.shared.figures
    return FleetMetrics(figures, worker_metrics_of(config, worker_environment, telemetry), gauges, started)
