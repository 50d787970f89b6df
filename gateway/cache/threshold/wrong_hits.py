"""How often a route serves a wrong answer, from a sample of its hits: an estimate with its interval. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from gateway.cache.threshold.predictive import wilson

MEMORY = 20_000  # requests after which a hit counts 1/e


class Label(StrEnum):
    """What the comparison of two answers says of serving one for the other."""

    RIGHT = "right"
    WRONG = "wrong"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Estimate:
    """Shares in [0, 1] with their 95 % interval; NaN without any audit."""

    of_all: float  # wrong hits over all requests
    of_all_low: float
    of_all_high: float
    of_served: float  # wrong hits over semantic hits
    of_served_low: float
    of_served_high: float


@dataclass(slots=True)
class WrongHits:
    """Running sums, faded by the requests that have come since.

    Hits are audited with different chances, so each counts with the inverse of its own (Hajek's estimator); the
    interval is Wilson's for the effective number of audits (Kish 1965). What an audit could not tell counts as right at
    the interval's low end and as wrong at its high end. Feedback comes from those who complain: it lifts the low end,
    and is no sample.
    """

    requests: float = 0.0
    served: float = 0.0
    weights: float = 0.0  # of audits with an answer
    squares: float = 0.0
    wrong: float = 0.0
    undecided: float = 0.0
    undecided_squares: float = 0.0
    complaints: float = 0.0

    def advance(self, requests: int) -> None:
        if requests <= 0:
            return
        fade = (1 - 1 / MEMORY) ** requests
        self.requests = self.requests * fade + (1 - fade) * MEMORY
        self.served *= fade
        self.weights *= fade
        self.squares *= fade * fade
        self.wrong *= fade
        self.undecided *= fade
        self.undecided_squares *= fade * fade
        self.complaints *= fade

    def hit(self, requests: int = 0) -> None:
        """After so many requests more."""
        self.advance(requests)
        self.served += 1

    def audited(self, label: Label, chance: float) -> None:
        """A served hit that was chosen with this chance, in (0, 1]."""
        weight = 1 / chance
        if label is Label.UNDECIDED:
            self.undecided += weight
            self.undecided_squares += weight * weight
            return
        self.weights += weight
        self.squares += weight * weight
        self.wrong += weight if label is Label.WRONG else 0.0

    def complained(self) -> None:
        self.complaints += 1

    def estimate(self) -> Estimate:
        served = min(1.0, self.served / self.requests) if self.requests > 0 else 0.0
        least = min(1.0, self.complaints / self.served) if self.served > 0 else 0.0
        whole, squares = self.weights + self.undecided, self.squares + self.undecided_squares
        if whole <= 0:
            high = served if self.requests > 0 else 1.0
            return Estimate(math.nan, least * served, high, math.nan, least, 1.0)
        trials = whole * whole / squares
        low = max(least, wilson(self.wrong / whole, trials)[0])
        high = max(low, wilson((self.wrong + self.undecided) / whole, trials)[1])
        rate = self.wrong / self.weights if self.weights > 0 else math.nan
        return Estimate(rate * served, low * served, high * served, rate, low, high)
