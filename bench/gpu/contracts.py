"""The contract suites, on the device.

The served models are held to theirs where a server runs: in the stages `embedder` and `cross_encoder`.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.gpu.record import Record, Skipped, StageOptions, stage_arguments
from bench.gpu.weights import published_model

INDEX = (
    "tests/contracts/test_vector_index.py",
    "tests/features/gpu_index/test_partition.py::test_a_gpu_finds_what_the_cpu_finds",
)
DEVICE_VARIABLE = "NEARHIT_TEST_DEVICE"


def main() -> None:
    given, record = stage_arguments()
    with record.part("text encoder, sentence-transformers"):
        text_encoder(given, record)
    with record.part("vector index, FAISS"):
        vector_index(given, record)


def text_encoder(given: StageOptions, record: Record) -> None:
    """Hold the adapter to the rules of `TextEncoder`. Raises `Skipped`, or `AssertionError` where it breaks one."""
    importlib.import_module("sentence_transformers")
    with tempfile.TemporaryDirectory() as scratch:
        folder = published_model(given.weights, Path(scratch))
        said = _run_python(
            ["-m", "tests.contracts.text_encoder_rules", str(folder)], record.left_s, {"HF_HUB_OFFLINE": "1"}
        )
    last = said.strip().rsplit("\n", 1)[-1]
    if given.device == "cuda" and last != "cuda: every rule":
        raise AssertionError(last)
    record.row("text encoder, sentence-transformers", kept=said.count("kept:"), device=last)


def vector_index(given: StageOptions, record: Record) -> None:
    variables = {DEVICE_VARIABLE: given.device} if given.device == "cuda" else {}
    # Without conftest.py, whose fixtures need every library of the test suite.
    plain = ["--noconftest", "-o", "addopts=", "-p", "no:cacheprovider"]
    options = ["-m", "pytest", "-q", "-rs", *plain, *INDEX]
    options += ["-k", "neighbours_come and (DeviceIndex or CudaIndex)"] if given.quick else []
    said = _run_python(options, record.left_s, variables)
    lines = said.strip().splitlines()
    skipped = [line for line in lines if line.startswith("SKIPPED")]
    if given.device == "cuda" and any("GPU" in line or "faiss" in line for line in skipped):
        raise Skipped("; ".join(skipped))
    record.row("vector index, FAISS", tests=lines[-1].strip("= "))


def _run_python(arguments: list[str], limit_s: float, variables: dict[str, str]) -> str:
    """Return what a Python of this environment prints. Raises `AssertionError` with the end of it if it fails."""
    done = subprocess.run(
        [sys.executable, *arguments],
        capture_output=True,
        text=True,
        timeout=max(1.0, limit_s),
        check=False,
        env={**os.environ, **variables},
    )
    if done.returncode:
        raise AssertionError((done.stdout + done.stderr).strip()[-350:])
    return done.stdout


if __name__ == "__main__":
    main()
