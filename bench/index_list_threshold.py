"""Measures the scope size from which lists pay, and how many lists to probe: `python -m bench.index_list_threshold`.

It uses one thread. Recall is relative to a full search, over questions with a neighbour of at least `FLOOR`.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import faiss
import numpy as np

from bench.questions import Matrix, Questions
from gateway.adapters.faiss.partition import empty_lists, search_lists
from gateway.adapters.faiss.rebuilder import SAMPLE_PER_LIST, IndexPlan, train_centroids
from gateway.cache.verifiers import FLOOR

ASKED, TIMED, NEIGHBOURS = 2000, 300, 4
APART = {"cosine 0.95": 0.33, "cosine 0.80": 0.75, "cosine 0.65": 1.17}  # by how much noise


def microseconds(search: Callable[[Matrix], Any], asked: Matrix) -> float:
    """Return the CPU time of a search that a tenth of the searches do not exceed."""
    took = []
    for vector in asked[:TIMED]:
        begun = time.thread_time()
        search(vector)
        took.append((time.thread_time() - begun) * 1e6)
    return float(np.percentile(took, 10))


def recalls(index: Any, asked: Matrix, similarities: Matrix, nearest: Any) -> str:
    """Return the recall of the nearest neighbour, and of the four nearest."""
    _, rows = index.search(asked, NEIGHBOURS)
    near = similarities >= FLOOR
    found = np.array([np.isin(wanted, got) for wanted, got in zip(nearest, rows, strict=True)])
    first = (rows[:, 0] == nearest[:, 0])[near[:, 0]]
    return f"{first.mean():.4f} / {found[near].mean():.4f}"


def measure(entries: int) -> None:
    plan, questions = IndexPlan(), Questions(7)
    stored = questions.sample(entries)
    some = stored[questions.pick(min(ASKED, entries), entries)]
    asked = {name: questions.paraphrase(some, noise) for name, noise in APART.items()}
    exact = {
        name: faiss.knn(each, stored, NEIGHBOURS, metric=faiss.METRIC_INNER_PRODUCT) for name, each in asked.items()
    }
    alike = next(iter(asked.values()))
    flat = microseconds(
        lambda vector: faiss.knn(vector[np.newaxis], stored, NEIGHBOURS, metric=faiss.METRIC_INNER_PRODUCT), alike
    )
    sample = stored[questions.pick(min(entries, SAMPLE_PER_LIST * plan.lists(entries)), entries)]
    begun = time.thread_time()
    centroids = train_centroids(sample, plan.lists(entries), lambda: None)
    trained = time.thread_time() - begun
    print(f"{entries:,} entries: flat {flat:.0f} us; {len(centroids)} lists, trained in {trained:.2f} s of CPU")
    index = empty_lists(centroids, plan.probes)
    index.add_with_ids(stored, np.arange(entries))
    for probes in sorted({plan.probes, plan.probes_for(entries), 2 * plan.probes_for(entries)}):
        index.nprobe = probes
        took = microseconds(lambda vector: search_lists(index, vector, NEIGHBOURS), alike)
        told = ", ".join(f"{name} {recalls(index, each, *exact[name])}" for name, each in asked.items())
        mark = " (the plan's)" if probes == plan.probes_for(entries) else ""
        print(f"  {probes:>4} lists{mark}: {took:.0f} us; recall of 1 / 4: {told}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.index_list_threshold", description=__doc__)
    parser.add_argument("sizes", type=int, nargs="*", default=[4_000, 6_000, 10_000, 16_000, 20_000, 40_000, 80_000])
    faiss.omp_set_num_threads(1)
    for entries in parser.parse_args().sizes:
        measure(entries)


if __name__ == "__main__":
    main()
