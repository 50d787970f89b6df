"""What answers take on average, as a sum of parts that grow with the request and with the load: learnt while they come,
forgotten with time. Pure.

Least squares of the relative error over decayed sufficient statistics, with coefficients that may not be negative,
found by coordinate descent (one sweep an observation, from where the last one ended). Decayed sums cannot blow up, as
recursive least squares with forgetting does where nothing varies for hours; and no part can ever make an answer sooner.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import mul

RIDGE = 1e-3  # of each coefficient's own weight: decides between parts that always come together
HUBER = 4.0  # an answer that took more than so many times the expected counts as if it had taken that
_RESCALE_AT = 64.0  # half-lives


class Trend:
    """`size` coefficients, all at least 0."""

    __slots__ = ("_half_life_s", "_matrix", "_origin", "_target", "coefficients")

    def __init__(self, size: int, half_life_s: float) -> None:
        self._half_life_s = half_life_s
        self._matrix = [[0.0] * size for _ in range(size)]
        self._target = [0.0] * size
        self._origin: float | None = None
        self.coefficients = [0.0] * size

    def of(self, parts: Sequence[float]) -> float:
        """What is expected of these parts; 0 while nothing is known."""
        return float(sum(map(mul, self.coefficients, parts)))

    def observe(self, parts: Sequence[float], seconds: float, now: float, weight: float = 1.0) -> None:
        """An answer of these parts, all at least 0, took `seconds`."""
        expected = self.of(parts)
        if expected > 0.0:
            seconds = min(seconds, HUBER * expected)
        unit = max(expected, seconds / HUBER, 1e-6)  # errors count in proportion
        scale = weight * self._scale(now) / (unit * unit)
        for i, part in enumerate(parts):
            if part:
                row, by = self._matrix[i], scale * part
                self._matrix[i] = [a + by * b for a, b in zip(row, parts, strict=True)]
                self._target[i] += by * seconds
        self._sweep()

    def _sweep(self) -> None:
        coefficients = self.coefficients
        for i, row in enumerate(self._matrix):
            own = row[i]
            if own > 0.0:
                rest = sum(map(mul, row, coefficients)) - own * coefficients[i]
                coefficients[i] = max(0.0, (self._target[i] - rest) / (own * (1.0 + RIDGE)))

    def _scale(self, now: float) -> float:
        if self._origin is None:
            self._origin = now
        exponent = max(0.0, (now - self._origin) / self._half_life_s)
        if exponent > _RESCALE_AT:
            factor = 2.0 ** -min(exponent, 1000.0)
            self._matrix = [[a * factor for a in row] for row in self._matrix]
            self._target = [a * factor for a in self._target]
            self._origin, exponent = now, 0.0
        return float(2.0**exponent)
