"""Compares an index in Milvus Lite with the one in the process: `make bench-milvus`.

One scope has 10,000 and 100,000 entries. `--url` measures the server at that address instead, with the token in
MILVUS_TOKEN. It needs the extra `milvus-lite`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import faiss
import numpy as np

from bench.questions import DIMENSION, Matrix, Questions
from gateway.adapters.faiss.index import FaissIndex
from gateway.adapters.system.clock import SystemClock
from gateway.errors import IndexUnavailable
from gateway.features.milvus.index import BATCH, MilvusIndex
from gateway.ports import StoredVector, VectorIndex

SCOPE = "s" * 64
SINGLE = 200  # additions one by one
LATER = 4e9
TRIES = 10


async def measure(name: str, index: VectorIndex, stored: Matrix, asked: Matrix) -> None:
    entries = len(stored)
    vectors = [StoredVector(f"{i:064x}", SCOPE, stored[i], LATER) for i in range(entries - SINGLE)]
    begun = time.perf_counter()
    for i in range(0, len(vectors), BATCH):
        await add(index, vectors[i : i + BATCH])
    batched = len(vectors) / (time.perf_counter() - begun)
    begun = time.perf_counter()
    for i in range(entries - SINGLE, entries):
        await index.add(f"{i:064x}", SCOPE, stored[i], LATER)
    single = SINGLE / (time.perf_counter() - begun)
    fresh_ms = await search_ms(index, asked[0])
    if isinstance(index, FaissIndex):
        await index.wait_settled()
    elif isinstance(index, MilvusIndex):
        await index.flush()
    await search_ms(index, asked[0])  # what is read once, and the scope's first count
    took = [await search_ms(index, vector) for vector in asked]
    p50, p99 = np.percentile(took, [50, 99])
    print(
        f"| {name} | {entries:,} | {batched:,.0f} | {single:,.0f} | {fresh_ms:,.1f} | {p50:,.1f} | {p99:,.1f} |",
        flush=True,
    )


async def add(index: VectorIndex, vectors: Sequence[StoredVector]) -> None:
    """Add the entries, and write them again if that fails, as `nearhit index migrate` does: Lite compacts meanwhile."""
    for _ in range(TRIES):
        try:
            return await index.add_all(vectors)
        except IndexUnavailable as error:
            print(f"{len(vectors)} vectors are written again: {error}", file=sys.stderr, flush=True)
    raise SystemExit("the index takes no vectors")


async def search_ms(index: VectorIndex, vector: Matrix) -> float:
    begun = time.perf_counter()
    await index.search(SCOPE, vector, 4)
    return 1e3 * (time.perf_counter() - begun)


async def run(sizes: Sequence[int], searches: int, url: str | None) -> None:
    faiss.omp_set_num_threads(1)
    print("| index | entries | added/s, 500 at once | added/s, one by one | first search, ms | p50, ms | p99, ms |")
    print("|---|---|---|---|---|---|---|")
    for entries in sizes:
        questions = Questions(7)
        stored = questions.sample(entries)
        asked = questions.paraphrase(stored[questions.pick(searches, entries)])
        within = FaissIndex(DIMENSION, max_entries=entries)
        try:
            await measure("FAISS, in process", within, stored, asked)
        finally:
            within.close()
        with tempfile.TemporaryDirectory() as folder:
            outside = MilvusIndex(
                url or str(Path(folder) / "milvus.db"),
                dimension=DIMENSION,
                collection=f"nearhit_bench_{os.getpid()}_{entries}",
                clock=SystemClock(),
                timeout_s=120.0,
                token=os.environ.get("MILVUS_TOKEN", "") if url else "",
            )
            try:
                await measure("Milvus" if url else "Milvus Lite", outside, stored, asked)
            finally:
                if url:  # a file goes with its folder
                    await outside.drop()
                await outside.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--entries", type=int, nargs="*", default=[10_000, 100_000])
    parser.add_argument("--searches", type=int, default=200)
    parser.add_argument("--url", help="of a Milvus server; default: a Milvus Lite file")
    given = parser.parse_args()
    asyncio.run(run(given.entries, given.searches, given.url))


if __name__ == "__main__":
    main()
