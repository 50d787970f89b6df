"""How far latencies lie from what was expected of them, newest first in weight. Pure: the clock's reading comes in.

A histogram of ratios (actual over expected) with logarithmic buckets (the idea of DDSketch, Masson et al. 2019: a
bucket's width is a fixed ratio, so every quantile has a bounded relative error), in which the weight of an observation
halves with time.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from itertools import accumulate

RATIO = 1.05  # bucket bounds grow by 5 %: no quantile is off by more
_LOG_RATIO = math.log(RATIO)
REACH = 94  # buckets to either side of 1: ratios from 1/98 to 98, what lies beyond counts as the outermost
_BUCKETS = 2 * REACH
# What is believed before anything was seen: lognormal around 1 with this spread, worth two observations. Answers of one
# model to one size of request spread by 0.2 to 0.6 (the standard deviation of the logarithm).
PRIOR_SPREAD, PRIOR_WEIGHT = 0.5, 2.0
_RESCALE_AT = 64.0  # half-lives after which weights are brought back: 2**64 is far from any float's end


def _prior() -> list[float]:
    """Shares of the prior a bucket; they sum to `PRIOR_WEIGHT`."""

    def below(k: int) -> float:
        return 0.5 * (1.0 + math.erf((k - REACH) * _LOG_RATIO / (PRIOR_SPREAD * math.sqrt(2.0))))

    shares = [below(k + 1) - below(k) for k in range(_BUCKETS)]
    return [PRIOR_WEIGHT * share / sum(shares) for share in shares]


_PRIOR = _prior()


class Ratios:
    """188 buckets, whatever is observed and for however long."""

    __slots__ = ("_cumulated", "_half_life_s", "_origin", "_total", "_weights")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._weights = list(_PRIOR)
        self._total = PRIOR_WEIGHT
        self._origin: float | None = None  # time at which one observation weighs 1
        self._cumulated: list[float] | None = None  # of the weights, until they change

    def add(self, ratio: float, now: float, weight: float = 1.0) -> None:
        """An answer took `ratio` times what was expected."""
        scale = weight * self._scale(now)
        self._weights[_bucket(ratio)] += scale
        self._total += scale
        self._cumulated = None

    def add_beyond(self, ratio: float, now: float) -> None:
        """An answer that nobody waited for to its end had taken `ratio` times what was expected: it lies somewhere
        beyond, and is spread there as the others are (redistribution to the right, Efron 1967). It weighs what it
        tells: the share of answers that would have come by then."""
        at = _bucket(ratio)
        scale = self._scale(now)
        beyond = sum(self._weights[at:])
        told = 1.0 - beyond / self._total
        if told <= 0.0:
            return
        if beyond <= 1e-9 * self._total:  # farther than anything ever seen
            self._weights[at] += told * scale
        else:
            factor = 1.0 + told * scale / beyond
            self._weights[at:] = [weight * factor for weight in self._weights[at:]]
        self._total += told * scale
        self._cumulated = None

    def quantile(self, q: float) -> float:
        """The ratio below which the share `q` in [0, 1] of the weight lies, interpolated within its bucket."""
        cumulated = self._cumulated
        if cumulated is None:
            cumulated = self._cumulated = list(accumulate(self._weights))
        wanted = q * cumulated[-1]
        at = min(bisect_left(cumulated, wanted), _BUCKETS - 1)
        weight = self._weights[at]
        inside = 1.0 if weight <= 0.0 else (wanted - cumulated[at] + weight) / weight
        return math.exp((at - REACH + min(1.0, max(0.0, inside))) * _LOG_RATIO)

    def beyond(self, ratio: float) -> float:
        """The mean of the ratios that lie beyond this one; `ratio` itself where none does."""
        at = _bucket(ratio)
        tail = self._weights[at:]
        weight = sum(tail)
        if weight <= 1e-9 * self._total:
            return ratio
        middles = (math.exp((k - REACH + 0.5) * _LOG_RATIO) for k in range(at, _BUCKETS))
        return max(ratio, sum(w * middle for w, middle in zip(tail, middles, strict=True)) / weight)

    def _scale(self, now: float) -> float:
        """What one observation made now weighs, in units of the origin's. Newer ones weigh more, so old ones need no
        touching; the weights are brought back before the numbers grow large. What has faded is made up for by the
        prior, so that the first answer after a long silence is not all that is known."""
        if self._origin is None:
            self._origin = now
        exponent = max(0.0, (now - self._origin) / self._half_life_s)
        if exponent > _RESCALE_AT:
            factor = 2.0 ** -min(exponent, 1000.0)
            self._weights = [weight * factor for weight in self._weights]
            self._origin, exponent = now, 0.0
            self._total = sum(self._weights)
        scale = float(2.0**exponent)
        missing = PRIOR_WEIGHT * scale - self._total
        if missing > 0.0:
            share = missing / PRIOR_WEIGHT
            self._weights = [weight + share * prior for weight, prior in zip(self._weights, _PRIOR, strict=True)]
            self._total = sum(self._weights)
            self._cumulated = None
        return scale


def _bucket(ratio: float) -> int:
    if ratio <= 0.0:
        return 0
    return min(_BUCKETS - 1, max(0, math.floor(math.log(min(ratio, 1e9)) / _LOG_RATIO) + REACH))
