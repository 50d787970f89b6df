"""The supervisor of `nearhit serve` with `server.workers` above 1.

The supervisor serves no requests. It owns everything that must outlive a worker: the lock of the data directory, the
embedded store and the listening sockets. Each worker has one socket of one SO_REUSEPORT group. While a worker is
away, new connections wait in its socket for the next one. In a hand-over the new worker listens before the old one
is told to end.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import shutil
import signal
import socket
import sys
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from gateway.adapters.redis.embedded_valkey import ValkeySupervisor
from gateway.adapters.system.child_process import death_signal_prefix
from gateway.config import Config
from gateway.config.units import Address
from gateway.errors import StartupError
from gateway.fleet_metrics import OwnMetrics, compact, figures_folder
from gateway.http_server.listening import DataDirLock, listening
from gateway.observability.aggregation import pack_metrics
from gateway.observability.telemetry import Telemetry
from gateway.tasks import Backoff, spawn
from gateway.worker import VARIABLE, WorkerEnvironment

LOG = logging.getLogger("nearhit.workers")
BACKLOG = 1024
FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 30.0  # before an ended worker restarts; doubled each time
STEADY_S = 60.0  # a worker that ran this long did not fail at its start
START_TIMEOUT_S = 120.0  # until a worker listens: it may load a model from a slow disk
WARM_TIMEOUT_S = 60.0  # in a hand-over: the old worker ends after it, even if the new index is incomplete
GRACE_S = 15.0  # after the drain, before a worker is killed


@dataclass(slots=True, eq=False)
class Worker:
    """A worker process; `status_pipe` is the pipe on which it reports its status."""

    number: int
    process: asyncio.subprocess.Process
    status_pipe: asyncio.StreamReader
    started_at: float = field(default_factory=time.monotonic)

    async def wait_for_status(self, status: str, within_s: float) -> bool:
        """Whether the worker reports `status` in time, before it ends."""
        try:
            async with asyncio.timeout(within_s):
                while line := await self.status_pipe.readline():
                    if line.decode().strip() == status:
                        return True
        except TimeoutError:
            pass
        return False

    async def fault(self) -> str | None:
        """Return the reason why it cannot replace another worker, or None if it can."""
        if not await self.wait_for_status("ready", START_TIMEOUT_S):
            return "a new worker did not start to listen"
        if not await self.wait_for_status("warm", WARM_TIMEOUT_S) and self.status_pipe.at_eof():
            return "a new worker ended before its index was complete"
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


@dataclass(frozen=True, slots=True)
class SupervisorPaths:
    """Everything that the supervisor passes to its workers."""

    command: tuple[str, ...]
    environ: Mapping[str, str]
    config: Config
    store: str
    data: tuple[socket.socket, ...]  # one per worker
    admin: socket.socket

    def worker_environment(self, number: int, status_fd: int) -> WorkerEnvironment:
        admin = self.admin.fileno() if number == 0 else None
        return WorkerEnvironment(number, len(self.data), self.data[number].fileno(), admin, status_fd, self.store)

    @property
    def grace_s(self) -> float:
        return self.config.server.drain_timeout + GRACE_S


@dataclass(slots=True)
class Supervisor:
    """`Supervisor` starts the workers, restarts those that end, and replaces them at a hand-over."""

    paths: SupervisorPaths
    stopping: bool = False
    generation: int = 1
    _workers: dict[int, Worker] = field(default_factory=dict)
    _draining: set[asyncio.Task[None]] = field(default_factory=set)
    _restart_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    _supervise_tasks: list[asyncio.Task[None]] = field(default_factory=list)

    @property
    def data_address(self) -> tuple[str, int]:
        address: tuple[str, int] = self.paths.data[0].getsockname()[:2]
        return address

    @property
    def admin_address(self) -> tuple[str, int]:
        address: tuple[str, int] = self.paths.admin.getsockname()[:2]
        return address

    async def start(self) -> None:
        """Start all workers in parallel. Raises `StartupError` if one does not start to listen."""
        workers = [await self._spawn(number) for number in range(len(self.paths.data))]
        self._workers = {worker.number: worker for worker in workers}
        ready = await asyncio.gather(*(worker.wait_for_status("ready", START_TIMEOUT_S) for worker in workers))
        if not all(ready):
            await self.stop()
            raise StartupError("a worker did not start to listen; its messages are above")
        self._supervise_tasks = [asyncio.create_task(self._supervise(number)) for number in self._workers]
        self._write_status()

    async def restart_workers(self) -> None:
        """Replace the workers one after the other. If a new one does not start to listen, the other old ones stay."""
        async with self._restart_lock:
            LOG.info("handing over to new workers")
            left = sorted(self._workers)
            while left and await self._replace(left[0]):
                left.pop(0)
            self.generation, failed = self.generation + 1, len(left)
            self._write_status(failed)
            LOG.info("handed over", extra={"fields": {"generation": self.generation, "failed": failed}})

    async def _replace(self, number: int) -> bool:
        try:
            worker = await self._spawn(number)
        except OSError as error:
            fields = {"worker": number, "error": str(error)}
            LOG.error("a new worker cannot be started, the old one stays", extra={"fields": fields})
            return False
        ends = worker  # unless it replaces the old one
        try:
            fault = await worker.fault()
            if fault is None:
                ends, self._workers[number] = self._workers[number], worker
            else:
                LOG.error(f"{fault}, the old one stays", extra={"fields": {"worker": number}})
            return fault is None
        finally:  # also when the supervisor stops: the worker may have requests by now
            spawn(self._draining, ends.end(self.paths.grace_s))

    async def _supervise(self, number: int) -> None:
        """Restart the worker whenever it ends by itself."""
        pauses = Backoff(FIRST_DELAY_S, LONGEST_DELAY_S, STEADY_S)
        while not self.stopping:
            worker = self._workers[number]
            code = await worker.process.wait()
            await self._fold_metrics()
            if self.stopping or self._workers[number] is not worker:  # it was told to end, or was replaced
                continue
            delay_s = pauses.next_delay(time.monotonic() - worker.started_at)
            fields = {"worker": number, "pid": worker.process.pid, "code": code, "again_in_s": delay_s}
            LOG.error("a worker ended unexpectedly", extra={"fields": fields})
            while True:
                await asyncio.sleep(delay_s)
                if self.stopping or self._workers[number] is not worker or await self._respawn(number, worker):
                    break
                delay_s = pauses.next_delay(0.0)

    async def _respawn(self, number: int, worker: Worker) -> bool:
        """Start a worker in its place; False on failure. A machine without resources now may have them later."""
        try:
            another = await self._spawn(number)
        except OSError as error:
            LOG.error("a worker cannot be started", extra={"fields": {"worker": number, "error": str(error)}})
            return False
        if self._workers[number] is worker:
            self._workers[number] = another
        else:  # a hand-over has replaced it meanwhile
            await another.end(GRACE_S)
        return True

    async def _fold_metrics(self) -> None:
        try:
            await asyncio.to_thread(compact, figures_folder(self.paths.config.data_dir))
        except OSError as error:
            LOG.warning("metrics of earlier workers could not be merged", extra={"fields": {"error": str(error)}})

    async def stop(self) -> None:
        """Drain and end all workers in parallel."""
        self.stopping = True
        for keeper in self._supervise_tasks:
            keeper.cancel()
        ends = [worker.end(self.paths.grace_s) for worker in self._workers.values()]
        await asyncio.gather(*ends, *self._draining, *self._supervise_tasks, return_exceptions=True)

    async def _spawn(self, number: int) -> Worker:
        paths = self.paths
        reading, writing = os.pipe()
        worker_environment = paths.worker_environment(number, writing)
        try:
            process = await asyncio.create_subprocess_exec(
                *death_signal_prefix(signal.SIGTERM),
                *paths.command,
                stdin=asyncio.subprocess.DEVNULL,
                env={**paths.environ, VARIABLE: worker_environment.to_json()},
                start_new_session=True,
                pass_fds=[fd for fd in (worker_environment.data, worker_environment.admin, writing) if fd is not None],
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        status_pipe = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(status_pipe), os.fdopen(reading, "rb", buffering=0)
        )
        return Worker(number, process, status_pipe)

    def _write_status(self, failed: int = 0) -> None:
        """Write the status file, which `nearhit restart` reads."""
        note = {"pid": os.getpid(), "generation": self.generation, "failed": failed}
        path = status_file(self.paths.config.data_dir)
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(note))
        beside.replace(path)


@asynccontextmanager
async def run_supervisor(config: Config, arguments: list[str], environ: Mapping[str, str]) -> AsyncIterator[Supervisor]:
    """Run workers until the end of the block. Each gets `arguments` as its command line.

    Raises `StartupError` or `ChildFailed`.
    """
    async with AsyncExitStack() as stack:
        try:
            lock = DataDirLock(config.data_dir)
        except StartupError as error:
            raise StartupError(
                f"{error}; `nearhit restart` replaces the workers of a gateway that has workers"
            ) from None
        stack.callback(lock.release)
        stack.callback(lambda: status_file(config.data_dir).unlink(missing_ok=True))
        figures = figures_folder(config.data_dir)
        shutil.rmtree(figures, ignore_errors=True)
        figures.mkdir(parents=True)
        at = config.server
        data = await listening(_bind(stack, at.listen, at.workers), "server.listen", at.listen)
        (admin,) = await listening(_bind(stack, at.admin, 1), "server.admin", at.admin)
        store = config.store.url
        if store == "embedded":
            server = await ValkeySupervisor.start(
                config.data_dir, max_memory=config.store.max_memory, fsync=config.jobs.fsync
            )
            stack.push_async_callback(server.stop)
            server.on_restart = partial(_on_store_restart, Telemetry(), OwnMetrics(figures))
            store = server.url
        command = (sys.executable, "-m", "gateway", *arguments)
        supervisor = Supervisor(SupervisorPaths(command, environ, config, store, data, admin))
        stack.push_async_callback(supervisor.stop)
        await supervisor.start()
        yield supervisor


def _on_store_restart(own: Telemetry, figures: OwnMetrics) -> None:
    """Count a restart of the store in the metrics folder, which the worker with the admin port reads.

    `own` are the metrics of this process.
    """
    own.store_restarts.add()
    figures.write(pack_metrics(own))


async def _bind(stack: AsyncExitStack, address: Address, count: int) -> tuple[socket.socket, ...]:
    """Open `count` sockets that listen on one address. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    addresses = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    # A socket has one family: a name with both, such as localhost, gets IPv4.
    family, _, _, _, (host, port, *_) = min(addresses, key=lambda each: each[0] != socket.AF_INET)
    if count > 1:  # fails if the port is in use: SO_REUSEPORT would join a foreign group silently
        socket.create_server((host, port), family=family).close()
    bound: list[socket.socket] = []
    for _ in range(count):
        made = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=count > 1)
        stack.callback(made.close)
        bound.append(made)
        port = made.getsockname()[1]  # the port that the system chose for the first socket
    return tuple(bound)


def status_file(data_dir: Path) -> Path:
    """Return the path of the supervisor's status file.

    The file is JSON: the pid, the number of hand-overs, and the number of workers that the last one did not replace.
    """
    return data_dir / "supervisor.json"
