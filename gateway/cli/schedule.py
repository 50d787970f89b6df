"""Runs a command from time to time, in a process of its own, at low priority and one at a time."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from gateway.adapters.system.child_process import death_signal_prefix
from gateway.tasks import cancel_and_wait, start_task

LOG = logging.getLogger("nearhit.quality")
LIMIT_S = 3 * 3600.0  # beyond it the process is ended; `tune` with 50,000 pairs took less than an hour on two cores
NICE = ("nice", "-n", "10")


@dataclass(frozen=True, slots=True)
class ScheduledCommand:
    """A command with the fields of its report that the log gets: none with texts of clients. `ended` is its entry."""

    name: str
    ended: str
    shown: Sequence[str]


TUNE = ScheduledCommand("tune", "tuning ended", ("in_force", "why", "labels", "version", "error"))
LIGHT = ScheduledCommand("light", "training of light models ended", ("routes", "error"))


def _words(command: ScheduledCommand, config: Path) -> list[str]:
    return [*NICE, sys.executable, "-m", "gateway", command.name, "--config", str(config.absolute()), "--json"]


@asynccontextmanager
async def repeating(
    command: ScheduledCommand, every_s: float, path: Path, environ: Mapping[str, str]
) -> AsyncIterator[None]:
    """Run a command every `every_s` seconds, with the configuration in `path`, until the context ends."""
    task = start_task(_repeat(command, every_s, _words(command, path), environ))
    try:
        yield
    finally:
        await cancel_and_wait(task)


async def _repeat(command: ScheduledCommand, every_s: float, words: Sequence[str], environ: Mapping[str, str]) -> None:
    while True:
        await asyncio.sleep(every_s)
        report = await run_once(words, environ, command.shown)
        LOG.info(command.ended, extra={"fields": report})


async def run_once(
    command: Sequence[str], environ: Mapping[str, str], shown: Sequence[str], limit_s: float = LIMIT_S
) -> dict[str, object]:
    """Run a command line, and return the fields `shown` of its report. It is ended after `limit_s` seconds."""
    process = await asyncio.create_subprocess_exec(
        *death_signal_prefix(signal.SIGTERM),
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=dict(environ),
        start_new_session=True,  # so that one signal reaches the trainer, too
    )
    try:
        async with asyncio.timeout(limit_s):
            output, _ = await process.communicate()
        report = orjson.loads(output)
        return {name: report[name] for name in shown if name in report}
    except TimeoutError:
        return {"error": f"not done after {limit_s:.0f} s"}
    except (orjson.JSONDecodeError, TypeError):
        return {"error": f"no report; exit status {process.returncode}"}
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
