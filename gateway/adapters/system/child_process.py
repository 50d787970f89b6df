"""A server as a child process: started, watched until it is ready, stopped, always reaped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

POLL_S = 0.01  # between two probes; the fastest child (the store) is ready in 40 ms
TAIL_LINES = 12  # lines of the log in an error: the last lines name the cause of a failed start
TAIL_BYTES = 4096


class ChildFailed(Exception):
    """A child could not be started, ended before it was ready, or was not ready in time."""


@dataclass(slots=True, eq=False)
class ChildProcess:
    """A running child. Create it with `ChildProcess.start`. Call `stop` at the end, also if `wait_ready` raised."""

    name: str
    process: asyncio.subprocess.Process
    log: Path

    @classmethod
    async def start(
        cls,
        name: str,
        argv: Sequence[str | Path | int],
        *,
        log: Path,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        on_parent_death: signal.Signals = signal.SIGTERM,
        pass_fds: Sequence[int] = (),
    ) -> ChildProcess:
        """Start `argv` with its output in a new file `log`. `env` is its whole environment (default: that of the
        gateway).

        The child leads its own session, so that Ctrl-C in a terminal reaches only the gateway, which stops its children
        in order. Raise `ChildFailed` if the program cannot be executed.
        """
        command = [*death_signal_prefix(on_parent_death), *map(str, argv)]
        # Checked first: because of the prefix, a missing program would look like an exit, not an error.
        if shutil.which(str(argv[0]), path=None if env is None else env.get("PATH")) is None:
            raise ChildFailed(f"{name}: there is no program {argv[0]}")
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as output:
            try:
                process = await asyncio.create_subprocess_exec(
                    *command,
                    stdin=asyncio.subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=None if env is None else dict(env),
                    cwd=cwd,
                    start_new_session=True,
                    pass_fds=pass_fds,
                )
            except OSError as error:
                raise ChildFailed(f"{name}: cannot be started: {error}") from error
        return cls(name, process, log)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def returncode(self) -> int | None:
        """The exit code; None while it runs; negative: the signal that ended it."""
        return self.process.returncode

    async def wait(self) -> int:
        """Wait until the child has ended and is reaped. Return its exit code."""
        return await self.process.wait()

    async def wait_ready(self, probe: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        """Wait until `probe` returns True; an `OSError` of the probe means not yet.

        Raise `ChildFailed`, with the end of the log, as soon as the child has ended or `timeout_s` has passed. The
        caller must then stop the child.
        """
        ended = asyncio.ensure_future(self.wait())
        ready = asyncio.ensure_future(_poll_until(probe))
        try:
            done, _ = await asyncio.wait({ended, ready}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if ended in done:
                raise ChildFailed(f"{self.name} ended with {exit_text(ended.result())} at its start{self.log_tail()}")
            if ready not in done:
                raise ChildFailed(f"{self.name} was not ready within {timeout_s:g} s{self.log_tail()}")
            ready.result()  # raises any other error of the probe
        finally:
            ended.cancel()
            ready.cancel()
            await asyncio.gather(ended, ready, return_exceptions=True)

    async def stop(self, grace_s: float = 5.0) -> int:
        """Send SIGTERM, and after `grace_s` SIGKILL to its whole session. Reap it and return its exit code."""
        if self.returncode is None:
            self._signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(grace_s):
                    return await self.wait()
            except TimeoutError:
                self._kill()
            except asyncio.CancelledError:
                self._kill()
                raise
        return await self.wait()

    def log_tail(self) -> str:
        """Return the last lines of its log as the end of a message; empty if the log is empty."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
                text = file.read().decode(errors="replace").strip()
        except OSError:
            return ""
        lines = "\n  ".join(text.splitlines()[-TAIL_LINES:])
        return f"; the end of {self.log}:\n  {lines}" if lines else ""

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended
            self.process.send_signal(number)

    def _kill(self) -> None:
        """Kill its whole session. This is safe while its leader is not reaped, because the id cannot be reused."""
        if self.returncode is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._signal(signal.SIGKILL)


def death_signal_prefix(number: signal.Signals) -> list[str]:
    """Return a prefix that makes the kernel signal the child when the gateway dies, even by SIGKILL, which no handler
    can catch.

    `setpriv` is part of util-linux, which every Debian has. An alternative is `preexec_fn`, which is unsafe with
    threads. Without `setpriv` a child outlives a killed gateway, and the next start finds its port in use.
    """
    setpriv = shutil.which("setpriv")
    return [] if setpriv is None else [setpriv, "--pdeathsig", number.name.removeprefix("SIG"), "--"]


async def _poll_until(probe: Callable[[], Awaitable[bool]]) -> None:
    while True:
        try:
            if await probe():
                return
        except OSError:
            pass
        await asyncio.sleep(POLL_S)


def exit_text(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
