"""Compares the cross-encoder with the other verifiers: `python -m training.cross_measure --eval DIR --model DIR`.

The development pairs only measure. A blend that ships is fitted on held-out wordings, or has one fixed weight. The same
blend fitted on the calibration split shows the effect of better data.
"""

# ruff: noqa: S311, T201 (a seed makes it reproducible; a command prints)
from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.linear_model import LogisticRegression

from gateway.adapters.onnx.cross_encoder import OnnxCrossEncoder
from gateway.cache.features import FloatArray
from gateway.cache.verifiers import WEIGHTS, LearnedVerifier, load_weights
from training import wordings
from training.encoder import Encoder
from training.verifier import SEED, held_out

COSINE, LOGIT, FOREST = 0, 1, 2  # columns
WEIGHED = (
    (0, 0),
    (0.5, 0),
    (0, 0.1),
    (0, 0.2),
    (0, 0.3),
    (0.25, 0.1),
    (0.25, 0.2),
    (0.25, 0.3),
    (0.5, 0.1),
    (0.5, 0.2),
    (0.5, 0.3),
)
Scorer = Callable[[FloatArray], FloatArray]


class Rows:
    """Cosine, the cross-encoder's logit and the trees' probability of pairs."""

    def __init__(self, model: Path, weights: Path) -> None:
        self._encoder, self.cross = Encoder(model), OnnxCrossEncoder(model, weights)
        self._weights = load_weights()
        self._verifier = LearnedVerifier(self._weights)

    def __call__(self, pairs: Sequence[tuple[str, str]]) -> FloatArray:
        """(n, 3)"""
        return np.array([self._row(asked, stored) for asked, stored in pairs])

    def _row(self, asked: str, stored: str) -> list[float]:
        cosine = float(self._encoder(asked) @ self._encoder(stored))
        (score,) = self._verifier.margins(asked, [stored], [cosine])
        doubt = max(0.0, cosine - score) / self._weights.weight
        return [cosine, self.cross.score(asked, [stored])[0], 1.0 - doubt ** (1.0 / self._weights.power)]


def sure(logits: FloatArray) -> FloatArray:
    return np.asarray(1.0 / (1.0 + np.exp(-logits)))


def doubted(rows: FloatArray, trees: float, cross: float) -> FloatArray:
    """Similarity, less what the trees doubt, less what the cross-encoder doubts."""
    return np.asarray(rows[:, COSINE] - trees * (1 - rows[:, FOREST]) ** 2 - cross * (1 - sure(rows[:, LOGIT])))


def scorers(fitted_on: Mapping[str, tuple[FloatArray, npt.NDArray[Any]]]) -> dict[str, Scorer]:
    """Every way to make one score of a row: with plain weights, and with weights fitted on each of these."""
    found: dict[str, Scorer] = {"cross-encoder": lambda rows: rows[:, LOGIT]}
    for trees, cross in WEIGHED:
        found[f"cosine, trees {trees}, cross {cross}"] = partial(doubted, trees=trees, cross=cross)
    for name, columns in (("cosine, cross", [COSINE, LOGIT]), ("cosine, cross, trees", [COSINE, LOGIT, FOREST])):
        for source, (rows, same) in fitted_on.items():
            model = LogisticRegression(C=1e6, class_weight="balanced").fit(rows[:, columns], same)
            weights = [round(float(weight), 3) for weight in (*model.coef_[0], model.intercept_[0])]
            found[f"logistic({name}) on {source} {weights}"] = partial(_fitted, model=model, columns=columns)
    return found


def _fitted(rows: FloatArray, model: Any, columns: list[int]) -> FloatArray:
    return np.asarray(model.decision_function(rows[:, columns]))


def served(pairs: Sequence[Mapping[str, Any]], scores: FloatArray, least: float) -> dict[str, str]:
    """Word swaps and all else: right and wrong pairs that are served."""
    same, hit = np.array([pair["same"] for pair in pairs], bool), scores >= least
    swaps = np.array([pair["kind"] == "word-swap" for pair in pairs])
    counts = {}
    for name, of in (("traps", ~swaps), ("swaps", swaps)):
        right, wrong = of & same, of & ~same
        if of.any():
            counts[name] = f"{(hit & right).sum()}/{right.sum()} right, {(hit & wrong).sum()}/{wrong.sum()} wrong"
    return counts


def latency(cross: OnnxCrossEncoder, pairs: Sequence[tuple[str, str]]) -> dict[str, float]:
    """p50 in milliseconds for so many stored questions."""
    found = {}
    for many in (1, 2, 4):
        times = []
        for asked, stored in pairs[:400]:
            started = time.perf_counter()
            cross.score(asked, [stored] * many)
            times.append(1000 * (time.perf_counter() - started))
        found[f"k={many}"] = round(float(np.median(times)), 2)
    return found


def own_pairs(rows: Rows) -> dict[str, tuple[FloatArray, npt.NDArray[Any]]]:
    """Held-out wordings as they were written, and these with the altered ones."""
    groups = wordings.groups()
    written, altered = list(wordings.written(groups)), list(wordings.altered(groups, random.Random(SEED)))
    found = {}
    for name, pairs in (("wordings", written), ("wordings, altered too", written + altered)):
        chosen = [pair for pair, out in zip(pairs, held_out(pairs), strict=True) if out]
        found[name] = rows([(pair.asked, pair.stored) for pair in chosen]), np.array([pair.same for pair in chosen])
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--weights", type=Path, default=WEIGHTS)
    parser.add_argument("--traps", type=Path, nargs="*", default=[])
    given = parser.parse_args()
    sys.path.insert(0, str(given.eval))
    tools, metrics = importlib.import_module("evaldata"), importlib.import_module("cache_metrics")
    rows = Rows(given.model, given.weights)
    samples = tools.qqp_sample("calib", 2500), tools.qqp_sample("test", 5000)
    calibration, test = (rows([(each["b"], each["a"]) for each in sample]) for sample in samples)
    labels = [np.array([each["y"] for each in sample]) for sample in samples]
    traps = {path: [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] for path in given.traps}
    trapped = {path: rows([(pair["asked"], pair["stored"]) for pair in pairs]) for path, pairs in traps.items()}
    for name, scorer in scorers({"calibration": (calibration, labels[0]), **own_pairs(rows)}).items():
        scores = scorer(calibration), scorer(test)
        metrics.show(metrics.report(scores[0], labels[0], scores[1], labels[1], name))
        metrics.show(metrics.report(scores[0], labels[0], scores[0], labels[0], "  on the calibration split itself"))
        for path, pairs in traps.items():
            for budget in (0.01, 0.05):
                least = metrics.thr_for_fpr(scores[0][labels[0] == 0], budget)
                found = served(pairs, scorer(trapped[path]), least)
                print(f"    {path.parent.name}/{path.name} at {budget:.0%}: {found}", flush=True)
    print("ms for so many stored questions:", latency(rows.cross, [(each["b"], each["a"]) for each in samples[0]]))


if __name__ == "__main__":
    main()
