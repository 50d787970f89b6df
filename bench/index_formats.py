"""Compares formats of the vectors in the lists, at 200,000 entries and one thread: `python -m bench.index_formats`."""

from __future__ import annotations

import argparse
import time
from typing import Any

import faiss
import numpy as np

from bench.questions import DIMENSION, Matrix, Questions
from gateway.adapters.faiss.rebuilder import SAMPLE_PER_LIST, IndexPlan, train_centroids

ASKED = 1000
FORMS = {
    "float32": None,
    "float16": faiss.ScalarQuantizer.QT_fp16,
    "8 bits": faiss.ScalarQuantizer.QT_8bit,
}


def make_vectors(form: int | None, centroids: Matrix, stored: Matrix, sample: Matrix) -> Any:
    quantizer = faiss.IndexFlatIP(DIMENSION)
    quantizer.add(centroids)
    lists = len(centroids)
    if form is None:
        index: Any = faiss.IndexIVFFlat(quantizer, DIMENSION, lists, faiss.METRIC_INNER_PRODUCT)
    else:
        index = faiss.IndexIVFScalarQuantizer(quantizer, DIMENSION, lists, form, faiss.METRIC_INNER_PRODUCT, False)
    index.train(sample)  # the ranges of 8 bits; the centroids are there
    for i in range(0, len(stored), 20_000):
        index.add(stored[i : i + 20_000])
    return index, quantizer  # which the index only borrows


def search(index: Any, asked: Matrix) -> tuple[Matrix, Any, list[float]]:
    """Return the best similarity and row for each, (n,), and milliseconds."""
    best, rows, took = np.empty(len(asked), np.float32), np.empty(len(asked), np.int64), []
    for i, vector in enumerate(asked):
        begun = time.perf_counter()
        similarities, found = index.search(vector[np.newaxis], 4)
        took.append((time.perf_counter() - begun) * 1e3)
        best[i], rows[i] = similarities[0, 0], found[0, 0]
    return best, rows, took


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.index_formats", description=__doc__)
    parser.add_argument("--entries", type=int, default=200_000)
    entries = parser.parse_args().entries
    faiss.omp_set_num_threads(1)
    questions = Questions(7)
    stored = questions.sample(entries)
    hits, fresh = questions.paraphrase(stored[questions.pick(ASKED, entries)]), questions.sample(ASKED)
    exact = {name: faiss.knn(asked, stored, 1, metric=faiss.METRIC_INNER_PRODUCT)
             for name, asked in (("hits", hits), ("fresh", fresh))}  # fmt: skip
    lists = IndexPlan().lists(entries)
    sample = stored[questions.pick(min(entries, SAMPLE_PER_LIST * lists), entries)]
    centroids = train_centroids(sample, lists, lambda: None)
    print(f"{'form':<10}{'probes':>8}{'bytes':>8}{'p50 ms':>9}{'hits':>9}{'fresh':>9}{'largest error of a hit':>25}")
    for name, form in FORMS.items():
        index, _quantizer = make_vectors(form, centroids, stored, sample)
        for probes in (4, 8, 16):
            index.nprobe = probes
            best, rows, took = search(index, hits)
            _, others, _ = search(index, fresh)
            found, similar = rows == exact["hits"][1][:, 0], exact["fresh"][1][:, 0]
            error = np.abs(best - exact["hits"][0][:, 0])[found].max()
            print(
                f"{name:<10}{probes:>8}{index.code_size:>8}{np.median(took):>9.3f}"
                f"{found.mean():>9.4f}{(others == similar).mean():>9.4f}{error:>25.1e}"
            )


if __name__ == "__main__":
    main()
