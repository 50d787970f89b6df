"""Tells at once that nothing stored resembles a question, before the question is embedded.

A static vector (gateway/adapters/onnx/static_encoder.py) searches the index of real vectors. If even its nearest
neighbour is far away, a lookup with the real vector would nearly always find nothing to serve either. The threshold
follows the hits of the route, so that few are lost (docs/decisions/0056-screen.md).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from gateway.entries import Embedding, Neighbour, Vector
from gateway.ports import VectorIndex

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


@dataclass(frozen=True, slots=True)
class Screening:
    """How near a question is to all that is stored in its scope."""

    similarity: float  # of its static vector and the nearest real one, in [0, 1]
    threshold: float

    @property
    def is_far(self) -> bool:
        """Whether nothing stored resembles the question, so that it needs no lookup."""
        return self.similarity < self.threshold

    def __str__(self) -> str:
        best = f"the static vector's best similarity is {self.similarity:.2f}"
        if self.is_far:
            return f"{best}, below {self.threshold:.2f}: nothing stored resembles the question, so there is no lookup"
        return f"{best}, not below {self.threshold:.2f}: there is a lookup"


class TextReader(Protocol):
    def encode(self, text: str) -> Embedding | None:
        """Return a static vector within microseconds, or None if no token has a meaning."""


class Screen:
    """`Screen` reads the questions of all routes of a space, and searches the index of the space."""

    def __init__(self, reader: TextReader, index: VectorIndex) -> None:
        self._reader = reader
        self._index = index
        self._thresholds: dict[str, ScreenThreshold] = {}

    def threshold(self, route: str) -> ScreenThreshold:
        """Return the threshold of a route. It outlives a change of the policy."""
        threshold = self._thresholds.get(route)
        if threshold is None:  # not `setdefault`: a new threshold computes its prior, some 30 us
            threshold = self._thresholds[route] = ScreenThreshold()
        return threshold

    def read(self, question: str) -> Embedding | None:
        """Return the static vector. `partial` is that of the real one. Return None if no token has a meaning."""
        return self._reader.encode(question)

    def look(self, route: str, scope: str, vector: Vector) -> Screening | Awaitable[Screening]:
        """Search the nearest stored question by a static vector. The result is awaitable if the index is large.

        Raise `IndexUnavailable`.
        """
        neighbours = self._index.search_nowait(scope, vector, 1)
        return self._search(route, scope, vector) if neighbours is None else self._screening(route, neighbours)

    async def _search(self, route: str, scope: str, vector: Vector) -> Screening:
        return self._screening(route, await self._index.search(scope, vector, 1))

    def _screening(self, route: str, neighbours: list[Neighbour]) -> Screening:
        return Screening(neighbours[0].similarity if neighbours else 0.0, self.threshold(route).value)
