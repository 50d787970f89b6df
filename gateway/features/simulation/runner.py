"""`SimulationRunner` replays recorded traffic under a policy, in a separate process next to the gateway."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson

from gateway.config import Config
from gateway.config.policy.model import Policy
from gateway.errors import BadRequest, GatewayError
from gateway.features.simulation.worker_process import SimulationJob, build_job
from gateway.steps.traffic_log.reader import TrafficUnreadable

WINDOW = re.compile(r"last-\d{1,6}[smhd]", re.ASCII)
DEFAULT_WINDOW = "last-24h"


class SimulationRunning(GatewayError):
    """Another simulation is running. Only one runs at a time, because it uses a whole core."""

    status = 503
    kind = "simulation_running"


class SimulationTimedOut(GatewayError):
    """The simulation took too long and was ended."""

    status = 504
    kind = "simulation_too_long"


class SimulationFailed(GatewayError):
    """The process ended without a result."""

    status = 500
    kind = "simulation_failed"


@dataclass(slots=True)
class SimulationRunner:
    """`SimulationRunner` runs one simulation at a time.

    `flush` writes the recorded traffic to disk. `embedder` returns the fingerprint of the embedding model in use.
    """

    config: Config
    flush: Callable[[], Awaitable[None]]
    embedder: Callable[[], str]
    wall: Callable[[], float]
    running: bool = field(default=False, init=False)

    async def of(self, present: Policy, new: Policy, window: str | None, task: str = "simulate") -> dict[str, Any]:
        """Return the output of `nearhit simulate --json`, or that of another task of `SimulationJob`.

        Raise `BadRequest`, `SimulationRunning`, `SimulationTimedOut`, `SimulationFailed`, or `TrafficUnreadable`.
        """
        wanted = DEFAULT_WINDOW if window is None else window
        if WINDOW.fullmatch(wanted) is None:
            raise BadRequest("traffic: expected a window such as last-24h, last-7d or last-90m")
        if self.running:
            raise SimulationRunning(
                "a simulation is running already, expected one at a time: try again when it is over"
            )
        self.running = True
        try:
            await self.flush()
            job = build_job(self.config, present, new, wanted, self.wall(), self.embedder(), task)
            return await self._run_job(job)
        finally:
            self.running = False

    async def _run_job(self, job: SimulationJob) -> dict[str, Any]:
        limit_s = self.config.traffic.simulate_timeout
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "gateway.features.simulation.worker_process",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
        try:
            async with asyncio.timeout(limit_s):
                output, _ = await process.communicate(job.packed())
        except TimeoutError:
            raise SimulationTimedOut(
                f"the simulation took longer than {limit_s:.0f} s (traffic.simulate_timeout), expected a shorter window"
            ) from None
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        try:
            report: dict[str, Any] = orjson.loads(output)
        except orjson.JSONDecodeError:
            raise SimulationFailed(f"the simulation ended without an answer (exit code {process.returncode})") from None
        if not report["ok"]:
            raise TrafficUnreadable(report["error"])
        return report
