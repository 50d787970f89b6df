"""What a route's labels say of its scores: P(the light model's answer is worse) as this route's traffic has it. Pure.

    p = sigmoid(shift + slope * logit(score))

Platt's scaling (1999) of a score that is a probability already, with a Gaussian prior on "it is right as it is": the
most probable shift and slope by Newton's method, how sure they are by Laplace's approximation (Bishop, Pattern
Recognition and Machine Learning, 2006, section 4.5). Two numbers, since labels are few; both have bounds, since some of
them come from clients.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

BANDS = 20  # of scores: a label is kept as one count of its band
# Standard deviations before any label. With .7 ten labels weigh as much as what was believed before them, as in the
# cache's ledger (`PRIOR_LABELS`); slopes are known less well from labels, and held more firmly.
SHIFT_SPREAD, SLOPE_SPREAD = 0.7, 0.25
MOST_SHIFT = 2.0  # a score of .5 means .12 to .88 at the utmost
LEAST_SLOPE, MOST_SLOPE = 0.5, 2.0
MEMORY = 5000  # requests after which a label counts 1/e: traffic and models change
_STEPS = 12  # Newton's; from the prior 5 are enough
_CENTRES = (np.arange(BANDS) + 0.5) / BANDS
_LOGITS = np.log(_CENTRES / (1 - _CENTRES))
_PRECISION = np.diag([SHIFT_SPREAD**-2, SLOPE_SPREAD**-2])
_PRIOR = np.array([0.0, 1.0])


@dataclass(frozen=True, slots=True)
class Fit:
    """A map of scores that never falls."""

    shift: float = 0.0
    slope: float = 1.0
    # A square root of the covariance of both, rows first (Cholesky).
    root: tuple[float, float, float, float] = (SHIFT_SPREAD, 0.0, 0.0, SLOPE_SPREAD)

    def __call__(self, scores: Floats) -> Floats:
        clipped = np.clip(scores, 1e-6, 1 - 1e-6)
        logits = self.shift + self.slope * np.log(clipped / (1 - clipped))
        return np.asarray(1 / (1 + np.exp(-logits)))

    def around(self) -> tuple[Fit, ...]:
        """Four that together are spread as what is not known: the sigma points of the unscented transform (Julier and
        Uhlmann 1997), each of weight 1/4."""
        a, _, c, d = (math.sqrt(2.0) * x for x in self.root)
        steps = ((a, c), (-a, -c), (0.0, d), (0.0, -d))
        return tuple(bounded(self.shift + x, self.slope + y, self.root) for x, y in steps)


def bounded(shift: float, slope: float, root: tuple[float, float, float, float]) -> Fit:
    return Fit(min(MOST_SHIFT, max(-MOST_SHIFT, shift)), min(MOST_SLOPE, max(LEAST_SLOPE, slope)), root)


class Calibration:
    """Faded counts of labels by band, and what they come to."""

    def __init__(self) -> None:
        self.labels: Floats = np.zeros(BANDS)
        self.worse: Floats = np.zeros(BANDS)
        self._fit: Fit | None = Fit()

    def advance(self, requests: int) -> None:
        """So many have come since the last call."""
        if requests > 0 and self.labels.any():
            fade = (1 - 1 / MEMORY) ** requests
            self.labels *= fade
            self.worse *= fade
            self._fit = None

    def observe(self, score: float, light_was_worse: bool, weight: float) -> None:
        """`weight`: of this label, in (0, 1]; 1 for one that is as good as a comparison of both answers."""
        band = band_of(score)
        self.labels[band] += weight
        self.worse[band] += weight * light_was_worse
        self._fit = None

    def restore(self, labels: Floats, worse: Floats) -> None:
        self.labels, self.worse, self._fit = labels, worse, None

    @property
    def fit(self) -> Fit:
        """0.2 ms after something has changed."""
        if self._fit is None:
            self._fit = _fitted(self.labels, self.worse)
        return self._fit


def band_of(score: float) -> int:
    return min(BANDS - 1, max(0, int(score * BANDS)))


def _fitted(labels: Floats, worse: Floats) -> Fit:
    design = np.stack([np.ones(BANDS), _LOGITS], axis=1)
    theta = _PRIOR.copy()
    curvature = _PRECISION
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-(design @ theta)))
        slope = design.T @ (worse - labels * p) - _PRECISION @ (theta - _PRIOR)
        curvature = design.T @ (design * (labels * p * (1 - p))[:, None]) + _PRECISION
        step = np.linalg.solve(curvature, slope)
        theta = theta + step / max(1.0, float(np.abs(step).max()))  # steps of 1 at most: far off, Newton overshoots
        if float(np.abs(step).max()) < 1e-6:
            break
    root = np.linalg.cholesky(np.linalg.inv(curvature))
    return bounded(float(theta[0]), float(theta[1]), (root[0, 0], root[0, 1], root[1, 0], root[1, 1]))
