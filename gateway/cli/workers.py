"""`nearhit serve` with `server.workers` above 1: a process that serves nothing itself; and `nearhit restart`.

It owns what must outlive a worker: the data directory's lock, the embedded store, and the listening sockets, one for
each worker in one SO_REUSEPORT group. What connects while a worker is away waits in its socket for the next one; what
connects during a hand-over finds the new worker, which listens before the old one is told to end.
"""

from __future__ import annotations

import argparse
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
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from gateway.adapters.redis.embedded_valkey import ValkeySupervisor
from gateway.adapters.system.child_process import death_signal_prefix
from gateway.cli.output import FAULT, GOOD, tell
from gateway.cli.parser import Command
from gateway.config import Config
from gateway.config.load import load_config
from gateway.config.units import Address
from gateway.errors import StartupError
from gateway.fleet_metrics import OwnMetrics, figures_folder, fold
from gateway.listening import DataDirLock, listening
from gateway.observability.aggregation import packed
from gateway.observability.telemetry import Telemetry
from gateway.tasks import Backoff, held
from gateway.worker import VARIABLE, WorkerEnvironment

LOG = logging.getLogger("nearhit.workers")
BACKLOG = 1024
FIRST_DELAY_S, LONGEST_DELAY_S = 0.1, 30.0  # before a worker that has ended is started again, doubled each time
STEADY_S = 60.0  # a worker that has lived for so long has not failed at its start
START_S = 120.0  # for a worker to listen: a model that is loaded from a slow disk
WARM_S = 60.0  # in a hand-over, for its index to be complete, before the old one ends all the same
TIMEOUT_S, POLL_S = 600.0, 0.1  # of a hand-over that `nearhit restart` waits for
GRACE_S = 15.0  # beyond the drain, before a worker is killed


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


@dataclass(frozen=True, slots=True)
class SupervisorPaths:
    """What workers stand on."""

    command: tuple[str, ...]
    environ: Mapping[str, str]
    config: Config
    store: str
    data: tuple[socket.socket, ...]  # one a worker
    admin: socket.socket

    def hired(self, number: int, told: int) -> WorkerEnvironment:
        admin = self.admin.fileno() if number == 0 else None
        return WorkerEnvironment(number, len(self.data), self.data[number].fileno(), admin, told, self.store)

    @property
    def grace_s(self) -> float:
        return self.config.server.drain_timeout + GRACE_S


class Supervisor:
    def __init__(self, ground: SupervisorPaths) -> None:
        self._ground = ground
        self._workers: dict[int, Worker] = {}
        self._leaving: set[asyncio.Task[None]] = set()
        self._handing_over = asyncio.Lock()
        self._keepers: list[asyncio.Task[None]] = []
        self.stopping = False
        self.generation = 1

    @property
    def data_address(self) -> tuple[str, int]:
        address: tuple[str, int] = self._ground.data[0].getsockname()[:2]
        return address

    @property
    def admin_address(self) -> tuple[str, int]:
        address: tuple[str, int] = self._ground.admin.getsockname()[:2]
        return address

    async def start(self) -> None:
        """All of them, at once. Raises `StartupError` where one does not come to listen."""
        workers = [await self._spawn(number) for number in range(len(self._ground.data))]
        self._workers = {worker.number: worker for worker in workers}
        ready = await asyncio.gather(*(worker.says("ready", START_S) for worker in workers))
        if not all(ready):
            await self.stop()
            raise StartupError("a worker has not come to listen; what it said of it is above")
        self._keepers = [asyncio.create_task(self._keep(number)) for number in self._workers]
        self._note()

    async def hand_over(self) -> None:
        """To new processes, one after the other. Where one does not come to listen, the old ones that are left stay."""
        async with self._handing_over:
            LOG.info("handing over to new workers")
            left = sorted(self._workers)
            while left and await self._replace(left[0]):
                left.pop(0)
            self.generation, failed = self.generation + 1, len(left)
            self._note(failed)
            LOG.info("handed over", extra={"fields": {"generation": self.generation, "failed": failed}})

    async def _replace(self, number: int) -> bool:
        try:
            worker = await self._spawn(number)
        except OSError as error:
            fields = {"worker": number, "error": str(error)}
            LOG.error("a new worker cannot be started, the old one stays", extra={"fields": fields})
            return False
        ends = worker  # unless it takes the place of the old one
        try:
            fault = await worker.fault()
            if fault is None:
                ends, self._workers[number] = self._workers[number], worker
            else:
                LOG.error(f"{fault}, the old one stays", extra={"fields": {"worker": number}})
            return fault is None
        finally:  # also where the supervisor is to stop: it may have requests by now
            held(self._leaving, ends.end(self._ground.grace_s))

    async def _keep(self, number: int) -> None:
        """Starts it again whenever it ends by itself."""
        pauses = Backoff(FIRST_DELAY_S, LONGEST_DELAY_S, STEADY_S)
        while not self.stopping:
            worker = self._workers[number]
            code = await worker.process.wait()
            await self._fold()
            if self.stopping or self._workers[number] is not worker:  # told to, or another one has its place
                continue
            delay_s = pauses.after(time.monotonic() - worker.begun)
            fields = {"worker": number, "pid": worker.process.pid, "code": code, "again_in_s": delay_s}
            LOG.error("a worker has ended by itself", extra={"fields": fields})
            while True:
                await asyncio.sleep(delay_s)
                if self.stopping or self._workers[number] is not worker or await self._again(number, worker):
                    break
                delay_s = pauses.after(0.0)

    async def _again(self, number: int, worker: Worker) -> bool:
        """Whether another one could be started in its place. What a machine has too little of now it may have later."""
        try:
            another = await self._spawn(number)
        except OSError as error:
            LOG.error("a worker cannot be started", extra={"fields": {"worker": number, "error": str(error)}})
            return False
        if self._workers[number] is worker:
            self._workers[number] = another
        else:  # a hand-over was faster
            await another.end(GRACE_S)
        return True

    async def _fold(self) -> None:
        try:
            await asyncio.to_thread(fold, figures_folder(self._ground.config.data_dir))
        except OSError as error:
            LOG.warning("figures of former workers are left", extra={"fields": {"error": str(error)}})

    async def stop(self) -> None:
        """Lets them drain, all at once."""
        self.stopping = True
        for keeper in self._keepers:
            keeper.cancel()
        ends = [worker.end(self._ground.grace_s) for worker in self._workers.values()]
        await asyncio.gather(*ends, *self._leaving, *self._keepers, return_exceptions=True)

    async def _spawn(self, number: int) -> Worker:
        ground = self._ground
        reading, writing = os.pipe()
        hired = ground.hired(number, writing)
        try:
            process = await asyncio.create_subprocess_exec(
                *death_signal_prefix(signal.SIGTERM),
                *ground.command,
                stdin=asyncio.subprocess.DEVNULL,
                env={**ground.environ, VARIABLE: hired.in_words()},
                start_new_session=True,
                pass_fds=[fd for fd in (hired.data, hired.admin, writing) if fd is not None],
            )
        except BaseException:
            os.close(reading)
            raise
        finally:
            os.close(writing)
        told = asyncio.StreamReader()
        await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(told), os.fdopen(reading, "rb", buffering=0)
        )
        return Worker(number, process, told)

    def _note(self, failed: int = 0) -> None:
        """For `nearhit restart` to find."""
        note = {"pid": os.getpid(), "generation": self.generation, "failed": failed}
        path = note_of(self._ground.config.data_dir)
        beside = path.with_suffix(".new")
        beside.write_text(json.dumps(note))
        beside.replace(path)


@asynccontextmanager
async def supervising(config: Config, arguments: list[str], environ: Mapping[str, str]) -> AsyncIterator[Supervisor]:
    """Workers that listen, until the end of the block. `arguments`: of the command line, for them to have the same.
    Raises `StartupError` or `ChildFailed`."""
    async with AsyncExitStack() as stack:
        try:
            lock = DataDirLock(config.data_dir)
        except StartupError as error:
            raise StartupError(f"{error}; nearhit restart makes one with workers start them anew") from None
        stack.callback(lock.release)
        stack.callback(lambda: note_of(config.data_dir).unlink(missing_ok=True))
        figures = figures_folder(config.data_dir)
        shutil.rmtree(figures, ignore_errors=True)
        figures.mkdir(parents=True)
        at = config.server
        data = await listening(_bound(stack, at.listen, at.workers), "server.listen", at.listen)
        (admin,) = await listening(_bound(stack, at.admin, 1), "server.admin", at.admin)
        store = config.store.url
        if store == "embedded":
            server = await ValkeySupervisor.start(
                config.data_dir, max_memory=config.store.max_memory, fsync=config.jobs.fsync
            )
            stack.push_async_callback(server.stop)
            server.told = partial(_restarted, Telemetry(), OwnMetrics(figures))
            store = server.url
        command = (sys.executable, "-m", "gateway", *arguments)
        supervisor = Supervisor(SupervisorPaths(command, environ, config, store, data, admin))
        stack.push_async_callback(supervisor.stop)
        await supervisor.start()
        yield supervisor


def _restarted(own: Telemetry, figures: OwnMetrics) -> None:
    """Counts it where the worker with the admin port looks: `own` are the figures of this process."""
    own.store_restarts.add()
    figures.write(packed(own))


async def _bound(stack: AsyncExitStack, address: Address, count: int) -> tuple[socket.socket, ...]:
    """`count` sockets that listen at one address. Raises `OSError`."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)
    # Of a name with both, such as localhost, the older one: there is one family to a socket.
    family, _, _, _, (host, port, *_) = min(found, key=lambda each: each[0] != socket.AF_INET)
    if count > 1:  # a group that somebody else has begun would be joined without a word
        socket.create_server((host, port), family=family).close()
    bound: list[socket.socket] = []
    for _ in range(count):
        made = socket.create_server((host, port), family=family, backlog=BACKLOG, reuse_port=count > 1)
        stack.callback(made.close)
        bound.append(made)
        port = made.getsockname()[1]  # what the system has chosen for the first one
    return tuple(bound)


def note_of(data_dir: Path) -> Path:
    """Where a supervisor says that it runs. JSON: its pid, how often it has handed over, and how many workers could
    not be replaced the last time."""
    return data_dir / "supervisor.json"


def register(command: Command) -> None:
    """Adds `restart`."""
    command.define(
        run,
        "",
        "--config /etc/nearhit/config.yaml",
        about="Of a gateway with server.workers above 1, on the same machine: its supervisor is told, and this returns "
        "when every worker is a new process. server.listen, server.admin, server.workers and the embedded store stay "
        "as they are until the supervisor itself is started anew.",
        fault="a new worker did not come to listen, and the old ones stay",
    )


def run(arguments: argparse.Namespace) -> int:
    """Raises `StartupError` where there is nothing to restart."""
    done = restart(load_config(arguments.config, os.environ).data_dir)
    failed = int(done["failed"])
    text = f"a new worker did not come to listen, {failed} old ones stay: see the gateway's log"
    tell(arguments, done, text if failed else "handed over to new workers")
    return FAULT if failed else GOOD


def restart(data_dir: Path) -> Mapping[str, Any]:
    """Tells the supervisor, and waits until it has handed over."""
    before = _noted(data_dir)
    os.kill(before["pid"], signal.SIGHUP)
    begun = time.monotonic()
    while time.monotonic() - begun < TIMEOUT_S:
        now = _noted(data_dir)
        if now["generation"] > before["generation"]:
            return now
        time.sleep(POLL_S)
    raise StartupError(f"the gateway has not handed over within {TIMEOUT_S:g} s: see its log")


def _noted(data_dir: Path) -> dict[str, Any]:
    path = note_of(data_dir)
    try:
        note: dict[str, Any] = json.loads(path.read_text())
        os.kill(note["pid"], 0)
    except (OSError, ValueError, KeyError):
        raise StartupError(
            f"no gateway with workers runs on {data_dir}: expected one that was started with server.workers above 1"
        ) from None
    return note
