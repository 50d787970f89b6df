"""Measures the index at 10,000, 100,000 and 1,000,000 entries of one scope: `make bench-index`.

A separate process fills, searches and saves the index of each size. Then a real gateway starts from the saved files,
with a real store that has as many records.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import faiss
import numpy as np

from bench import index_device
from bench.index_start import EMBEDDER, SCOPE, fill_store, fingerprint, start
from bench.questions import DIMENSION, Matrix, Questions
from gateway.adapters.faiss.checkpoint import PartitionKind, write_checkpoint
from gateway.adapters.faiss.index import FaissIndex
from gateway.errors import StartupError

ASKED = 1000


@dataclass
class Row:
    entries: int
    fill_s: float = 0.0
    fill_cpu_s: float = 0.0  # of all threads, training included
    p50_ms: float = 0.0
    p99_ms: float = 0.0
    training_p99_ms: float = 0.0  # of searches while a partition was being rebuilt
    flat_p50_ms: float = 0.0
    hit_recall: float = 0.0  # recall@1 against looking at everything, of questions that paraphrase a stored one
    fresh_recall: float = 0.0  # of questions that do not
    index_mb: float = 0.0  # what the index says of itself
    bench_peak_mb: float = 0.0
    checkpoint_mb: float = 0.0
    checkpoint_s: float = 0.0
    listen_s: float = 0.0  # the gateway's start: until it serves
    start_s: float = 0.0  # until its index is complete
    start_cpu_s: float = 0.0
    gateway_mb: float = 0.0  # its resident memory then
    gateway_peak_mb: float = 0.0


async def measure(entries: int, folder: Path) -> Row:
    """Measure everything but the start."""
    row, questions = Row(entries), Questions(7)
    faiss.omp_set_num_threads(1)
    stored = questions.sample(entries)
    hits = questions.paraphrase(stored[questions.pick(ASKED, entries)])
    fresh = questions.sample(ASKED)
    index = FaissIndex(DIMENSION, max_entries=entries)
    try:
        await fill(index, stored, hits, row)
        row.p50_ms, row.p99_ms = percentiles([await time_search(index, vector) for vector in hits])
        row.hit_recall, row.fresh_recall = await recall(index, stored, hits), await recall(index, stored, fresh)
        row.flat_p50_ms, _ = percentiles([flat_ms(stored, vector) for vector in hits[:20]])
        row.index_mb = index.bytes / 1e6
        row.bench_peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
        begun, path = time.perf_counter(), folder / "var" / "index" / "checkpoint"
        await asyncio.to_thread(write_checkpoint, path, PartitionKind(EMBEDDER, DIMENSION), index.chunks())
        row.checkpoint_s, row.checkpoint_mb = time.perf_counter() - begun, path.stat().st_size / 1e6
    finally:
        index.close()
    await fill_store(folder / "var", stored)
    return row


async def fill(index: FaissIndex, stored: Matrix, hits: Matrix, row: Row) -> None:
    """Add all, 32 at a time as a busy gateway would, and search now and then while a partition is rebuilt."""
    begun, cpu = time.perf_counter(), time.process_time()
    training: list[float] = []
    for i in range(0, len(stored), 32):
        some = stored[i : i + 32]
        await asyncio.gather(*(index.add(fingerprint(i + j), SCOPE, vector) for j, vector in enumerate(some)))
        if index.rebuilding and i % 640 == 0:
            training.append(await time_search(index, hits[i % ASKED]))
    while index.rebuilding:
        training.append(await time_search(index, hits[len(training) % ASKED]))
        await asyncio.sleep(0.02)
    row.fill_s, row.fill_cpu_s = time.perf_counter() - begun, time.process_time() - cpu
    row.training_p99_ms = percentiles(training)[1] if training else 0.0


async def time_search(index: FaissIndex, vector: Matrix) -> float:
    """Return the milliseconds of one search, from the event loop and back to it."""
    begun = time.perf_counter()
    await index.search(SCOPE, vector, 4)
    return (time.perf_counter() - begun) * 1e3


def flat_ms(stored: Matrix, vector: Matrix) -> float:
    begun = time.perf_counter()
    faiss.knn(vector[np.newaxis], stored, 4, metric=faiss.METRIC_INNER_PRODUCT)
    return (time.perf_counter() - begun) * 1e3


async def recall(index: FaissIndex, stored: Matrix, asked: Matrix) -> float:
    _, nearest = faiss.knn(asked, stored, 1, metric=faiss.METRIC_INNER_PRODUCT)
    found = [await index.search(SCOPE, vector, 1) for vector in asked]
    return float(
        np.mean([n[0].fingerprint == fingerprint(i) for n, i in zip(found, nearest[:, 0].tolist(), strict=True)])
    )


def percentiles(milliseconds: list[float]) -> tuple[float, float]:
    """Return the median and the 99th percentile."""
    return float(np.percentile(milliseconds, 50)), float(np.percentile(milliseconds, 99))


def table(rows: list[Row]) -> str:
    lines = [f"{'entries':<42}" + "".join(f"{row.entries:>12,}" for row in rows)]
    for label, field, digits in LINES:
        lines.append(f"{label:<42}" + "".join(f"{getattr(row, field):>12,.{digits}f}" for row in rows))
    return "\n".join(lines)


LINES = (
    ("search p50, ms", "p50_ms", 3),
    ("search p99, ms", "p99_ms", 3),
    ("search p99 while it is trained, ms", "training_p99_ms", 1),
    ("flat search p50, ms", "flat_p50_ms", 3),
    ("recall@1 against flat, paraphrases", "hit_recall", 4),
    ("recall@1 against flat, other questions", "fresh_recall", 4),
    ("index by its own account, MB", "index_mb", 0),
    ("gateway after the start, RSS, MB", "gateway_mb", 0),
    ("gateway, peak, MB", "gateway_peak_mb", 0),
    ("filling and training, s", "fill_s", 1),
    ("filling and training, CPU s", "fill_cpu_s", 1),
    ("checkpoint, MB", "checkpoint_mb", 0),
    ("checkpoint written in, s", "checkpoint_s", 2),
    ("start until it serves, s", "listen_s", 2),
    ("start until the index is complete, s", "start_s", 2),
    ("start, CPU s of the gateway", "start_cpu_s", 2),
    ("peak of filling, questions included, MB", "bench_peak_mb", 0),
)


def main() -> None:
    parser = argparse.ArgumentParser(prog="make bench-index", description=__doc__)
    parser.add_argument("sizes", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--within", type=Path, help="measure one size into this folder, and print its figures as JSON")
    parser.add_argument("--device", help="searches on the CPU beside those on cuda, cuda:N or copy (another CPU's)")
    arguments = parser.parse_args()
    if arguments.device:
        try:
            index_device.main(arguments.device, arguments.sizes)
        except StartupError as reason:
            parser.error(str(reason))
        return
    if arguments.within:
        print(json.dumps(asdict(asyncio.run(measure(arguments.sizes[0], arguments.within)))))
        return
    rows = []
    for size in arguments.sizes:
        with tempfile.TemporaryDirectory() as name:
            command = [sys.executable, "-m", "bench.index", str(size), "--within", name]
            figures = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
            figures |= asdict(start(size, Path(name)))
        rows.append(Row(**figures))
    print(table(rows))


if __name__ == "__main__":
    main()
