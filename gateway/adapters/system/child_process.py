"""A server run as a child process: started, watched until it is ready, stopped, always reaped."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

POLL_S = 0.01  # between two probes; the fastest child (the store) is ready in 40 ms
TAIL_LINES = 12  # of the log, in an error: a start-up failure names its cause in its last lines
TAIL_BYTES = 4096


class ChildFailed(Exception):
    """A child could not be started, ended before it was ready, or was not ready in time."""


class ChildProcess:
    """A running child. Build one with `ChildProcess.start`; `stop` it, also when `wait_ready` raised."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name = name
        self.log = log
        self._process = process

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
        """Starts `argv` with its output in `log` (made anew); `env` is its whole environment (default: ours).

        The child leads a session of its own, so that Ctrl-C in a terminal reaches only us and children stop
        in the order we choose. Raises `ChildFailed` when the program cannot be executed.
        """
        command = [*death_signal_prefix(on_parent_death), *map(str, argv)]
        # Found first: behind the prefix a missing program would show as an exit, not as an error.
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
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """None while it runs; negative: the signal that ended it."""
        return self._process.returncode

    async def wait(self) -> int:
        """Returns its exit code once it has ended and is reaped."""
        return await self._process.wait()

    async def wait_ready(self, probe: Callable[[], Awaitable[bool]], timeout_s: float) -> None:
        """Returns once `probe` says True (an `OSError` of the probe counts as not yet).

        Raises `ChildFailed`, with the end of the log, as soon as the child has ended or `timeout_s` are over.
        The child is not stopped then: that is the caller's to do.
        """
        ended = asyncio.ensure_future(self.wait())
        ready = asyncio.ensure_future(_poll_until(probe))
        try:
            done, _ = await asyncio.wait({ended, ready}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
            if ended in done:
                raise ChildFailed(f"{self.name} ended with {exit_text(ended.result())} at its start{self.tail()}")
            if ready not in done:
                raise ChildFailed(f"{self.name} was not ready within {timeout_s:g} s{self.tail()}")
            ready.result()  # whatever else the probe raised
        finally:
            ended.cancel()
            ready.cancel()
            await asyncio.gather(ended, ready, return_exceptions=True)

    async def stop(self, grace_s: float = 5.0) -> int:
        """SIGTERM, after `grace_s` SIGKILL for its whole session. Returns its exit code: it is reaped."""
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

    def tail(self) -> str:
        """The last lines of its log, ready to be put behind a message; empty where it has said nothing."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - TAIL_BYTES))
                text = file.read().decode(errors="replace").strip()
        except OSError:
            return ""
        lines = "\n  ".join(text.splitlines()[-TAIL_LINES:])
        return f"; the end of {self.log}:\n  {lines}" if lines else ""

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):  # it has just ended by itself
            self._process.send_signal(number)

    def _kill(self) -> None:
        """Kills its whole session. Safe while its leader is not reaped: nobody else can have the id."""
        if self.returncode is None:
            try:
                os.killpg(self.pid, signal.SIGKILL)
            except ProcessLookupError:
                self._signal(signal.SIGKILL)


def death_signal_prefix(number: signal.Signals) -> list[str]:
    """What makes the kernel signal a child when we die, even by SIGKILL, where no handler of ours can run.

    `setpriv` is in util-linux, on every Debian. Doing it here would need `preexec_fn`, which is unsafe
    beside threads. Without it a child outlives a killed gateway, and the next start finds its port taken.
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
