"""Runs the trainer in the build environment."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from gateway.tools.distillation.options import OutputDir
from gateway.tools.embedding_model.environment import FetchFailed, python_of

THREADS = 2
# Appended, not put first: files next to the trainer must not hide a module of the environment.
TRAINER = "import sys; sys.path.append(sys.argv[1]); from trainer.main import run; run(sys.argv[2:])"
ENVIRON = {
    "OMP_NUM_THREADS": str(THREADS),
    "OMP_WAIT_POLICY": "passive",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
}


def run_trainer(
    output: OutputDir, python: Path, job: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], transformer: Path | None
) -> dict[str, Any]:
    """Run the trainer and return its report. It writes its graphs to `output.work`.

    `job` and `rows` must be serialisable as JSON. Raises `FetchFailed`.
    """
    output.work.mkdir(parents=True, exist_ok=True, mode=0o700)
    _write(output.work / "rows.jsonl", b"\n".join(map(orjson.dumps, rows)))
    _write(output.work / "job.json", orjson.dumps({**job, "threads": THREADS}))
    given = [Path(__file__).parent, output.work, "quiet" if output.quiet else "shown", transformer or ""]
    done = subprocess.run(  # noqa: S603 - the command is built here
        [python_of(python.parents[1]), "-I", "-c", TRAINER, *map(str, given)],
        stdin=subprocess.DEVNULL, env={**os.environ, **ENVIRON}, check=False,
    )  # fmt: skip
    if done.returncode < 0:
        raise FetchFailed(
            f"the trainer was ended by signal {-done.returncode}: the same command resumes after its last epoch"
        )
    if done.returncode:
        raise FetchFailed(
            f"the student could not be trained: the trainer ended with {done.returncode}; see its output above"
        )
    said: dict[str, Any] = json.loads((output.work / "trained.json").read_text())
    return said


def _write(path: Path, data: bytes) -> None:
    """Write a file that only its owner can read: it contains questions and answers."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
