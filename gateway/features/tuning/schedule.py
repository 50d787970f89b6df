"""Runs `nearhit tune` from time to time, in a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import orjson

from gateway.adapters.system.child_process import death_signal_prefix
from gateway.tasks import cancel_and_wait, start_task

LOG = logging.getLogger("nearhit.quality")
LIMIT_S = 3 * 3600.0  # beyond it the process is ended; 50,000 pairs took less than an hour on two cores
NICE = ("nice", "-n", "10")
SHOWN = ("in_force", "why", "labels", "version", "error")  # nothing with texts of clients


@asynccontextmanager
async def tuning(every_s: float, path: Path, environ: Mapping[str, str]) -> AsyncIterator[None]:
    """Tune every `every_s` seconds, by the configuration in `path`, until the context ends."""
    task = start_task(_repeat(every_s, _command(path), environ))
    try:
        yield
    finally:
        await cancel_and_wait(task)


def _command(config: Path) -> list[str]:
    return [*NICE, sys.executable, "-m", "gateway", "tune", "--config", str(config.absolute()), "--json"]


async def _repeat(every_s: float, command: Sequence[str], environ: Mapping[str, str]) -> None:
    while True:
        await asyncio.sleep(every_s)
        report = await run_once(command, environ)
        LOG.info("tuning ended", extra={"fields": report})


async def run_once(command: Sequence[str], environ: Mapping[str, str], limit_s: float = LIMIT_S) -> dict[str, object]:
    """Run the command, and return its report without texts. It is ended after `limit_s` seconds."""
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
        return {name: report[name] for name in SHOWN if name in report}
    except TimeoutError:
        return {"error": f"not done after {limit_s:.0f} s"}
    except (orjson.JSONDecodeError, TypeError):
        return {"error": f"no report; exit status {process.returncode}"}
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
