"""Which scores may be served so that wrong hits stay within the promise: the pooled threshold of a route.

Per band of scores two things are known: how often a request's best neighbour falls into it (seen without labels, so a
change of traffic or a growing cache shows at once), and how often such a neighbour is wrong (labels: misses tell for
free, audits and feedback tell above the threshold). Their product, summed above a threshold, is the expected number of
wrong hits. The threshold is the lowest one for which the next WINDOW requests hold more wrong hits than promised with a
chance of at most RISK, taking into account how little is known.

Assumed: within a band, the lookups that were labelled are like those that were not; and a better score is no worse.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gateway.cache.threshold.wrong_hits import LabelPool, exceeds_risk, pool_adjacent_violators
from gateway.errors import SnapshotInvalid


# What a route has met since the last look, for other gateways to add to theirs. Pure.
@dataclass(slots=True)
class TrafficCounts:
    """Sums: those of two gateways add up to what one would have met."""

    requests: int = 0
    met: dict[int, int] = field(default_factory=dict)  # neighbours by band of their score
    sized_lookups: float = 0.0  # as in `ThresholdLedger`
    log_size: float = 0.0
    hits: int = 0

    def __bool__(self) -> bool:
        return bool(self.requests or self.met or self.hits)

    def as_row(self) -> tuple[Any, ...]:
        return self.requests, self.met, self.sized_lookups, self.log_size, self.hits

    @classmethod
    def of_row(cls, row: tuple[Any, ...]) -> TrafficCounts:
        """Raises `ValueError` or `TypeError` where it is none."""
        requests, met, sized_lookups, log_size, hits = row
        if not isinstance(met, Mapping):
            raise TypeError(f"bands as {type(met).__name__}")
        counts = {int(band): int(count) for band, count in met.items()}
        traffic = cls(int(requests), counts, float(sized_lookups), float(log_size), int(hits))
        if min(traffic.requests, traffic.hits, *counts.values(), 0) < 0:
            raise ValueError("counts that are negative")
        return traffic


BANDS, LOWEST, WIDTH = 50, 0.40, 0.02  # scores below the lowest band count as in it, above the highest likewise

WINDOW = 1000  # requests over which the promise is to hold

# That a window breaks it, as predicted. The prediction includes all that is not known, on the side of caution, so far
# fewer do: with .05 none broke and a fifth less was served, with .2 banking77 kept 1 % in 67 to 96 % of its windows.
RISK = 0.15

LABEL_MEMORY = 2500  # requests after which a label counts 1/e: traffic changes

TRAFFIC_MEMORY = 1000  # the same for how often a band is met

PRIOR_LABELS = 10.0  # what the calibration of the verifier counts, per band, in labels

PRIOR_REQUESTS = 200.0

# Wrong shares of the calibration, times this: other traffic may be harder than what the verifier was calibrated on.
# With 1.0 (and RISK .1) banking77 kept a promise of 1 % in 71 % of its windows, with 1.5 (and .15) in 95 %.
CAUTION = 1.5

# Wrong hits grow with the number of entries to take one from: they double when it is 3.5 times as large (measured).
GROWTH = 0.55

MAX_GROWTH = 8.0  # beyond, labels have to say it

MIN_SIZED_LOOKUPS = 20.0  # lookups before a size is typical

MAX_PENDING_OBSERVATIONS = 64  # meetings

MAX_AUDIT_WEIGHT, MIN_AUDIT_WEIGHT = 5.0, 0.3  # of the mean share


Pools = Sequence[tuple[LabelPool, int]]


@dataclass(slots=True)
class ThresholdState:
    """What the books said when they were looked at."""

    threshold: float  # the lowest score that may be served
    pools: Pools
    rates: np.ndarray  # neighbours of each band a request

    def wrong_shares(self) -> list[float]:
        """By band, the chance that a neighbour of such a score is wrong, by calibration and labels."""
        return _shares(self.pools)

    def audit_weights(self) -> list[float]:
        """By band, how much more than the mean share its hits are audited. Where least is known, most is asked (Neyman
        allocation); within a band all hits are alike, so no estimate is distorted."""
        return _audit_weights(self.pools, self.rates, self.threshold)


class ThresholdLedger:
    """`prior`: (share wrong, neighbours a request) of each band, of the verifier's calibration."""

    def __init__(self, prior: Sequence[tuple[float, float]]) -> None:
        shares, rates = np.array(prior, np.float64).T
        self._prior_wrong = np.clip(shares * CAUTION, 0.0, 0.98) * PRIOR_LABELS
        self._prior_met = rates * PRIOR_REQUESTS
        self.restore(np.zeros(BANDS), np.zeros(BANDS), np.zeros(BANDS))

    def restore(
        self,
        labels: np.ndarray,
        wrong: np.ndarray,
        met: np.ndarray,
        requests: float = 0.0,
        sized_lookups: float = 0.0,
        log_size: float = 0.0,
    ) -> None:
        """`sized_lookups`: lookups whose number of entries is known, `log_size`: the sum of its logarithm over them."""
        self._labels, self._wrong, self._met = labels, wrong, met
        self._pending_requests = 0  # requests that the arrays have not been told of
        self._observations: list[tuple[int, int]] = []  # nor of these: band, and how far they were behind then
        self.requests, self.sized_lookups, self.log_size = requests, sized_lookups, log_size

    @property
    def labels(self) -> np.ndarray:
        self._catch_up()
        return self._labels

    @property
    def wrong(self) -> np.ndarray:
        self._catch_up()
        return self._wrong

    @property
    def met(self) -> np.ndarray:
        self._catch_up()
        return self._met

    def advance(self, requests: int) -> None:
        """`requests` have come since the last call, with or without a neighbour."""
        if requests <= 0:
            return
        self._pending_requests += requests
        fade = (1 - 1 / TRAFFIC_MEMORY) ** requests
        self.sized_lookups *= fade
        self.log_size *= fade
        self.requests = self.requests * fade + (1 - fade) * TRAFFIC_MEMORY

    def _catch_up(self) -> None:
        """The arrays are read every ten lookups or so, and brought up to date then."""
        pending, kept = self._pending_requests, 1 - 1 / TRAFFIC_MEMORY
        if pending:
            fade = (1 - 1 / LABEL_MEMORY) ** pending
            self._labels *= fade
            self._wrong *= fade
            self._met *= kept**pending
        for band, then in self._observations:
            self._met[band] += kept ** (pending - then)
        self._pending_requests = 0
        self._observations.clear()

    def observe(self, score: float, entries: int = 0) -> None:
        """The best neighbour of a request has this score, whether or not it is served. `entries`: that it is the best
        of; 0 where that is not known."""
        self._observations.append((band_of(score), self._pending_requests))
        if len(self._observations) >= MAX_PENDING_OBSERVATIONS:
            self._catch_up()
        if entries > 0:
            self.sized_lookups += 1
            self.log_size += math.log(entries)

    def add(self, traffic: TrafficCounts) -> None:
        """What another gateway has met."""
        self.advance(traffic.requests)
        met = self.met
        for band, count in traffic.met.items():
            met[min(BANDS - 1, max(0, band))] += count
        self.sized_lookups += traffic.sized_lookups
        self.log_size += traffic.log_size

    def growth(self, entries: int) -> float:
        """How many times more wrong hits `entries` make likely than what was met and labelled so far says; at least 1,
        since a cache that shrinks is no reason to dare more."""
        if entries <= 0 or self.sized_lookups < MIN_SIZED_LOOKUPS:
            return 1.0
        typical = math.exp(self.log_size / self.sized_lookups)
        return float(min(MAX_GROWTH, max(1.0, (entries / typical) ** GROWTH)))

    def label(self, score: float, wrong: float) -> None:
        """A neighbour met with this score was wrong (1) or right (0)."""
        band = band_of(score)
        self.labels[band] += 1
        self.wrong[band] += wrong

    def state_for(self, max_wrong_hits: float, growth: float = 1.0) -> ThresholdState:
        """For this promise, in wrong hits over all requests, where `growth` times as many are to be expected as was
        seen."""
        pools, rates = self._pools(), self._rates()
        threshold = _lowest(pools, rates.tolist(), int(max_wrong_hits * WINDOW + 1e-9), WINDOW * growth)
        return ThresholdState(threshold, pools, rates)

    def threshold(self, max_wrong_hits: float, growth: float = 1.0) -> float:
        """See `ThresholdState`."""
        return self.state_for(max_wrong_hits, growth).threshold

    def audit_weights(self, threshold: float) -> list[float]:
        """See `ThresholdState`."""
        return _audit_weights(self._pools(), self._rates(), threshold)

    def wrong_shares(self) -> list[float]:
        """See `ThresholdState`."""
        return _shares(self._pools())

    def wrong_among(self, served: Sequence[float]) -> tuple[float, float]:
        """How many of so many served answers, by band, are wrong: mean and variance, what is not known of the rates
        among it."""
        mean = variance = 0.0
        for pool, last in self._pools():
            count = float(sum(served[pool.first : last + 1]))
            mean += count * pool.rate
            variance += count * pool.rate * (1 - pool.rate) + count * count * pool.variance
        return mean, variance

    def _rates(self) -> np.ndarray:
        rates: np.ndarray = (self.met + self._prior_met) / (self.requests + PRIOR_REQUESTS)
        return rates

    def _pools(self) -> Pools:
        """Highest scores first, each with its last band."""
        pools = pool_adjacent_violators(
            (self.wrong + self._prior_wrong).tolist(), (self.labels + PRIOR_LABELS).tolist()
        )
        ends = [pool.first - 1 for pool in pools[1:]] + [BANDS - 1]
        return list(zip(pools, ends, strict=True))[::-1]


def _lowest(pools: Pools, met: Sequence[float], limit: int, window: float) -> float:
    """The lowest score with which so many requests seldom hold more wrong hits than `limit`."""
    mean = spread = settled = pooled = 0.0
    lowest = LOWEST + BANDS * WIDTH
    for pool, last in pools:
        settled, pooled = spread, 0.0
        rate, variance = pool.rate, pool.variance
        for band in range(last, pool.first - 1, -1):
            pooled += met[band]  # bands of a pool share one rate: their errors add up
            mean += met[band] * rate
            spread = settled + pooled * pooled * variance
            expected = window * mean
            if exceeds_risk(expected, expected + window**2 * spread, limit, RISK):
                return lowest
            lowest = LOWEST + band * WIDTH
    return lowest


def _audit_weights(pools: Pools, met: np.ndarray, threshold: float) -> list[float]:
    doubts = np.zeros(BANDS)
    for pool, last in pools:
        doubts[pool.first : last + 1] = math.sqrt(pool.variance)
    served = slice(band_of(threshold), BANDS)
    mean = float((met[served] * doubts[served]).sum() / max(met[served].sum(), 1e-12))
    if mean <= 0:
        return [1.0] * BANDS
    weights: list[float] = np.clip(doubts / mean, MIN_AUDIT_WEIGHT, MAX_AUDIT_WEIGHT).tolist()
    return weights


def _shares(pools: Pools) -> list[float]:
    shares = list[float]()
    for pool, last in reversed(pools):
        shares += [pool.rate] * (last + 1 - pool.first)
    return shares


def band_of(score: float) -> int:
    return min(BANDS - 1, max(0, int((score - LOWEST) / WIDTH + 1e-9)))


def band_counts(values: Sequence[float], bands: int) -> NDArray[np.float64]:
    """Counts by band, (bands,), from a snapshot. Raises `SnapshotInvalid`."""
    array = np.array(values, np.float64)
    if array.shape != (bands,) or not np.isfinite(array).all() or (array < 0).any():
        raise SnapshotInvalid(f"{array.shape} counts, expected {bands} that are not negative")
    return array
