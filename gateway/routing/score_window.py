"""What complexities a route has met lately: of the last requests, in order of size. Pure."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence

CAPACITY = 500  # the standard error of a quantile of .3 is two points then; what `share` does about debt takes it out
# Believed before anything was met: scores spread evenly over [0, 1], as calibrated probabilities of all sorts of
# questions are. One leaves with each of the first requests.
PRIOR = tuple((k + 0.5) / 20 for k in range(20))


class Scores:
    """A window over requests: a regime of the traffic is forgotten after `capacity` of them. 5 us an addition."""

    def __init__(self, known: Iterable[float] = (), capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._prior = list(PRIOR)
        self._recent: deque[float] = deque()
        self._sorted = sorted(PRIOR)
        for score in known:
            self.add(score)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, score: float) -> None:
        if self._prior:
            self._drop(self._prior.pop())
        elif len(self._recent) >= self._capacity:
            self._drop(self._recent.popleft())
        self._recent.append(score)
        insort(self._sorted, score)

    def above(self, score: float) -> int:
        """How many are higher."""
        return len(self._sorted) - bisect_right(self._sorted, score)

    def equal(self, score: float) -> int:
        return bisect_right(self._sorted, score) - bisect_left(self._sorted, score)

    def top(self, share: float) -> float:
        """The score above which at most this share lies: 1 for none of them, below all of them for all."""
        count = int(share * len(self._sorted) + 1e-9)
        if count <= 0:
            return 1.0
        return 0.0 if count >= len(self._sorted) else self._sorted[-count - 1]

    @property
    def ordered(self) -> Sequence[float]:
        """Lowest first."""
        return self._sorted

    @property
    def recent(self) -> tuple[float, ...]:
        """Oldest first, what was believed before left out: to be kept over a restart."""
        return tuple(self._recent)

    def _drop(self, score: float) -> None:
        del self._sorted[bisect_left(self._sorted, score)]
