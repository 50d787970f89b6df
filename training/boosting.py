"""Fits boosted trees that only lower their opinion if two questions differ more, and writes them as arrays."""

# ruff: noqa: E501 (tables of arrays)
from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.ensemble import HistGradientBoostingClassifier

from gateway.cache.features import FloatArray

# More of these never speaks for the same question, and more of those never against it: a rule that generated data
# alone would break in places where real questions live.
AGAINST = ("_swapped", "_extra", "_differ", "negation", "opposites", "reversed", "inverted", "tense", "modal", "person",
           "conditions")  # fmt: skip
FOR = ("_shared", "contained", "ratio")
TREES, LEAVES, DEPTH, RATE, L2, LEAST = 150, 16, 5, 0.08, 5.0, 60


def sign(name: str) -> int:
    if any(part in name for part in AGAINST):
        return -1
    return 1 if any(part in name for part in FOR) else 0


def fit(rows: FloatArray, same: npt.NDArray[np.bool_], names: tuple[str, ...], seed: int) -> Any:
    model = HistGradientBoostingClassifier(
        max_iter=TREES, max_leaf_nodes=LEAVES, max_depth=DEPTH, learning_rate=RATE, l2_regularization=L2,
        min_samples_leaf=LEAST, monotonic_cst=[sign(name) for name in names], random_state=seed,
        early_stopping=False,
    )  # fmt: skip
    return model.fit(rows, same)


def arrays(model: Any, name: str) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays that `gateway.cache.forest.from_arrays` reads."""
    trees = [tree[0].nodes for tree in model._predictors]
    starts = np.cumsum([0, *(len(nodes) for nodes in trees)])[:-1]
    own = [np.arange(len(nodes)) for nodes in trees]
    leaf = [nodes["is_leaf"].astype(bool) for nodes in trees]
    joined = np.concatenate
    return {
        f"{name}/roots": starts.astype(np.int32),
        f"{name}/feature": joined([np.where(f, 0, n["feature_idx"]) for n, f in zip(trees, leaf, strict=True)]).astype(np.int16),
        f"{name}/threshold": joined([np.where(f, 0, n["num_threshold"]) for n, f in zip(trees, leaf, strict=True)]),
        f"{name}/left": joined([np.where(f, o, n["left"]) + s for n, f, o, s in zip(trees, leaf, own, starts, strict=True)]).astype(np.int32),
        f"{name}/right": joined([np.where(f, o, n["right"]) + s for n, f, o, s in zip(trees, leaf, own, starts, strict=True)]).astype(np.int32),
        f"{name}/value": joined([np.where(f, n["value"], 0) for n, f in zip(trees, leaf, strict=True)]),
        f"{name}/depth_base": np.array([max(int(n["depth"].max()) for n in trees), float(np.ravel(model._baseline_prediction)[0])]),
    }  # fmt: skip
