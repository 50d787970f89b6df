"""Runs the stages, each in a process of its own with a time limit, and writes the report after each of them.

Standard library only, so that the report exists on any machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.gpu.record import StageOptions

MINUTES = 8.0  # for which the limits of the stages are made
GRACE_S = 5.0  # for a stage to end its servers, once its time is over


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage. `limit_s`: the most seconds that it may take of the `MINUTES` of a run."""

    name: str
    about: str
    limit_s: float

    @property
    def module(self) -> str:
        return f"bench.gpu.{self.name}"


INVENTORY = Stage("inventory", "driver, GPU and libraries", 60.0)
STAGES = (
    INVENTORY,
    Stage("contracts", "contract suites of the text encoder and the index on the device", 60.0),
    Stage("embedder", "embedding: texts a second, agreement, latency through the gateway", 110.0),
    Stage("cross_encoder", "cross-encoder: pairs a second, agreement", 50.0),
    Stage("index", "index: search, build, addition, removal, memory", 120.0),
    Stage("light", "a light model on Triton: batches, instances, its metrics", 70.0),
    Stage("training", "steps of the cross-encoder's training a second", 40.0),
)


@dataclass(slots=True)
class Outcome:
    """The end of a stage. `status`: measured, partly, skipped, stopped or failed. `reason`: of all but the first."""

    stage: str
    status: str
    reason: str = ""
    seconds: float = 0.0
    limit_s: float = 0.0
    rows: list[dict[str, Any]] = field(default_factory=list)


def outcome_of(stage: Stage, rows: list[dict[str, Any]], code: int | None, said: str) -> Outcome:
    """Judge a stage by its rows and its exit status; None: it was stopped at its limit. Pure."""
    figures = [row for row in rows if "skipped" not in row and "failed" not in row]
    lacking = [row for row in rows if row not in figures]
    if code is None:
        return Outcome(stage.name, "stopped", "its time was over", rows=rows)
    if code:
        return Outcome(stage.name, "failed", said.strip().rsplit("\n", 1)[-1] or f"exit status {code}", rows=rows)
    if not lacking:
        return Outcome(stage.name, "measured" if figures else "skipped", "" if figures else "no figures", rows=rows)
    reason = "; ".join(f"{row['part']}: {row.get('skipped') or row['failed']}" for row in lacking)
    if figures:
        return Outcome(stage.name, "partly", reason, rows=rows)
    return Outcome(stage.name, "failed" if any("failed" in row for row in lacking) else "skipped", reason, rows=rows)


def run_stage(stage: Stage, given: StageOptions, limit_s: float) -> Outcome:
    """Run a stage for at most `limit_s` seconds. Its processes have ended then."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        out, log = Path(folder) / "rows", Path(folder) / "log"
        command = [sys.executable, "-m", stage.module, "--out", str(out), "--limit", f"{limit_s:.0f}", *_words(given)]
        with log.open("w") as said:
            process = subprocess.Popen(command, stdout=said, stderr=subprocess.STDOUT, start_new_session=True)
            code: int | None = None
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = process.wait(limit_s)
            _end(process)
        outcome = outcome_of(stage, _rows(out), code, log.read_text(errors="replace"))
    outcome.seconds, outcome.limit_s = round(time.monotonic() - began, 1), limit_s
    return outcome


def run(
    stages: Sequence[Stage], given: StageOptions, minutes: float, report: Path, tell: Callable[[str], None]
) -> Report:
    """Run the inventory and these stages within the time, and write the report after each. Raises OSError."""
    until, found = time.monotonic() + 60.0 * minutes, Report(given)
    for stage in (INVENTORY, *(each for each in stages if each is not INVENTORY)):
        left = until - time.monotonic()
        if stage is not INVENTORY and (lacking := found.missing_device()):
            outcome = Outcome(stage.name, "skipped", lacking)
        elif left < GRACE_S:
            outcome = Outcome(stage.name, "skipped", f"the {minutes:g} minutes are over")
        else:
            outcome = run_stage(stage, given, min(stage.limit_s * minutes / MINUTES, left))
        found.outcomes.append(outcome)
        found.write(report)
        tell(f"{outcome.stage}: {outcome.status}, {outcome.seconds:.0f} s{': ' * bool(outcome.reason)}{outcome.reason}")
    return found


@dataclass
class Report:
    given: StageOptions
    outcomes: list[Outcome] = field(default_factory=list)

    def missing_device(self) -> str:
        """Return why the stages of a GPU cannot run; empty: they can."""
        rows = {row["part"]: row for outcome in self.outcomes for row in outcome.rows}
        gpu = rows.get("GPU", {})
        if self.given.device == "cpu" or ("skipped" not in gpu and "failed" not in gpu and gpu):
            return ""
        return f"no GPU ({gpu.get('skipped') or gpu.get('failed') or 'the inventory did not end'})"

    def as_json(self) -> dict[str, Any]:
        return {
            "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "device": self.given.device,
            "quick": self.given.quick,
            "python": platform.python_version(),
            "cores": os.cpu_count(),
            "stages": [asdict(each) for each in self.outcomes],
        }

    def write(self, path: Path) -> None:
        """Replace the file. Raises OSError."""
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".part")
        draft.write_text(json.dumps(self.as_json(), indent=1) + "\n")
        draft.replace(path)


def _words(given: StageOptions) -> list[str]:
    words = ["--device", given.device, "--sizes", *map(str, given.sizes)]
    for option in ("weights", "triton", "metrics", "student"):
        value = getattr(given, option)
        words += [] if value is None else [f"--{option}", str(value)]
    return [*words, "--quick"] if given.quick else words


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the process and those that it started: they are a session of their own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)


def _rows(out: Path) -> list[dict[str, Any]]:
    """Return the whole lines; the last one may be cut."""
    rows = []
    for line in out.read_text().splitlines() if out.exists() else []:
        with contextlib.suppress(ValueError):
            rows.append(json.loads(line))
    return rows
