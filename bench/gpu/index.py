"""The index: FAISS on the GPU beside FAISS on the CPU, and the gateway's own index on both.

Both have the lists that the gateway would train for the size, of vectors with the distribution of questions.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from bench import index_device
from bench.gpu.inventory import gpu_memory_mb
from bench.gpu.record import Record, Skipped, StageOptions, stage_arguments
from bench.gpu.sessions import time_calls
from bench.questions import DIMENSION, Matrix, Questions
from gateway.adapters.faiss.device import Device
from gateway.adapters.faiss.partition import empty_lists
from gateway.adapters.faiss.rebuilder import IndexPlan
from gateway.features.gpu_index.partition import SCRATCH_BYTES, CudaDevice
from tests.fixtures.faiss_device import CpuDevice

K, ASKED, ADDED, BATCH = 4, 1024, 1024, 64
GROWTH = 14.0  # seconds of a size over those of a tenth of it, with room
_GPU: Any = faiss  # the stubs of the CPU build lack the GPU functions


def main() -> None:
    given, record = stage_arguments()
    sizes, took = sorted(given.sizes), 0.0
    worth: dict[int, bool] = {}
    for at, size in enumerate(sizes):
        name = f"{size:,} entries"
        needed = took * GROWTH * size / (10 * sizes[at - 1]) if at else 0.0
        with record.part(name):
            if needed > record.left_s:
                raise Skipped(f"it needs some {needed:.0f} s, and the stage has {record.left_s:.0f} s left")
            began = time.monotonic()
            worth[size] = compare(given, record, size)
            took = time.monotonic() - began
    if worth:
        first = min((size for size, faster in worth.items() if faster), default=None)
        record.row("smallest size with a faster search of one question on the device", entries=first or "none of these")


def compare(given: StageOptions, record: Record, size: int) -> bool:
    """Keep the rows of a size, and return whether the gateway's index searches faster with the device."""
    questions = Questions(7)
    stored = questions.sample(size)
    asked = questions.paraphrase(stored[questions.pick(min(ASKED, size), size)])
    new = questions.sample(ADDED)
    began = time.perf_counter()
    centroids, lists = index_device.assign_lists(stored, on_gpu=given.device == "cuda")
    trained_s = time.perf_counter() - began
    for name, build in _kinds(given, centroids, size):
        part = f"FAISS, {name}"
        with record.part(f"{part}, {size:,} entries"):
            before, began = gpu_memory_mb(), time.perf_counter()
            index = build(stored)
            built_s = time.perf_counter() - began
            figures = measure_raw(index, asked, new, given.patience_s)
            after = gpu_memory_mb()
            memory = after - before if after is not None and before is not None else "unknown"
            record.row(part, entries=size, built_s=built_s, lists_trained_s=trained_s, GPU_MB=memory, **figures)
            del index
    if size < IndexPlan().device_from:
        raise Skipped(f"the gateway searches fewer than {IndexPlan().device_from:,} entries on the CPU in any case")
    device: Device = CudaDevice("cuda") if given.device == "cuda" else CpuDevice()
    rows = asyncio.run(index_device.compare_lists(stored, centroids, lists, questions, given.device, device))
    for row in rows:
        record.row(
            f"the gateway's index, {row.where}",
            entries=size,
            p50_ms=row.p50_ms,
            p99_ms=row.p99_ms,
            searches_s=row.searches_s,
            recall_paraphrases=row.hit_recall,
            recall_others=row.fresh_recall,
            p99_ms_amid_changes=row.mixed_p99_ms,
            copied_s=row.copied_s,
        )
    return rows[1].p50_ms < rows[0].p50_ms


def measure_raw(index: Any, asked: Matrix, new: Matrix, seconds: float) -> dict[str, float | str]:
    """Measure searches of 1 and of `BATCH` questions, an addition of `ADDED` entries, and their removal."""
    figures: dict[str, float | str] = {}
    for batch in (1, BATCH):
        parts = [np.ascontiguousarray(asked[at : at + batch]) for at in range(0, len(asked) - batch + 1, batch)]
        p50, p99 = time_calls(lambda at, parts=parts: index.search(parts[at % len(parts)], K), seconds)  # type: ignore[misc]
        figures |= {f"p50_ms_at_{batch}": p50, f"p99_ms_at_{batch}": p99}
    ids = np.arange(10**9, 10**9 + len(new), dtype=np.int64)
    for name, change in (
        (f"added_{ADDED}_ms", lambda: index.add_with_ids(new, ids)),
        (f"removed_{ADDED}_ms", lambda: index.remove_ids(ids)),
    ):
        began = time.perf_counter()
        try:
            change()
            figures[name] = 1e3 * (time.perf_counter() - began)
        except RuntimeError:
            figures[name] = "not supported"
    return figures


def _kinds(given: StageOptions, centroids: Matrix, size: int) -> Iterator[tuple[str, Callable[[Matrix], Any]]]:
    """Yield each kind of index with what builds it. One that this FAISS lacks raises `Skipped` when it is built."""
    plan, resources = IndexPlan(), None
    if given.device == "cuda":
        resources = _GPU.StandardGpuResources()
        resources.setTempMemory(SCRATCH_BYTES)

    def on_cpu(stored: Matrix) -> Any:
        return _fill(empty_lists(centroids, plan.probes_for(size)), stored)

    def on_gpu(stored: Matrix) -> Any:
        empty = empty_lists(centroids, plan.device_probes)
        if given.device != "cuda":
            return _fill(faiss.clone_index(empty), stored)
        return _fill(_GPU.index_cpu_to_gpu(resources, 0, empty), stored)

    def cagra(stored: Matrix) -> Any:
        if not hasattr(faiss, "GpuIndexCagra"):
            raise Skipped(f"faiss {faiss.__version__} has no CAGRA: pip install faiss-gpu-cuvs has it")
        index = _GPU.GpuIndexCagra(resources, DIMENSION, faiss.METRIC_INNER_PRODUCT)
        index.train(stored)
        return index

    where = "GPU" if given.device == "cuda" else "a copy on the CPU"
    yield "CPU, inverted lists float16", on_cpu
    yield f"{where}, inverted lists float16", on_gpu
    yield f"{where}, CAGRA", cagra


def _fill(index: Any, stored: Matrix) -> Any:
    for at in range(0, len(stored), index_device.CHUNK):
        part = stored[at : at + index_device.CHUNK]
        ids: NDArray[np.int64] = np.arange(at, at + len(part), dtype=np.int64)
        index.add_with_ids(part, ids)
    return index


if __name__ == "__main__":
    main()
