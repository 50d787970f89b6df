"""Which upstream fails so much more often than the others of its backend that it is left out for a while. Pure.

Envoy's outlier detection compares success rates too, but asks for five hosts of a hundred calls each in ten seconds.
Backends here have two to ten upstreams and calls that take seconds, so each is held against all others together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

HALF_LIFE_S = 10.0  # Envoy looks at intervals of 10 s
MIN_CALLS = 20.0  # of the upstream, and of the others together: below it a share says too little
# With 20 calls a share of failures of 20 % looks like 50 % in 0.3 % of the cases (binomial).
MARGIN = 0.3  # of the calls: by how much more often it has to fail


class Record:
    """Calls that succeeded and failed of late, each counting half as much after `HALF_LIFE_S`."""

    __slots__ = ("_failed", "_ok", "_updated_at")

    def __init__(self) -> None:
        self._ok = self._failed = self._updated_at = 0.0

    def add(self, *, ok: bool, now: float) -> None:
        weight = math.exp2((self._updated_at - now) / HALF_LIFE_S) if now > self._updated_at else 1.0  # as in `counts`
        self._ok = self._ok * weight + ok
        self._failed = self._failed * weight + (not ok)
        self._updated_at = now

    def counts(self, now: float) -> tuple[float, float]:
        """-> (succeeded, failed)"""
        weight = math.exp2(-max(0.0, now - self._updated_at) / HALF_LIFE_S)
        return self._ok * weight, self._failed * weight

    def reset(self) -> None:
        self._ok = self._failed = 0.0


def is_outlier(candidate: tuple[float, float], others: Sequence[tuple[float, float]]) -> bool:
    """Each as (succeeded, failed)."""
    calls = sum(candidate)
    calls_of_others = sum(map(sum, others))
    if calls < MIN_CALLS or calls_of_others < MIN_CALLS:
        return False
    return candidate[1] / calls >= sum(failed for _, failed in others) / calls_of_others + MARGIN


def may_eject(out: int, upstreams: int) -> bool:
    """Whether one more may be left out besides the `out` that are: never more than half of them, as the rest has to
    bear the load, and what fails on most of them is hardly an upstream's own fault."""
    return 2 * (out + 1) <= upstreams
