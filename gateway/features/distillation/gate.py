"""The gate: a new version is published unless it is worse than the newest one of the repository. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.cache.threshold.wrong_hits import chance_of_heads

CONFIDENCE = 0.95  # one-sided


@dataclass(frozen=True, slots=True)
class VersionVerdict:
    """The gate's decision over held-out rows that both versions have answered. `why` is plain words."""

    passed: bool
    why: str
    version: int  # the one that was compared with
    rows: int
    before: int  # rows that this version answers right
    after: int  # rows that the new one answers right


def judge(version: int, before: NDArray[np.bool_], after: NDArray[np.bool_]) -> VersionVerdict:
    """Compare the answers of `version`, (rows,), with those of the new version to the same rows.

    The sign test over the rows where just one of them is right decides (McNemar, 1947, in its exact form).
    """
    won, lost = int((after & ~before).sum()), int((before & ~after).sum())
    passed = chance_of_heads(won, won + lost) > 1.0 - CONFIDENCE
    why = f"{won} answers became right and {lost} became wrong"
    return VersionVerdict(passed, why, version, len(before), int(before.sum()), int(after.sum()))
