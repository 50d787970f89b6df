"""An API key that a command prints, such as `gcloud auth print-access-token`."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from gateway.ports import Clock
from gateway.upstream.building import BackendCore
from gateway.upstream.http1.errors import NoCredentials
from gateway.upstream.key_text import masked, token_of
from gateway.upstream.shared_token import SharedToken, Token, TokenIdentity

TIMEOUT_S = 10.0  # of a run: cloud tools take one to three seconds
MAX_OUTPUT = 64 * 1024  # bytes
REAPED_S = 2.0  # for the end of a process that was killed
GRACE_S = 0.5  # after the end of the command, for the end of its output: a child of it may hold that open

OUTPUT, ERRORS = 1, 2  # descriptors of a process


def command_identity(core: BackendCore, where: str, setting: Sequence[str], key_header: str | None) -> TokenIdentity:
    """`command_identity` implements `IdentityBuilder` for `api_key_command`."""
    return TokenIdentity(SharedToken(Command(setting, core.clock), core.clock, where), key_header)


@dataclass(slots=True, eq=False)
class Command:
    """`Command` implements `TokenSource` with the standard output of a command. It gets no input, and no shell."""

    arguments: Sequence[str]
    clock: Clock
    timeout_s: float = TIMEOUT_S

    async def read(self) -> Token[str]:
        try:
            output = await self._run()
            return token_of(output, self.clock.wall())
        except NoCredentials as fault:
            raise NoCredentials(f"api_key_command: {fault}", fault.detail) from None

    async def close(self) -> None:
        """There is nothing to end: a run ends with its task."""

    async def _run(self) -> bytes:
        loop = asyncio.get_running_loop()
        try:
            transport, run = await loop.subprocess_exec(
                _Run, *self.arguments, stdin=asyncio.subprocess.DEVNULL, start_new_session=True
            )
        except OSError as error:
            raise NoCredentials(f"{self.arguments[0]} cannot be started: {error.strerror}") from None
        try:
            async with asyncio.timeout(self.timeout_s):
                await run.over
        except TimeoutError:
            raise NoCredentials(f"it did not end within {self.timeout_s:g} s", run.errors()) from None
        finally:
            _end(transport)
            await asyncio.wait((run.exited,), timeout=REAPED_S)
        if len(run.output) > MAX_OUTPUT:
            raise NoCredentials(f"it prints more than {MAX_OUTPUT} bytes", run.errors())
        status = transport.get_returncode()
        if status:
            how = f"status {status}" if status > 0 else f"signal {-status}"
            raise NoCredentials(f"it ended with {how}", run.errors())
        return bytes(run.output)


class _Run(asyncio.SubprocessProtocol):
    """One run of a command. It is `over` when the command and its output have ended, or when the output is too long."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.over: asyncio.Future[None] = self._loop.create_future()
        self.exited: asyncio.Future[None] = self._loop.create_future()
        self.output = bytearray()
        self._errors = bytearray()
        self._open_pipes = {OUTPUT, ERRORS}

    def errors(self) -> str:
        """Return the last words of the error output, without what looks like a secret. A shell that traces its commands
        repeats the output there, so that is masked, too."""
        return masked(self._errors.decode("utf-8", "replace"), self.output.decode("utf-8", "replace").strip())

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        if fd == ERRORS:
            self._errors = (self._errors + data)[-MAX_OUTPUT:]
        elif len(self.output) <= MAX_OUTPUT:
            self.output += data
            if len(self.output) > MAX_OUTPUT:
                self._finish()

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        self._open_pipes.discard(fd)
        if self.exited.done() and not self._open_pipes:
            self._finish()

    def process_exited(self) -> None:
        self.exited.set_result(None)
        if self._open_pipes:
            self._loop.call_later(GRACE_S, self._finish)
        else:
            self._finish()

    def _finish(self) -> None:
        if not self.over.done():
            self.over.set_result(None)


def _end(transport: asyncio.SubprocessTransport) -> None:
    """Kill a command that has not ended, with its children, and close its pipes."""
    if transport.get_returncode() is None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(transport.get_pid(), signal.SIGKILL)
    transport.close()
