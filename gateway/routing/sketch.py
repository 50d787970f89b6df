"""Quantiles of a stream of latencies, newest first in weight. Pure: the clock's reading comes in.

A histogram with logarithmic buckets (the idea of DDSketch, Masson et al. 2019: a bucket's width is a fixed ratio, so
every quantile has a bounded relative error), in which the weight of an observation halves with time.
"""

from __future__ import annotations

import math

RATIO = 1.08  # bucket bounds grow by 8 %: a quantile is off by at most 4 %
_LOG_RATIO = math.log(RATIO)
SMALLEST_S = 1e-5


class DecayingQuantiles:
    """Positive values; at most some 250 buckets between 10 us and an hour."""

    __slots__ = ("_buckets", "_half_life_s", "_origin")

    def __init__(self, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._buckets: dict[int, float] = {}
        self._origin: float | None = None  # time at which one observation weighs 1

    def _scale(self, now: float) -> float:
        """What one observation made now weighs, in units of the origin's. Newer ones weigh more, so old ones need
        no touching; the buckets are rescaled before the numbers grow large."""
        if self._origin is None:
            self._origin = now
        exponent = (now - self._origin) / self._half_life_s
        if exponent > 64:
            factor = 2.0**-exponent
            self._buckets = {k: w * factor for k, w in self._buckets.items() if w * factor > 1e-9}
            self._origin = now
            return 1.0
        return float(2.0**exponent)

    def add(self, value: float, now: float) -> None:
        bucket = math.ceil(math.log(max(value, SMALLEST_S)) / _LOG_RATIO)
        scale = self._scale(now)  # first: it may replace the buckets
        self._buckets[bucket] = self._buckets.get(bucket, 0.0) + scale

    def weight(self, now: float) -> float:
        """How many observations there are, older ones counted by what is left of their weight."""
        scale = self._scale(now)
        return sum(self._buckets.values()) / scale

    def quantile(self, q: float) -> float | None:
        """The value below which the share `q` in [0, 1] of the weight lies; None without observations."""
        total = sum(self._buckets.values())
        if total <= 0:
            return None
        seen = 0.0
        for bucket in sorted(self._buckets):
            seen += self._buckets[bucket]
            if seen >= q * total:
                return float(RATIO ** (bucket - 0.5))
        return float(RATIO ** (max(self._buckets) - 0.5))
