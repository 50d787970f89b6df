"""Runs a trainer in the build environment: a package that has torch, but not `gateway`."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from gateway.model_build.environment import FetchFailed, python_of

THREADS = 2
# Appended, not put first: files next to the trainer must not hide a module of the environment.
TRAINER = "import sys; sys.path.append(sys.argv[1]); from trainer.main import run; run(sys.argv[2:])"
ENVIRON = {
    "OMP_NUM_THREADS": str(THREADS),
    "OMP_WAIT_POLICY": "passive",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}


def run_package(
    package: Path, work: Path, python: Path, job: Mapping[str, Any], rows: Sequence[Mapping[str, Any]],
    given: Sequence[str | Path], *, failure: str, resumes: bool = False,
) -> dict[str, Any]:  # fmt: skip
    """Run `trainer.main` of the folder `package` on a job and its rows, and return the report that it writes.

    `job` and `rows` must be serialisable as JSON. The trainer gets the folder `work` as its first argument, and then
    those of `given`. With `resumes`, the same command goes on after a signal. Raises `FetchFailed`.
    """
    work.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(work / "rows.jsonl", b"\n".join(map(orjson.dumps, rows)))
    _write(work / "job.json", orjson.dumps({**job, "threads": THREADS}))
    done = subprocess.run(  # noqa: S603 - the command is built here
        [python_of(python.parents[1]), "-I", "-c", TRAINER, *map(str, (package, work, *given))],
        stdin=subprocess.DEVNULL, env={**os.environ, **ENVIRON}, check=False,
    )  # fmt: skip
    if done.returncode < 0:
        hint = ": the same command resumes after its last epoch" if resumes else ""
        raise FetchFailed(f"the trainer was ended by signal {-done.returncode}{hint}")
    if done.returncode:
        raise FetchFailed(f"{failure}: the trainer ended with {done.returncode}; see its output above")
    report: dict[str, Any] = json.loads((work / "trained.json").read_text())
    return report


def _write(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read: it contains questions and answers."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
