"""Estimate how often a route serves a wrong answer, with an interval, from a sample of its hits. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum


def wilson_interval(rate: float, trials: float, z: float = 1.96) -> tuple[float, float]:
    """Return the score interval of a share (Wilson 1927). `trials` may be an effective number. z = 1.96: 95 %."""
    if trials <= 0:
        return 0.0, 1.0
    square = z * z / trials
    centre = (rate + square / 2) / (1 + square)
    half = z * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


def chance_of_heads(heads: int, coins: int) -> float:
    """Return the probability of at most `heads` heads among fair coins. It is the sign test, one-sided."""
    return float(sum(math.comb(coins, each) for each in range(heads + 1)) / 2**coins)


MEMORY = 20_000  # requests after which a hit's weight is 1/e

LEAST_TRIALS = 0.5  # audits, by their information: with less and no fault there is an interval and no figure


class Label(StrEnum):
    """The result of comparing two answers: may one be served for the other?"""

    RIGHT = "right"
    WRONG = "wrong"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class WrongHitEstimate:
    """Shares in [0, 1] with their 95 % intervals; NaN without any audit."""

    of_all: float  # wrong hits over all requests
    of_all_low: float
    of_all_high: float
    of_served: float  # wrong hits over semantic hits
    of_served_low: float
    of_served_high: float


@dataclass(slots=True)
class WrongHits:
    """Running sums of hits and audits, faded by the requests since.

    Hits are audited with different probabilities, so each counts with the inverse of its own (Hajek's estimator). The
    interval is Wilson's for the effective number of audits (Kish 1965). An undecided audit counts as right at the low
    end and as wrong at the high end. Feedback raises only the low end: it comes from users who complain and is no
    sample.

    An audit compares answers, and the estimate is about questions. The answer to another question is equal by chance c,
    as before a classifier (`gateway.cache.threshold.answer_shares`). Audits then find a share 1 - c of the hits that
    are wrong by question. So an audit counts as 1 - c audits, and a wrong one in full. Without information there is no
    figure, and the interval holds all that is served.
    """

    requests: float = 0.0
    served: float = 0.0
    weights: float = 0.0  # of decided audits
    squares: float = 0.0
    wrong: float = 0.0
    undecided: float = 0.0
    undecided_squares: float = 0.0
    complaints: float = 0.0
    information: float = 0.0  # of decided audits: their weights times 1 - c

    @classmethod
    def of_row(cls, row: dict[str, float]) -> WrongHits:
        """Build the sums from their fields. Earlier versions took each audit for fully informative. Raise `TypeError`
        for any other field."""
        return cls(**{"information": row.get("weights", 0.0), **row})

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
        self.information *= fade

    def hit(self, requests: int = 0) -> None:
        """Count a semantic hit, `requests` requests after the last call."""
        self.advance(requests)
        self.served += 1

    def audited(self, label: Label, chance: float, equal_chance: float = 0.0) -> None:
        """Record the audit of a hit that was chosen with this probability, in (0, 1]. `equal_chance` is the probability
        that another question gets an answer like the stored one, in [0, 1]."""
        weight = 1 / chance
        if label is Label.UNDECIDED:
            self.undecided += weight
            self.undecided_squares += weight * weight
            return
        self.weights += weight
        self.squares += weight * weight
        self.information += weight * (1 - equal_chance)
        self.wrong += weight if label is Label.WRONG else 0.0

    def record_complaint(self) -> None:
        self.complaints += 1

    @property
    def audits(self) -> float:
        """The effective number of audits (Kish 1965), whatever they tell."""
        squares = self.squares + self.undecided_squares
        return (self.weights + self.undecided) ** 2 / squares if squares > 0 else 0.0

    def estimate(self) -> WrongHitEstimate:
        served = min(1.0, self.served / self.requests) if self.requests > 0 else 0.0
        lower_bound = min(1.0, self.complaints / self.served) if self.served > 0 else 0.0
        whole, squares = self.weights + self.undecided, self.squares + self.undecided_squares
        # A wrong audit is one fault among at least one audit's worth of information.
        informative = max(self.information, self.wrong) + self.undecided
        if informative <= 0:
            high = served if self.requests > 0 else 1.0
            return WrongHitEstimate(math.nan, lower_bound * served, high, math.nan, lower_bound, 1.0)
        trials = whole * informative / squares  # the effective number of audits, times their mean information
        low = max(lower_bound, wilson_interval(self.wrong / informative, trials)[0])
        high = max(low, wilson_interval((self.wrong + self.undecided) / informative, trials)[1])
        decided = informative - self.undecided
        known = self.wrong > 0 or (decided > 0 and trials * decided / informative >= LEAST_TRIALS)
        rate = self.wrong / decided if known else math.nan
        return WrongHitEstimate(rate * served, low * served, high * served, rate, low, high)
