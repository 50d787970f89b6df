"""Estimate for each band of scores how often the best neighbour is wrong: the verifier's calibration, corrected by the
labels of the route. Pure.

The estimate is a Gaussian process on the log-odds of a wrong answer. It uses Laplace's approximation (Rasmussen and
Williams, Gaussian Processes for Machine Learning, 2006, section 3.4). Its mean is the calibration. Its covariance says
how a route may differ from it: as a whole, in the slope over scores, and in single regions of scores.

Labels are many below the threshold, where misses bring them, and few above it. So the level and the slope carry what
misses show to the bands that decide. The uncertainty of that step is part of the result.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Standard deviations of a route's log-odds from the calibration: of its level, of its slope over one unit of score,
# and of single regions of scores with their length.
LEVEL, SLOPE, LOCAL, LENGTH = 1.0, 5.0, 0.5, 0.08
MAX_STEPS, CLOSE_ENOUGH = 60, 1e-3  # of Newton's method, and the change of log-odds that ends it
SMALLEST = 2.0**-20  # part of a step below which there is nothing left to gain
CLIP = 30.0  # log-odds beyond which an exponential is not worth its digits


@dataclass(frozen=True, slots=True)
class WrongShares:
    """The posterior over bands: `mean` (n,) wrong shares in [0, 1], and their `covariance` (n, n)."""

    mean: FloatArray
    covariance: FloatArray

    def among(self, counts: FloatArray) -> tuple[float, float]:
        """Return the expected number of wrong answers among `counts` (n,) by band, and the variance of that mean."""
        return float(counts @ self.mean), float(counts @ self.covariance @ counts)


class WrongShareModel:
    """The prior over wrong shares. `centres` (n,) are scores. `shares` (n,) are the wrong shares of the calibration."""

    def __init__(self, centres: FloatArray, shares: FloatArray) -> None:
        self._prior = np.log(shares / (1 - shares))
        apart = centres[:, None] - centres[None, :]
        middle = centres - centres.mean()
        self._covariance: FloatArray = (
            LEVEL**2 + SLOPE**2 * np.outer(middle, middle) + LOCAL**2 * np.exp(-0.5 * (apart / LENGTH) ** 2)
        )

    def posterior(self, labels: FloatArray, wrong: FloatArray, start: FloatArray | None = None) -> Posterior:
        """Return the posterior for `labels` (n,) per band, `wrong` (n,) of them. `start` is the pull of earlier labels.

        Newton's method alone may jump over the maximum and never return. So a step is halved until it gains.
        """
        pull = np.zeros(len(self._prior)) if start is None else start
        odds = self._prior + self._covariance @ pull
        worth = self._worth(labels, wrong, pull, odds)
        for _ in range(MAX_STEPS):
            step = self._newton(labels, wrong, odds) - pull
            change, part = self._covariance @ step, 1.0
            while (new := self._worth(labels, wrong, pull + part * step, odds + part * change)) < worth:
                part /= 2
                if part < SMALLEST:
                    return self._around(labels, pull, odds)
            pull, odds, worth = pull + part * step, odds + part * change, new
            if part * float(np.abs(change).max()) < CLOSE_ENOUGH:
                break
        return self._around(labels, pull, odds)

    def _newton(self, labels: FloatArray, wrong: FloatArray, odds: FloatArray) -> FloatArray:
        """Return the pull (n,) that would be best if the likelihood were normal as around `odds` (algorithm 3.1)."""
        shares = _share(odds)
        weights = labels * shares * (1 - shares)
        wanted = weights * (odds - self._prior) + wrong - labels * shares
        root, inner = self._inner(weights)
        pull: FloatArray = wanted - root * np.linalg.solve(inner, root * (self._covariance @ wanted))
        return pull

    def _worth(self, labels: FloatArray, wrong: FloatArray, pull: FloatArray, odds: FloatArray) -> float:
        """Return the logarithm of the density of `odds` and the labels, but for a constant."""
        return float(wrong @ odds - labels @ np.logaddexp(0.0, odds) - pull @ (odds - self._prior) / 2)

    def _around(self, labels: FloatArray, pull: FloatArray, odds: FloatArray) -> Posterior:
        """Return the normal distribution around the maximum."""
        shares = _share(odds)
        root, inner = self._inner(labels * shares * (1 - shares))
        explained = self._covariance * root[None, :]
        covariance = self._covariance - explained @ np.linalg.solve(inner, explained.T)
        return Posterior(odds, covariance, pull)

    def _inner(self, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
        root = np.sqrt(weights)
        return root, np.eye(len(root)) + root[:, None] * self._covariance * root[None, :]


@dataclass(frozen=True, slots=True)
class Posterior:
    """Log-odds (n,) of a wrong answer by band, with their covariance (n, n).

    `pull` (n,): how the labels of each band move the log-odds: the covariance of the prior times `pull`.
    """

    odds: FloatArray
    covariance: FloatArray
    pull: FloatArray

    def shares(self) -> WrongShares:
        """Return the wrong shares: the mean of a logistic of a normal (MacKay's approximation, 1992)."""
        variance = np.maximum(np.diag(self.covariance), 0.0)
        mean = _share(self.odds / np.sqrt(1 + np.pi * variance / 8))
        slope = mean * (1 - mean)
        return WrongShares(mean, slope[:, None] * self.covariance * slope[None, :])


def _share(odds: FloatArray) -> FloatArray:
    shares: FloatArray = 1.0 / (1.0 + np.exp(-np.clip(odds, -CLIP, CLIP)))
    return shares
