"""Makes Python environments for packages that the gateway itself must not contain, and runs commands in them."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from gateway.errors import StartupError

ENVIRONMENT_TIMEOUT_S = 120.0  # measured: 3 s
PIP = ("-m", "pip", "--disable-pip-version-check", "--no-input")


class FetchFailed(StartupError):
    """A step failed. The message is one sentence: the step and the cause. No partial result is left."""


def python_of(environment: Path) -> Path:
    return environment / "bin" / "python"


def interpreter_with_pip(path: Path) -> Path:
    """Return this interpreter if it has pip, or else that of a new environment at `path`. Raises `FetchFailed`."""
    return Path(sys.executable) if find_spec("pip") else make_environment(path)


def make_environment(path: Path) -> Path:
    """Make a new virtual environment with pip at `path`, replace any former one, and return its interpreter.

    Debian ships ensurepip in a separate package (python3-venv), and `venv` fails without it. In that case virtualenv
    makes the environment, because it includes pip. Raises `FetchFailed`.
    """
    try:
        _create_environment(path, [sys.executable, "-m", "venv", path])
    except FetchFailed as first:
        with tempfile.TemporaryDirectory(prefix="nearhit-virtualenv-") as scratch:
            step = "virtualenv could not be installed either"
            try:
                run_step(step, [sys.executable, *PIP, "install", "-q", "--target", scratch, "virtualenv"])
                _create_environment(
                    path, [sys.executable, "-m", "virtualenv", "-q", "--no-periodic-update", path], scratch
                )
            except FetchFailed as second:
                raise FetchFailed(f"{first}; {second}") from None
    return python_of(path)


def _create_environment(path: Path, command: Sequence[str | Path], pythonpath: str | None = None) -> None:
    shutil.rmtree(path, ignore_errors=True)
    environ = {} if pythonpath is None else {"PYTHONPATH": pythonpath}
    try:
        run_step(f"a Python environment could not be made at {path}", command, ENVIRONMENT_TIMEOUT_S, environ)
    except BaseException:
        shutil.rmtree(path, ignore_errors=True)
        raise


def run_step(
    failure: str,
    command: Sequence[str | Path],
    timeout_s: float = ENVIRONMENT_TIMEOUT_S,
    environ: Mapping[str, str] | None = None,
) -> None:
    """Run a command for at most `timeout_s` seconds, with `environ` added to the environment of this process.

    Raises `FetchFailed` with the text of `failure` and the command's last error line. The command and its children
    are killed if it takes too long or this process is interrupted.
    """
    # A file, not a pipe: a full pipe would block the command.
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            process = subprocess.Popen(  # noqa: S603 - the command is built here
                [str(word) for word in command],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PYTHONNOUSERSITE": "1", "PYTHONPATH": "", **(environ or {})},
                start_new_session=True,  # so that one signal reaches the command's children too
            )
        except OSError as error:
            raise FetchFailed(f"{failure}: {error}") from None
        try:
            status = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise FetchFailed(f"{failure}: not done after {timeout_s:.0f} s") from None
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if status:
            output.seek(0)
            raise FetchFailed(f"{failure}: {_last_error(output.read()) or f'exit status {status}'}")


def _last_error(output: str) -> str:
    """Return the line with the cause: pip's last ERROR line, else the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return (errors or lines or [""])[-1][:300]
