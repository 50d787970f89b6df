"""Estimate for each band of scores how often the best neighbour is wrong: the verifier's calibration, corrected by the
labels of the route. Pure.

The estimate is a Gaussian process on the log-odds of a wrong answer (Rasmussen and Williams, Gaussian Processes for
Machine Learning, 2006, section 3.4, Laplace's approximation). Its mean is the calibration. Its covariance says how a
route may differ from it: as a whole, in the slope over scores, and in single regions of scores.

Labels are many below the threshold, where misses bring them, and few above it. So the level and the slope carry what
misses show to the bands that decide, and the uncertainty of that step is part of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Standard deviations of a route's log-odds from the calibration: of its level, of its slope over one unit of score,
# and of single regions of scores with their length.
LEVEL, SLOPE, LOCAL, LENGTH = 1.0, 5.0, 0.5, 0.08
MAX_STEPS, CLOSE_ENOUGH = 12, 1e-3  # of Newton's method, and the change of log-odds that ends it
CLIP = 12.0  # log-odds beyond which an exponential is not worth its digits


@dataclass(frozen=True, slots=True)
class WrongShares:
    """The posterior over bands: `mean` (n,) wrong shares in [0, 1], and their `covariance` (n, n)."""

    mean: FloatArray
    covariance: FloatArray

    def among(self, counts: FloatArray) -> tuple[float, float]:
        """Return the expected number of wrong answers among `counts` (n,) by band, and the variance of that mean."""
        return float(counts @ self.mean), float(counts @ self.covariance @ counts)


class WrongShareModel:
    """The prior over wrong shares. `centres`: (n,) scores; `shares`: (n,) wrong shares of the calibration."""

    def __init__(self, centres: FloatArray, shares: FloatArray) -> None:
        self._prior = np.log(shares / (1 - shares))
        apart = centres[:, None] - centres[None, :]
        middle = centres - centres.mean()
        self._covariance: FloatArray = (
            LEVEL**2 + SLOPE**2 * np.outer(middle, middle) + LOCAL**2 * np.exp(-0.5 * (apart / LENGTH) ** 2)
        )

    def posterior(self, labels: FloatArray, wrong: FloatArray, start: FloatArray | None = None) -> Posterior:
        """Return the posterior for `labels` (n,) per band, `wrong` (n,) of them. `start`: log-odds to begin with."""
        odds = self._prior if start is None else start
        count = len(odds)
        for _ in range(MAX_STEPS):
            shares = _share(odds)
            weights = labels * shares * (1 - shares)
            root = np.sqrt(weights)
            inner = np.eye(count) + root[:, None] * self._covariance * root[None, :]
            wanted = weights * (odds - self._prior) + wrong - labels * shares
            step = wanted - root * np.linalg.solve(inner, root * (self._covariance @ wanted))
            new = np.clip(self._prior + self._covariance @ step, -CLIP, CLIP)
            change, odds = float(np.abs(new - odds).max()), new
            if change < CLOSE_ENOUGH:
                break
        shares = _share(odds)
        root = np.sqrt(labels * shares * (1 - shares))
        inner = np.eye(count) + root[:, None] * self._covariance * root[None, :]
        explained = self._covariance * root[None, :]
        covariance = self._covariance - explained @ np.linalg.solve(inner, explained.T)
        return Posterior(odds, covariance)


@dataclass(frozen=True, slots=True)
class Posterior:
    """Log-odds (n,) of a wrong answer by band, with their covariance (n, n)."""

    odds: FloatArray
    covariance: FloatArray

    def shares(self) -> WrongShares:
        """Return the wrong shares: the mean of a logistic of a normal (MacKay's approximation, 1992)."""
        variance = np.maximum(np.diag(self.covariance), 0.0)
        mean = _share(self.odds / np.sqrt(1 + np.pi * variance / 8))
        slope = mean * (1 - mean)
        return WrongShares(mean, slope[:, None] * self.covariance * slope[None, :])


def _share(odds: FloatArray) -> FloatArray:
    shares: FloatArray = 1.0 / (1.0 + np.exp(-odds))
    return shares
