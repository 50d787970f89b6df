"""Detect that neighbours prove wrong more often than the labels of the route predict. Pure.

A label is 1 for a wrong neighbour and 0 for a right one. Before it is learned from, the ledger predicts the share p of
wrong neighbours at its score. The detector adds up the log of the likelihood ratio of two hypotheses. The sum never
falls below 0 (Page, Continuous inspection schemes, 1954):

- the neighbour is wrong with probability p, or
- its odds of being wrong are `FACTOR` times as high: FACTOR p / (1 - p + FACTOR p).

The alarm is raised above `LIMIT`. A mere sum of the residuals (Page-Hinkley) would need another limit for each mix of
scores. A label at p = .5 varies twenty times as much as one at p = .01. The log of the ratio has no such unit.

The constants are chosen by simulation with the ledger's own predictions (`python -m quality.drift`):

- The share of wrong neighbours at one score rises from 20 % to 40 % after 2,000 labels. The alarm comes after 132
  labels (median), and within 300 labels in 92 % of 12 runs.
- The share doubles at every score, on 12 routes drawn from the ledger's prior, after 2,000 labels. The alarm comes
  after 125 labels (median), and within 300 labels in 83 % of the runs.
- Stationary routes raised no alarm in 36,000 labels. A growing cache makes neighbours at one score wrong more often.
  With `FACTOR` 2 and `LIMIT` 10 the development stream, whose cache grows all the time, raised one false alarm a run.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from gateway.cache.threshold.ledger import BANDS, band_counts
from gateway.cache.threshold.wrong_shares import FloatArray

FACTOR, LIMIT = 3.0, 16.0


class DriftDetector:
    """The sum of the log-likelihood ratios, and the labels since it was last 0: since a change began, if there is one.

    `labels` and `wrong`, each (BANDS,), count these labels and the wrong ones among them by band of their score.
    """

    def __init__(self) -> None:
        self.excess = 0.0  # nats
        self.labels: FloatArray = np.zeros(BANDS)
        self.wrong: FloatArray = np.zeros(BANDS)

    @property
    def is_raised(self) -> bool:
        return self.excess > LIMIT

    def add(self, band: int, predicted: float, wrong: float, weight: float = 1.0) -> None:
        """Add a label: `wrong` in [0, 1], and the share in [0, 1] that was predicted for its band. `weight` is the
        evidence of the label, in [0, 1]."""
        self.excess += weight * (wrong * math.log(FACTOR) - math.log1p((FACTOR - 1) * predicted))
        if self.excess <= 0:
            self.excess = 0.0
            self.labels[:] = self.wrong[:] = 0.0
            return
        self.labels[band] += weight
        self.wrong[band] += weight * wrong

    def row(self) -> tuple[Any, ...]:
        """Return the state for a snapshot."""
        return self.excess, self.labels.tolist(), self.wrong.tolist()

    @classmethod
    def of_row(cls, row: tuple[Any, ...]) -> DriftDetector:
        """Build the detector from `row`. Raise `ValueError`, `TypeError` or `SnapshotInvalid` for any other row."""
        excess, labels, wrong = row
        detector = cls()
        detector.excess = float(excess)
        if not 0 <= detector.excess < math.inf:
            raise ValueError(f"the excess is {excess!r}, expected a finite number of at least 0")
        detector.labels, detector.wrong = band_counts(labels, BANDS), band_counts(wrong, BANDS)
        return detector
