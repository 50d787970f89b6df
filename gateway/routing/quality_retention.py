"""`quality`: how much of the gap between the light and the large model's answers a threshold keeps. Pure.

The large model's answer is the measure: p is the probability that the light one's is worse. Sending everything to the
light model loses sum(p) answers against it, sending everything to the large one none; of what is sent to the light one
sum(p) is lost again. So the part of the gap that is kept, with `L` the requests that the large model answers, is

    kept = sum(p_i, i in L) / sum(p_i)

which is the expectation of the "performance gap recovered" of RouteLLM (Ong et al. 2024, arXiv:2406.18665, section 2)
for an answer that is worth 1 where it is as good as the large model's and 0 where it is worse. Of all sets of one size
those with the highest p keep most, so a threshold is the best rule, and the highest one that keeps `quality` is the
cheapest.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gateway.routing.calibration import BANDS, Fit, Floats, band_of
from gateway.routing.score_window import Scores

MEMORY = 2000  # requests after which one counts 1/e in what is stated
_CENTRES = (np.arange(BANDS) + 0.5) / BANDS
Z = 1.96  # 95 %


@dataclass(frozen=True, slots=True)
class Kept:
    """A part of the gap, in [0, 1], with the 95 % interval of what the calibration does not know; NaN before any
    request."""

    part: float
    low: float
    high: float


def threshold_for(quality: float, scores: Scores, fit: Fit) -> float:
    """The highest score above which at least this part of the gap lies, over the last requests; in [-1, 1]: below 0 for
    all of them."""
    ordered: Floats = np.asarray(scores.ordered)
    worth = fit(ordered)[::-1].cumsum()  # of the hardest one, two, three, ...
    enough = int(np.searchsorted(worth, quality * worth[-1] - 1e-12)) + 1 if quality > 0 else 0
    if enough == 0:
        return 1.0
    lowest = ordered[-min(enough, len(ordered))]  # the easiest that the large model must answer, and all its equals
    at = int(np.searchsorted(ordered, lowest))
    return -1.0 if at == 0 else float((ordered[at - 1] + lowest) / 2)


class Routed:
    """Faded counts by band of scores: of all requests that could have gone to either, and of the large model's."""

    def __init__(self) -> None:
        self.all: Floats = np.zeros(BANDS)
        self.large: Floats = np.zeros(BANDS)

    def add(self, score: float, *, large: bool) -> None:
        fade = 1 - 1 / MEMORY
        self.all *= fade
        self.large *= fade
        band = band_of(score)
        self.all[band] += 1
        self.large[band] += large

    def recount(self, score: float, *, large: bool) -> None:
        """One that was counted went to the other model after all."""
        band = band_of(score)
        self.large[band] = np.clip(self.large[band] + (1.0 if large else -1.0), 0.0, self.all[band])

    def kept(self, fit: Fit) -> Kept:
        if self.all.sum() <= 0:
            return Kept(math.nan, 0.0, 1.0)
        part = self._part(fit)
        others = np.array([self._part(other) for other in fit.around()])
        spread = Z * float(np.sqrt(np.mean((others - part) ** 2)))
        return Kept(part, max(0.0, part - spread), min(1.0, part + spread))

    def _part(self, fit: Fit) -> float:
        worse = fit(_CENTRES)
        return min(1.0, float(self.large @ worse) / float(self.all @ worse))
