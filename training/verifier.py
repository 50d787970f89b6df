"""Trains the verifier's weights: `python -m training.verifier --banking CSV --clinc JSON --model DIR`.

It uses only data that may ship: hand-written wordings, generated pairs, banking77 and clinc150. One seed and one set of
versions give the same weights. `training.combination` and `training.prior` then fit and measure the scores.
"""

# ruff: noqa: S311 (a seed makes it reproducible)
from __future__ import annotations

import argparse
import hashlib
import json
import platform
import random
import time
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import sklearn
from sklearn.metrics import roc_auc_score

from gateway.cache.features import NAMES, FloatArray, features
from training import boosting, grammar, real_questions, wordings
from training.encoder import Encoder
from training.pair import Pair

SEED = 20
HERE = Path(__file__).parent
WEIGHTS = HERE.parent / "gateway" / "cache" / "weights"
ROUNDS, PERTURBED, MINED = 6, 3000, 3000  # fillings of each frame; questions perturbed; questions mined
# The figures below measure the trees by a score that takes their doubt off the similarity: WEIGHT * (1 - p) ** POWER.
WEIGHT, POWER = 0.5, 2.0
UNFITTED = {
    "first": [-6.0, 8.0, -2.0],
    "second": [0.0, 1.0, 0.0, 0.0, 0.0],
}  # until `training.combination` has fitted it
NAMED = ("numbers_swapped", "negation", "opposites", "reversed")  # as gateway.cache.verifiers: doubt is full
# Pairs less similar than this are never looked at (the floor is .6): left out of the fit.
NEAR = 0.5
CREDITS = {
    "wordings": "our own, written by hand (training/wordings)",
    "generated pairs": "our own grammar (training/frames, training/slots.txt)",
    "banking77": "PolyAI, Casanueva et al. 2020, CC BY 4.0",
    "clinc150": "Clinc, Larson et al. 2019, CC BY 3.0",
}


def wording_pairs(encoder: Encoder) -> list[Pair]:
    """Return pairs of hand-written wordings: as written, with one side altered, and beside nearest neighbours."""
    random_ = random.Random(SEED)
    groups = wordings.groups()
    pairs = [*wordings.pairs(groups), *wordings.altered_pairs(groups, random_)]
    pairs += wordings.neighbour_pairs(groups, encoder, random_)
    return list(dict.fromkeys(pair for pair in pairs if pair.asked != pair.stored))


def generated_pairs(banking: Path, clinc: Path, encoder: Encoder) -> list[Pair]:
    random_ = random.Random(SEED)
    real = real_questions.questions(banking, clinc)
    pairs = list(grammar.pairs(HERE, ROUNDS, random_))
    pairs += real_questions.perturbed_pairs(real, grammar.slots(HERE / "slots.txt"), PERTURBED, random_)
    pairs += real_questions.mined_pairs(real, MINED, encoder, random_)
    return list(dict.fromkeys(pair for pair in pairs if pair.asked != pair.stored))


def features_of(pairs: list[Pair], encoder: Encoder) -> tuple[FloatArray, FloatArray]:
    """Return features (n, f) and cosine similarities (n,)."""
    rows = np.vstack([features(pair.asked, [pair.stored]) for pair in pairs])
    return rows, np.array([float(encoder(pair.asked) @ encoder(pair.stored)) for pair in pairs])


def held_out_mask(pairs: list[Pair]) -> npt.NDArray[np.bool_]:
    return np.array([is_held_out(pair.group) for pair in pairs])


@cache
def is_held_out(group: str) -> bool:
    """Return whether the group is held out: one in six, of whose pairs none is fitted.

    A group is a frame, an intent, or the wordings of one question.
    """
    return int(hashlib.sha256(group.encode()).hexdigest(), 16) % 6 == 0


def train(pairs: list[Pair], rows: FloatArray, cosine: FloatArray) -> tuple[dict[str, npt.NDArray[Any]], Any]:
    same, out = np.array([pair.same for pair in pairs]), held_out_mask(pairs)
    kinds = np.array([pair.kind for pair in pairs])
    written = np.isin(kinds, ("wording", "near-miss"))
    altered = np.char.startswith(kinds, "wording-") | (kinds == "neighbour")
    model = boosting.fit(rows[~out], same[~out], NAMES, SEED)
    sure = model.predict_proba(rows)[:, 1]
    named = rows[:, [NAMES.index(column) for column in NAMED]] > 0
    sure = np.where(named.any(1), 0.0, sure)
    score = cosine - WEIGHT * (1 - sure) ** POWER
    figures = {
        kind: {
            f"auc_{what}": round(float(roc_auc_score(same[out & chosen], by[out & chosen])), 4)
            for what, by in (("trees", sure), ("score", score), ("cosine", cosine))
        }
        for kind, chosen in (
            ("wordings", written),
            ("altered wordings", altered),
            ("generated", ~written & ~altered),
        )
    }
    return boosting.arrays(model, "words"), {"words": figures}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("banking", "clinc", "model"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=WEIGHTS)
    given = parser.parse_args()
    started = time.monotonic()
    encoder = Encoder(given.model)
    pairs = wording_pairs(encoder) + generated_pairs(given.banking, given.clinc, encoder)
    rows, cosine = features_of(pairs, encoder)
    near = cosine >= NEAR
    pairs, rows, cosine = [p for p, keep in zip(pairs, near, strict=True) if keep], rows[near], cosine[near]
    arrays, figures = train(pairs, rows, cosine)
    given.out.mkdir(parents=True, exist_ok=True)
    path = given.out / "verifier.npz"
    named: dict[str, Any] = {**arrays, "names": np.array(NAMES)}
    np.savez(path, **named)
    about = {
        "version": 3, "power": POWER, "combination": UNFITTED, "forests": figures,
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(), "bytes": path.stat().st_size,
        "encoder": json.loads((given.model / "manifest.json").read_bytes())["files"]["model.onnx"]["sha256"],
        "pairs": len(pairs), "same": sum(pair.same for pair in pairs), "held_out": int(held_out_mask(pairs).sum()),
        "seed": SEED, "wordings_sha256": wordings.digest(), "licence": "Apache-2.0", "made_from": CREDITS,
        "versions": {"python": platform.python_version(), "numpy": np.__version__, "scikit-learn": sklearn.__version__},
    }  # fmt: skip
    (given.out / "verifier.json").write_text(json.dumps(about, indent=2) + "\n")
    print(f"{len(pairs)} pairs, {time.monotonic() - started:.0f} s: {json.dumps(figures)}")  # noqa: T201


if __name__ == "__main__":
    main()
