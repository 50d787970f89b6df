"""Decide whether an upstream fails so much more often than its peers that it is ejected for a while. Pure.

Envoy's outlier detection compares success rates too, but needs five hosts with a hundred calls each in ten seconds.
Backends here have two to ten upstreams and calls that take seconds. So each upstream is compared with all others
together.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

HALF_LIFE_S = 10.0  # Envoy's interval is 10 s
MIN_CALLS = 20.0  # of the upstream, and of the others together; below this a rate says too little
# With 20 calls, a failure rate of 20 % looks like 50 % in 0.3 % of the cases (binomial).
MARGIN = 0.3  # by which the failure rate must exceed that of the others


class Record:
    """`Record` counts recent successes and failures. Each counts half as much after `HALF_LIFE_S`."""

    __slots__ = ("_failed", "_ok", "_updated_at")

    def __init__(self) -> None:
        self._ok = self._failed = self._updated_at = 0.0

    def add(self, *, ok: bool, now: float) -> None:
        # the same as in `counts`
        weight = math.exp2((self._updated_at - now) / HALF_LIFE_S) if now > self._updated_at else 1.0
        self._ok = self._ok * weight + ok
        self._failed = self._failed * weight + (not ok)
        self._updated_at = now

    def counts(self, now: float) -> tuple[float, float]:
        """Return (succeeded, failed), weighted by age."""
        weight = math.exp2(-max(0.0, now - self._updated_at) / HALF_LIFE_S)
        return self._ok * weight, self._failed * weight

    def reset(self) -> None:
        self._ok = self._failed = 0.0


def is_outlier(candidate: tuple[float, float], others: Sequence[tuple[float, float]]) -> bool:
    """Return whether the candidate fails more often. Counts are (succeeded, failed)."""
    calls = sum(candidate)
    calls_of_others = sum(map(sum, others))
    if calls < MIN_CALLS or calls_of_others < MIN_CALLS:
        return False
    return candidate[1] / calls >= sum(failed for _, failed in others) / calls_of_others + MARGIN


def may_eject(out: int, upstreams: int) -> bool:
    """Return whether another upstream may be ejected when `out` of them already are.

    At most half may be: the rest must carry the load, and a failure of most upstreams is hardly their own fault.
    """
    return 2 * (out + 1) <= upstreams


# Page's cumulative sum ("Continuous Inspection Schemes", Biometrika 1954). It needs no rate of calls and no window. An
# answer without use adds what it exceeds the others' share by, and each good answer takes `MARGIN` back. Five such
# answers in a row reach the limit; an upstream that gives every other one reaches it after some fifteen.
SUSPICION_LIMIT = 3.0
RETURN_SUSPICION = 2.0  # after an ejection: a relapse is noticed after two answers


class Suspicion:
    """`Suspicion` adds up the answers of one upstream that were of no use, against those of the others."""

    __slots__ = ("score",)

    def __init__(self) -> None:
        self.score = 0.0

    def relieve(self) -> None:
        """Record an answer of use."""
        if self.score:
            self.score = max(0.0, self.score - MARGIN)

    def add(self, others: Sequence[tuple[float, float]]) -> None:
        """Record an answer of no use. `others` are the counts (of use, of none) of the other upstreams."""
        bad, calls = sum(failed for _, failed in others), sum(map(sum, others))
        self.score += max(0.0, 1.0 - bad / (calls + 1.0) - MARGIN)

    @property
    def is_proven(self) -> bool:
        return self.score >= SUSPICION_LIMIT
