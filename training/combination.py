"""Fits the few numbers that combine similarity, trees and cross-encoder to one score.

    python -m training.combination --eval DIR --model DIR

It reads the calibration split of the development pairs, the everyday pairs, and held-out wordings. The texts of the
development pairs may not train weights that ship; ten numbers that are chosen on them say nothing of the texts. It
writes `combination` into verifier.json and prints how well each score orders the pairs.
"""

# ruff: noqa: T201 (a command prints)
from __future__ import annotations

import argparse
import importlib
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from gateway.adapters.onnx.cross_encoder import OnnxCrossEncoder
from gateway.cache.features import FloatArray
from gateway.cache.verifiers import ABOUT_FILE, FLOOR, WEIGHTS, LearnedVerifier, SecondCombination, load_weights
from gateway.features.tuning.numbers import columns_of
from gateway.ports import StoredCandidate
from training import wordings
from training.encoder import Encoder
from training.prior import compact
from training.verifier import SEED, is_held_out

WRITTEN = 3000  # pairs of held-out wordings, drawn at random
# The weight of each source in all pairs. The development pairs are real duplicates, the others harder paraphrases: with
# more weight on these, more traps are told apart, and fewer real duplicates are served at the same share of wrong ones.
SHARES = {"development": 0.93, "everyday": 0.06, "wordings": 0.01}
# The weights of few entries are fitted on hard pairs alone: the questions of such a cache often differ by one word.
FEW_SHARES = {"development": 0.0, "everyday": 0.4, "wordings": 0.6}
# Caches that fill with 60 questions of banking77, the densest domain at hand, give the scale of few entries. From these
# log-odds of the fit on, 1 % of all requests are served wrongly by its labels: -1.4 with 1 to 4 entries, -0.9 with 5 to
# 8, 0.1 up to 16, 0.7 up to 32 and 0.9 up to 60. A route that has learned nothing serves from `COLD` on at 1 %.
FEW_AT_ONE, FEW_RISE = -0.9, 0.5  # log-odds of the fit at one entry, and the rise for each e-fold of entries
# The fit is flatter than the shipped score: without a factor, a promise of 2 % would allow 3 % there.
FEW_STEEPNESS, COLD = 1.7, 0.92
# Signs of the weights: of similarity and doubt, and of those of `SecondCombination` behind the bias.
SIGNS = {"first": [1, -1], "second": [1, -1, 1, 1, -1, 1, -1, -1, 1]}
BIN = 0.05  # of similarity
# The quantiles of the logits that `LogitRange` has. A pair that the highest one would not get served is refused unread.
MOST_LOGITS, LEAST_LOGITS = 0.97, 0.001
Labelled = tuple[str, str, bool]
"""A new question, a stored one, and whether they ask the same."""


def sources(evaluation: Path) -> dict[str, list[Labelled]]:
    sys.path.insert(0, str(evaluation))
    tools: Any = importlib.import_module("evaldata")
    everyday = map(json.loads, (evaluation / "data" / "everyday_dev.jsonl").read_text("utf-8").splitlines())
    held = [group for group in wordings.groups() if is_held_out(group.name)]
    written = random.Random(SEED).sample(list(wordings.pairs(held)), WRITTEN)  # noqa: S311 (a seed makes it reproducible)
    return {
        "development": [(row["b"], row["a"], bool(row["y"])) for row in tools.qqp("calib")],
        "everyday": [(row["b"], row["a"], bool(row["y"])) for row in everyday],
        "wordings": [(pair.asked, pair.stored, pair.same) for pair in written],
    }


class Columns:
    """Computes the inputs of the score: similarity, doubt of the trees, logit of the cross-encoder, words shared."""

    def __init__(self, model: Path, weights: Path) -> None:
        self._encoder = Encoder(model)
        self._learned = LearnedVerifier(load_weights(weights))
        self._cross_encoder = OnnxCrossEncoder(model, weights)

    def __call__(self, pairs: Sequence[Labelled]) -> tuple[FloatArray, FloatArray]:
        """Return (n, 4) inputs and (n,) labels. Pairs with a veto count, as no rule finds all that are like them."""
        inputs = [self._row(asked, stored) for asked, stored, _ in pairs]
        return np.array(inputs), np.array([float(same) for *_, same in pairs])

    def _row(self, asked: str, stored: str) -> tuple[float, float, float, float]:
        similarity = float(np.clip(self._encoder(asked) @ self._encoder(stored), 0.0, 1.0))
        (opinion,) = self._learned.opinions(asked, [StoredCandidate(stored, similarity)])
        (logit,) = self._cross_encoder.score(asked, [stored])
        return similarity, opinion.trees_doubt, logit, opinion.words_shared


def fit(rows: FloatArray, same: FloatArray, weights: FloatArray, signs: Sequence[int]) -> list[float]:
    """Fit bias and weights. `rows`: (n, k); `signs`: (k,) of the weights. A weight with another sign is 0: it would
    serve more of what the trees or the cross-encoder doubt."""
    use = np.ones(len(signs), np.bool_)
    while True:
        model = LogisticRegression(C=100.0).fit(rows[:, use], same, sample_weight=weights)
        found = np.zeros(len(signs))
        found[use] = model.coef_[0]
        if not (wrong := found * np.array(signs) < 0).any():
            return [round(float(number), 4) for number in (model.intercept_[0], *found)]
        use &= ~wrong


def few_entries(fitted: Sequence[float]) -> list[float]:
    """Return the numbers of `FewEntriesCombination`: the fitted ones on the scale of many entries, and the crowding."""
    bias, *weights = (FEW_STEEPNESS * number for number in fitted)
    numbers = (bias + COLD - FEW_STEEPNESS * FEW_AT_ONE, *weights, FEW_STEEPNESS * FEW_RISE)
    return [round(number, 4) for number in numbers]


def logit_range(similarity: FloatArray, logit: FloatArray) -> dict[str, Any]:
    """Return the lines of `LogitRange` over bins of the similarity, (n,), and of the cross-encoder's logits, (n,)."""
    read = similarity >= FLOOR
    bins = np.minimum(((similarity[read] - FLOOR) / BIN).astype(int), round((1.0 - FLOOR) / BIN) - 1)
    found = {at: logit[read][bins == at] for at in np.unique(bins)}
    centres = np.array([(at + 0.5) * BIN / (1.0 - FLOOR) for at in found])  # 0 at the floor, 1 at a similarity of 1

    def line(quantile: float) -> list[float]:
        slope, start = np.polyfit(centres, [np.quantile(each, quantile) for each in found.values()], 1)
        return [round(float(start), 2), round(float(start + slope), 2)]

    lowest = round(float(np.quantile(logit[read], LEAST_LOGITS)), 2)
    return {"highest": line(MOST_LOGITS), "typical": line(0.5), "lowest": lowest}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--eval", type=Path, required=True)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    given = parser.parse_args()
    columns, found = Columns(given.model, given.out), sources(given.eval)
    read = {name: columns(pairs) for name, pairs in found.items()}
    rows, same = (np.concatenate(each) for each in zip(*read.values(), strict=True))
    weights, hard = (
        np.concatenate([np.full(len(each), shares[name] * len(rows) / len(each)) for name, (_, each) in read.items()])
        for shares in (SHARES, FEW_SHARES)
    )
    both = columns_of(SecondCombination, rows.tolist())[:, 1:]
    first = fit(rows[:, :2], same, weights, SIGNS["first"])
    second = fit(both, same, weights, SIGNS["second"])
    about = json.loads((given.out / ABOUT_FILE).read_text())
    read_pairs = (hard > 0) & (rows[:, 0] >= FLOOR)
    few = few_entries(fit(both[read_pairs], same[read_pairs], hard[read_pairs], SIGNS["second"]))
    about["combination"] = {"first": first, "second": second, "few": few}
    about["logits"] = logit_range(rows[:, 0], rows[:, 2])
    (given.out / ABOUT_FILE).write_text(compact(json.dumps(about, indent=2)) + "\n")
    print(about["combination"], about["logits"])
    scores = {"similarity": rows[:, 0], "first": rows[:, :2] @ first[1:], "logit": rows[:, 2]}
    scores |= {"second": both @ second[1:], "few": both @ few[1:-1]}
    start = 0
    for name, (_, each) in read.items():
        part = slice(start, start := start + len(each))
        print(name, {key: round(float(roc_auc_score(same[part], values[part])), 4) for key, values in scores.items()})


if __name__ == "__main__":
    main()
