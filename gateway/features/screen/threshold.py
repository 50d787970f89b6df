"""The similarity of static vectors below which a question is let go. It follows the hits of a route."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator
from itertools import pairwise

# Static similarities of 875 hits in a stream of 4,653 real questions, with all-MiniLM-L6-v2: (share of hits, quantile).
PRIOR = (
    (0.0, 0.355), (0.0025, 0.374), (0.005, 0.417), (0.01, 0.458), (0.02, 0.511), (0.05, 0.548), (0.1, 0.595),
    (0.2, 0.644), (0.3, 0.671), (0.5, 0.713), (0.7, 0.746), (0.9, 0.793), (1.0, 0.873),
)  # fmt: skip
PRIOR_WORTH = 200  # observations
KEPT = 1_000  # observations; older ones are forgotten
SHARE = 0.007  # share of the hits below the threshold. The aim is 1 %: a quantile of so few values is uncertain


class ScreenThreshold:
    """The similarity below which a question of one route is let go. It loses the share `SHARE` of the recent hits."""

    def __init__(self) -> None:
        self._sorted = list(_prior())
        self._recent: deque[float] = deque()
        self.value = self._sorted[int(SHARE * len(self._sorted))]

    @property
    def observations(self) -> int:
        """The number of hits that it follows now, without the prior."""
        return len(self._recent)

    def observe(self, similarity: float) -> None:
        """Follow a hit, served or lost, whose static vector had this similarity to its nearest neighbour."""
        if len(self._recent) == KEPT:
            del self._sorted[bisect_left(self._sorted, self._recent.popleft())]
        self._recent.append(similarity)
        insort(self._sorted, similarity)
        self.value = self._sorted[int(SHARE * len(self._sorted))]


def _prior() -> Iterator[float]:
    """Yield `PRIOR_WORTH` similarities in ascending order, as `PRIOR` spreads them."""
    segments = pairwise(PRIOR)
    (low, below), (high, above) = next(segments)
    for at in range(PRIOR_WORTH):
        share = (at + 0.5) / PRIOR_WORTH
        while share > high:
            (low, below), (high, above) = next(segments)
        yield below + (above - below) * (share - low) / (high - low)
