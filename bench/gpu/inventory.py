"""The inventory: the driver, the GPU, and the libraries that can use it. Standard library only.

A library is asked in a process of its own, because a broken CUDA library can end the process that loads it.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from bench.gpu.record import Record, Skipped, stage_arguments

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PATIENCE_S = 50.0
SMI = ("name", "memory.total", "driver_version", "compute_cap")


@dataclass(frozen=True, slots=True)
class Library:
    """A library. `packages`: any of these provides the module. `ask`: code that prints its state. `pip`: its name."""

    name: str
    packages: tuple[str, ...]
    ask: str
    pip: str


LIBRARIES = (
    Library(
        "onnxruntime",
        ("onnxruntime-gpu", "onnxruntime"),
        "import onnxruntime as o; print(', '.join(o.get_available_providers()))",
        "onnxruntime-gpu[cuda,cudnn]",
    ),
    Library(
        "faiss",
        ("faiss-gpu-cuvs", "faiss-gpu", "faiss-cpu"),
        "import faiss as f; print(getattr(f, 'get_num_gpus', int)(), 'GPUs,', "
        "'with' if hasattr(f, 'GpuIndexCagra') else 'without', 'CAGRA')",
        "--force-reinstall --no-deps faiss-gpu",
    ),
    Library("torch", ("torch",), "import torch as t; print('CUDA', t.version.cuda, t.cuda.is_available())", "torch"),
    Library(
        "sentence-transformers",
        ("sentence-transformers",),
        "import sentence_transformers as s; print(s.__version__)",
        "sentence-transformers",
    ),
    Library("onnx", ("onnx",), "import onnx; print(onnx.__version__)", "onnx"),
    Library("tensorrt", ("tensorrt", "tensorrt-cu13", "tensorrt-cu12"), "import tensorrt as t; print(t.__version__)",
            "tensorrt"),
    Library("Triton client", ("tritonclient",), "import tritonclient.grpc; print('gRPC')", "tritonclient[grpc]"),
)  # fmt: skip


def main() -> None:
    _, record = stage_arguments()
    with record.part("GPU"):
        record.row("GPU", **gpu())
    with record.part("CUDA compiler"):
        record.row("CUDA compiler", version=_output_of(["nvcc", "--version"]).splitlines()[-1])
    for library in LIBRARIES:
        with record.part(library.name):
            record_library(library, record)


def gpu() -> dict[str, str | int]:
    """Return what the driver and nvidia-smi say of the first GPU. Raises `Skipped`."""
    try:
        driver = ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise Skipped(f"the NVIDIA driver is missing: {error}") from None
    version, count = ctypes.c_int(), ctypes.c_int()
    if code := driver.cuInit(0) or driver.cuDeviceGetCount(ctypes.byref(count)):
        raise Skipped(f"the NVIDIA driver finds no device: CUDA error {code}")
    if not count.value:
        raise Skipped("the NVIDIA driver finds no device")
    driver.cuDriverGetVersion(ctypes.byref(version))
    said: dict[str, str | int] = {"count": count.value, "CUDA": f"{version.value // 1000}.{version.value % 1000 // 10}"}
    try:
        asked = ["nvidia-smi", f"--query-gpu={','.join(SMI)}", "--format=csv,noheader"]
        said |= dict(zip(SMI, _output_of(asked).splitlines()[0].split(", "), strict=True))
    except (Skipped, ValueError):
        said["name"] = "unknown: nvidia-smi does not answer"
    return said


def gpu_memory_mb() -> float | None:
    """Return the memory in use on the first GPU, of all processes; None without nvidia-smi."""
    try:
        return float(
            _output_of(["nvidia-smi", "--query-gpu=memory.used", "--format=csv,noheader,nounits"]).splitlines()[0]
        )
    except (Skipped, ValueError):
        return None


def record_library(library: Library, record: Record) -> None:
    """Keep the version of a library and what it says. Raises `Skipped` with the command that installs it."""
    versions = [f"{package} {version}" for package in library.packages if (version := _version(package))]
    if not versions:
        raise Skipped(f"not installed: pip install {library.pip}, or all of {REQUIREMENTS.name}")
    done = subprocess.run(
        [sys.executable, "-c", library.ask], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    if done.returncode:
        last = (done.stderr.strip() or f"exit status {done.returncode}").rsplit("\n", 1)[-1]
        raise Skipped(f"{', '.join(versions)} cannot be imported: {last}")
    record.row(library.name, installed=", ".join(versions), finds=done.stdout.strip())


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _output_of(command: list[str]) -> str:
    """Return what a program prints. Raises `Skipped`."""
    if shutil.which(command[0]) is None:
        raise Skipped(f"{command[0]} is not on the PATH")
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode or not done.stdout.strip():
        raise Skipped(f"{command[0]} fails: {(done.stderr or done.stdout).strip()[:200]}")
    return done.stdout.strip()


if __name__ == "__main__":
    main()
