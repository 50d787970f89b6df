"""Estimate how often a route serves a wrong answer, with an interval, from a sample of its hits. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

# The formulas come from the textbooks and papers that the docstrings cite.
MIN_LOG = -700.0


def exceedance_probability(mean: float, variance: float, limit: int, lower_bound: float = 0.0) -> float:
    """Return P(X > limit) for a negative binomial X with this mean and variance.

    That is a Poisson count whose rate follows a gamma distribution (Gelman et al., Bayesian Data Analysis, 3rd ed.,
    section 2.6). The loop stops early once the result cannot exceed `lower_bound`.
    """
    if mean <= 0:
        return 0.0
    variance = max(variance, mean * (1 + 1e-6))
    size, success, failure = mean * mean / (variance - mean), mean / variance, (variance - mean) / variance
    log_term, first = size * math.log(success), 0
    while log_term < MIN_LOG and first <= limit:  # skip terms that underflow a float
        log_term += math.log((size + first) / (first + 1) * failure)
        first += 1
    term, below = math.exp(log_term), 0.0
    for k in range(first, limit + 1):
        below += term
        if 1.0 - below <= lower_bound:
            break
        term *= (size + k) / (k + 1) * failure
    return max(0.0, 1.0 - below)


def exceeds_risk(mean: float, variance: float, limit: int, risk: float) -> bool:
    """Return whether `exceedance_probability` is above `risk`.

    Far below the limit, Cantelli's inequality answers without a term for each count: P(X - mean >= a) <= variance /
    (variance + a^2).
    """
    above = limit + 1 - mean
    spread = max(variance, mean * (1 + 1e-6))
    if above > 0 and spread <= risk * (spread + above * above):
        return False
    return exceedance_probability(mean, variance, limit, risk) > risk


@dataclass(slots=True)
class LabelPool:
    """Adjacent bands that share one rate."""

    first: int  # the lowest band of the pool
    events: float
    trials: float
    rate: float

    @property
    def variance(self) -> float:
        """The variance of the rate: that of a beta distribution with these counts."""
        return self.rate * (1 - self.rate) / (self.trials + 1)


def pool_adjacent_violators(events: Sequence[float], trials: Sequence[float]) -> list[LabelPool]:
    """Return rates that never rise from band to band: pool adjacent violators (Ayer et al. 1955). All trials are
    positive.

    Labels are few where answers are served and many below. As a higher score is no worse, labels from below also inform
    the bands that decide.
    """
    firsts, sums, counts, rates = list[int](), list[float](), list[float](), list[float]()
    for band, (event, trial) in enumerate(zip(events, trials, strict=True)):
        rate, first = event / trial, band
        while rates and rate > rates[-1]:
            rates.pop()
            first, event, trial = firsts.pop(), sums.pop() + event, counts.pop() + trial
            rate = event / trial
        firsts.append(first)
        sums.append(event)
        counts.append(trial)
        rates.append(rate)
    return list(map(LabelPool, firsts, sums, counts, rates))


def wilson_interval(rate: float, trials: float, z: float = 1.96) -> tuple[float, float]:
    """Return the score interval of a share (Wilson 1927). `trials` may be an effective number. z = 1.96: 95 %."""
    if trials <= 0:
        return 0.0, 1.0
    square = z * z / trials
    centre = (rate + square / 2) / (1 + square)
    half = z * math.sqrt(rate * (1 - rate) / trials + square / (4 * trials)) / (1 + square)
    return max(0.0, centre - half), min(1.0, centre + half)


MEMORY = 20_000  # requests after which a hit's weight is 1/e


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
    """

    requests: float = 0.0
    served: float = 0.0
    weights: float = 0.0  # of decided audits
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
        """Count a semantic hit, `requests` requests after the last call."""
        self.advance(requests)
        self.served += 1

    def audited(self, label: Label, chance: float) -> None:
        """Record the audit of a hit that was chosen with this probability, in (0, 1]."""
        weight = 1 / chance
        if label is Label.UNDECIDED:
            self.undecided += weight
            self.undecided_squares += weight * weight
            return
        self.weights += weight
        self.squares += weight * weight
        self.wrong += weight if label is Label.WRONG else 0.0

    def record_complaint(self) -> None:
        self.complaints += 1

    def estimate(self) -> WrongHitEstimate:
        served = min(1.0, self.served / self.requests) if self.requests > 0 else 0.0
        lower_bound = min(1.0, self.complaints / self.served) if self.served > 0 else 0.0
        whole, squares = self.weights + self.undecided, self.squares + self.undecided_squares
        if whole <= 0:
            high = served if self.requests > 0 else 1.0
            return WrongHitEstimate(math.nan, lower_bound * served, high, math.nan, lower_bound, 1.0)
        trials = whole * whole / squares
        low = max(lower_bound, wilson_interval(self.wrong / whole, trials)[0])
        high = max(low, wilson_interval((self.wrong + self.undecided) / whole, trials)[1])
        rate = self.wrong / self.weights if self.weights > 0 else math.nan
        return WrongHitEstimate(rate * served, low * served, high * served, rate, low, high)
