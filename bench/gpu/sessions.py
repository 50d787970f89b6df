"""Graphs on onnxruntime, on the CPU or on a GPU, with whole batches in one pass."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from bench.gpu.record import Skipped

Rows = Sequence[Sequence[int]]
CUDA, CPU = "CUDAExecutionProvider", "CPUExecutionProvider"


class Session:
    """A graph that takes token ids. `device`: cuda or cpu. Raises `Skipped` if onnxruntime cannot use it."""

    def __init__(self, graph: Path, device: str) -> None:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        wanted = CUDA if device == "cuda" else CPU
        if wanted not in onnxruntime.get_available_providers():
            raise Skipped(f"onnxruntime {onnxruntime.__version__} has no {wanted}: pip install onnxruntime-gpu")
        if device == "cuda" and hasattr(onnxruntime, "preload_dlls"):
            onnxruntime.preload_dlls()  # from the wheels of NVIDIA's libraries
        self._session = onnxruntime.InferenceSession(str(graph), options, providers=[wanted])
        if self._session.get_providers()[0] != wanted:
            raise Skipped(f"onnxruntime {onnxruntime.__version__} cannot load {wanted}: a CUDA library is missing")
        self._inputs = {each.name for each in self._session.get_inputs()}

    def __call__(self, ids: Rows, types: Rows | None = None) -> NDArray[np.float32]:
        """Return the first output, one row for each of `ids`. `types`: of their tokens."""
        feed = {"input_ids": pad_rows(ids), "attention_mask": pad_rows([[1] * len(row) for row in ids])}
        if types is not None:
            feed["token_type_ids"] = pad_rows(types)
        found: NDArray[np.float32] = self._session.run(None, {k: v for k, v in feed.items() if k in self._inputs})[0]
        return found


def pad_rows(rows: Rows) -> NDArray[np.int64]:
    made = np.zeros((len(rows), max(map(len, rows))), np.int64)
    for at, row in enumerate(rows):
        made[at, : len(row)] = row
    return made


def time_calls(call: Callable[[int], Any], seconds: float) -> tuple[float, float]:
    """Call with 0, 1, ... for so long, at least three times after two for warming up. Return p50 and p99 in ms."""
    for at in range(2):
        call(at)
    took: list[float] = []
    until = time.perf_counter() + seconds
    while len(took) < 3 or time.perf_counter() < until:
        began = time.perf_counter()
        call(len(took))
        took.append(1e3 * (time.perf_counter() - began))
    p50, p99 = np.percentile(took, [50, 99])
    return float(p50), float(p99)


def rates(
    run: Callable[[list[Any]], Any], items: Sequence[Any], batches: Sequence[int], seconds: float
) -> dict[str, float]:
    """Return items a second by batch, and p50 and p99 in ms of a batch of one. `run` takes a batch."""
    found: dict[str, float] = {}
    for batch in batches:
        chosen = [[items[(at + i * batch) % len(items)] for at in range(batch)] for i in range(8)]
        p50, p99 = time_calls(lambda at, chosen=chosen: run(chosen[at % len(chosen)]), seconds)  # type: ignore[misc]
        found[f"per_s_at_{batch}"] = 1e3 * batch / p50
        if batch == 1:
            found |= {"p50_ms": p50, "p99_ms": p99}
    return found
