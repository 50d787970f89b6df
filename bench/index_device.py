"""Compares searches in one scope on the CPU and on a GPU: `python -m bench.index --device cuda SIZES`.

Both indexes take over the same lists, as a start takes them from the checkpoint. The one with a device then copies them
there. The benchmark, not the gateway, trains the lists on the GPU if there is one.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import faiss
import numpy as np
from numpy.typing import NDArray

from bench.index_start import SCOPE, fingerprint
from bench.questions import DIMENSION, Matrix, Questions
from gateway.adapters.faiss.checkpoint import CheckpointChunk, InvertedLists
from gateway.adapters.faiss.device import Device
from gateway.adapters.faiss.index import FaissIndex
from gateway.adapters.faiss.partition import Slice
from gateway.adapters.faiss.rebuilder import SAMPLE_PER_LIST, IndexPlan, train_centroids
from gateway.cache.index_factory import build_device
from tests.fixtures.faiss_device import CpuDevice

ASKED, CALLERS, ADDED = 1000, 32, 2000
CHUNK = 65_536
_GPU: Any = faiss
HEAD = (
    "| searched on | entries | p50 ms | p99 ms | searches/s, 32 at once | recall@1, paraphrases / others "
    "| p99 ms amid changes | copied in s |\n|---|---|---|---|---|---|---|---|"
)


@dataclass(frozen=True, slots=True)
class Figures:
    where: str
    entries: int
    p50_ms: float
    p99_ms: float
    searches_s: float  # with `CALLERS` at a time
    hit_recall: float  # recall@1 against looking at everything
    fresh_recall: float
    mixed_p99_ms: float  # while `ADDED` entries come and as many go
    copied_s: float  # until the device has all


def main(name: str, sizes: list[int]) -> None:
    device = CpuDevice() if name == "copy" else build_device(name)
    print(HEAD)
    for entries in sizes:
        for row in asyncio.run(compare(entries, name, device)):
            print(
                f"| {row.where} | {row.entries:,} | {row.p50_ms:.3f} | {row.p99_ms:.3f} | {row.searches_s:,.0f} | "
                f"{row.hit_recall:.4f} / {row.fresh_recall:.4f} | {row.mixed_p99_ms:.3f} | {row.copied_s:.1f} |",
                flush=True,
            )


async def compare(entries: int, name: str, device: Device | None) -> list[Figures]:
    questions = Questions(7)
    stored = questions.sample(entries)
    centroids, lists = assign_lists(stored, on_gpu=name.startswith("cuda"))
    return await compare_lists(stored, centroids, lists, questions, name, device)


async def compare_lists(
    stored: Matrix,
    centroids: Matrix,
    lists: NDArray[np.int32],
    questions: Questions,
    name: str,
    device: Device | None,
) -> list[Figures]:
    """Measure an index on the CPU, and one with the device. `lists`: the list of each vector."""
    entries = len(stored)
    hits, fresh = questions.paraphrase(stored[questions.pick(ASKED, entries)]), questions.sample(ASKED)
    new = questions.sample(ADDED)
    nearest = [_nearest(asked, stored, on_gpu=name.startswith("cuda")) for asked in (hits, fresh)]
    rows = []
    for where, there in (("CPU", None), (name, device)):
        index = FaissIndex(DIMENSION, max_entries=entries + 2 * ADDED, device=there)
        try:
            await index.load(checkpoint_parts(stored, centroids, lists))
            begun = time.perf_counter()
            await index.wait_settled()
            copied = time.perf_counter() - begun
            rows.append(await measure(index, where, (hits, fresh), nearest, new, copied))
        finally:
            index.close()
    return rows


async def measure(
    index: FaissIndex,
    where: str,
    asked: tuple[Matrix, Matrix],
    nearest: list[NDArray[np.int64]],
    new: Matrix,
    copied_s: float,
) -> Figures:
    entries = index.size
    if where != "CPU" and index.entries_on_device != entries:
        raise SystemExit(f"{index.entries_on_device} of {entries} entries are on the device: the log says why")
    for vector in asked[0][:50]:  # the first ones allocate
        await index.search(SCOPE, vector, 4)
    took, right = [], []
    for vectors, true in zip(asked, nearest, strict=True):
        same = 0
        for vector, best in zip(vectors, true.tolist(), strict=True):
            begun = time.perf_counter()
            found = await index.search(SCOPE, vector, 4)
            took.append((time.perf_counter() - begun) * 1e3)
            same += found[0].fingerprint == fingerprint(best)
        right.append(same / len(vectors))
    begun = time.perf_counter()
    for i in range(0, ASKED, CALLERS):
        await asyncio.gather(*(index.search(SCOPE, vector, 4) for vector in asked[0][i : i + CALLERS]))
    rate = ASKED / (time.perf_counter() - begun)
    amid = []
    for i, vector in enumerate(new):
        await index.add(f"new {i}", SCOPE, vector)
        await index.remove([fingerprint(i)])
        begun = time.perf_counter()
        await index.search(SCOPE, asked[0][i % ASKED], 4)
        amid.append((time.perf_counter() - begun) * 1e3)
    p50, p99 = np.percentile(took, [50, 99])
    mixed = float(np.percentile(amid, 99))
    return Figures(where, entries, float(p50), float(p99), rate, right[0], right[1], mixed, copied_s)


def assign_lists(stored: Matrix, *, on_gpu: bool) -> tuple[Matrix, NDArray[np.int32]]:
    """Return centroids (lists, d), and the list of each vector (n,)."""
    count = IndexPlan().lists(len(stored))
    sample = stored[:: max(1, len(stored) // (SAMPLE_PER_LIST * count))]
    if on_gpu:
        means = faiss.Kmeans(DIMENSION, count, niter=6, spherical=True, gpu=True, seed=1)
        means.train(sample)
        assert means.centroids is not None  # it is trained
        centroids: Matrix = means.centroids
    else:
        centroids = train_centroids(sample, count, lambda: None)
    resources = _GPU.StandardGpuResources() if on_gpu else None
    lists = np.empty(len(stored), dtype=np.int32)
    for i in range(0, len(stored), CHUNK):
        some, metric = stored[i : i + CHUNK], faiss.METRIC_INNER_PRODUCT
        if on_gpu:
            _, found = _GPU.knn_gpu(resources, some, centroids, 1, metric=metric)
        else:
            _, found = faiss.knn(some, centroids, 1, metric=metric)
        lists[i : i + CHUNK] = found[:, 0]
    return centroids, lists


def _nearest(asked: Matrix, stored: Matrix, *, on_gpu: bool) -> NDArray[np.int64]:
    """Return the row of the nearest stored vector of each, from a search of all."""
    metric = faiss.METRIC_INNER_PRODUCT
    if on_gpu:
        _, found = _GPU.knn_gpu(_GPU.StandardGpuResources(), asked, stored, 1, metric=metric)
    else:
        _, found = faiss.knn(asked, stored, 1, metric=metric)
    nearest: NDArray[np.int64] = found[:, 0]
    return nearest


def checkpoint_parts(stored: Matrix, centroids: Matrix, lists: NDArray[np.int32]) -> Iterator[CheckpointChunk]:
    """Yield the vectors in the form in which a checkpoint is read."""
    form = InvertedLists(centroids, len(stored))
    for i in range(0, len(stored), CHUNK):
        some = stored[i : i + CHUNK].astype(np.float16)
        ids = np.arange(i + 1, i + 1 + len(some), dtype=np.int64)
        names = [fingerprint(each - 1) for each in ids.tolist()]
        yield CheckpointChunk(SCOPE, names, Slice(ids, some, lists[i : i + CHUNK]), form)
