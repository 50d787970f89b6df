"""Control one route's use of the large model: its rule, the outcomes, and the labels. No I/O."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgpack
import numpy as np
from numpy.typing import NDArray

from gateway.cache.threshold.ledger import band_counts
from gateway.config.policy.model import Target
from gateway.errors import SnapshotInvalid
from gateway.routing.share_controller import CAPACITY, ScoreWindow, ShareController, ShareSpent
from gateway.scores import TierDecision

# Calibration of a route's scores by its labels: P(the light model's answer is worse).
#
# p = sigmoid(shift + slope * logit(score))
#
# This is Platt's scaling (1999) of a score that is already a probability, with a Gaussian prior on "it is right as it
# is". Newton's method finds the most probable shift and slope, and Laplace's approximation their uncertainty (Bishop,
# Pattern Recognition and Machine Learning, 2006, section 4.5). Two parameters suffice, as labels are few. Both are
# bounded, as some labels come from clients.

Floats = NDArray[np.float64]

BANDS = 20  # bands of scores: a label is kept as a count of its band

# Standard deviations before any label. With 0.7 ten labels weigh as much as the prior, as in the cache's ledger
# (`PRIOR_LABELS`). Labels determine slopes less well, so their prior is tighter.
SHIFT_SPREAD, SLOPE_SPREAD = 0.7, 0.25

MAX_SHIFT = 2.0  # a score of 0.5 becomes 0.12 to 0.88 at most

MIN_SLOPE, MAX_SLOPE = 0.5, 2.0

MEMORY = 5000  # requests after which a label's weight is 1/e, because traffic and models change

_STEPS = 12  # of Newton's method; from the prior 5 are enough

_CENTRES = (np.arange(BANDS) + 0.5) / BANDS

_LOGITS = np.log(_CENTRES / (1 - _CENTRES))

_PRECISION = np.diag([SHIFT_SPREAD**-2, SLOPE_SPREAD**-2])

_PRIOR = np.array([0.0, 1.0])


@dataclass(frozen=True, slots=True)
class PlattScaling:
    """A monotonic map of scores to probabilities."""

    shift: float = 0.0
    slope: float = 1.0
    # a square root of the covariance of both, rows first (Cholesky)
    root: tuple[float, float, float, float] = (SHIFT_SPREAD, 0.0, 0.0, SLOPE_SPREAD)

    def __call__(self, scores: Floats) -> Floats:
        clipped = np.clip(scores, 1e-6, 1 - 1e-6)
        logits = self.shift + self.slope * np.log(clipped / (1 - clipped))
        return np.asarray(1 / (1 + np.exp(-logits)))

    def sigma_points(self) -> tuple[PlattScaling, ...]:
        """Return four fits, each of weight 1/4, that together have the spread of the uncertainty.

        They are the sigma points of the unscented transform (Julier and Uhlmann 1997).
        """
        a, _, c, d = (math.sqrt(2.0) * x for x in self.root)
        steps = ((a, c), (-a, -c), (0.0, d), (0.0, -d))
        return tuple(clamped_fit(self.shift + x, self.slope + y, self.root) for x, y in steps)


def clamped_fit(shift: float, slope: float, root: tuple[float, float, float, float]) -> PlattScaling:
    return PlattScaling(min(MAX_SHIFT, max(-MAX_SHIFT, shift)), min(MAX_SLOPE, max(MIN_SLOPE, slope)), root)


class TierCalibration:
    """Faded counts of labels by band, and the fit to them."""

    def __init__(self) -> None:
        self.labels: Floats = np.zeros(BANDS)
        self.worse: Floats = np.zeros(BANDS)
        self._fit: PlattScaling | None = PlattScaling()

    def advance(self, requests: int) -> None:
        """Fade the labels by the number of requests since the last call."""
        if requests > 0 and self.labels.any():
            fade = (1 - 1 / MEMORY) ** requests
            self.labels *= fade
            self.worse *= fade
            self._fit = None

    def observe(self, score: float, worse: float, weight: float) -> None:
        """Record a label: the probability that the light answer was worse. `weight` in (0, 1]: 1 for one as reliable as
        a comparison of both answers."""
        band = band_of(score)
        self.labels[band] += weight
        self.worse[band] += weight * worse
        self._fit = None

    def restore(self, labels: Floats, worse: Floats) -> None:
        self.labels, self.worse, self._fit = labels, worse, None

    @property
    def fit(self) -> PlattScaling:
        """The fit; 0.2 ms after a change."""
        if self._fit is None:
            self._fit = _fit_labels(self.labels, self.worse)
        return self._fit


def band_of(score: float) -> int:
    return min(BANDS - 1, max(0, int(score * BANDS)))


def _fit_labels(labels: Floats, worse: Floats) -> PlattScaling:
    design = np.stack([np.ones(BANDS), _LOGITS], axis=1)
    theta = _PRIOR.copy()
    curvature = _PRECISION
    for _ in range(_STEPS):
        p = 1 / (1 + np.exp(-(design @ theta)))
        slope = design.T @ (worse - labels * p) - _PRECISION @ (theta - _PRIOR)
        curvature = design.T @ (design * (labels * p * (1 - p))[:, None]) + _PRECISION
        step = np.linalg.solve(curvature, slope)
        # steps of at most 1, as Newton's method overshoots far from the solution
        theta = theta + step / max(1.0, float(np.abs(step).max()))
        if float(np.abs(step).max()) < 1e-6:
            break
    root = np.linalg.cholesky(np.linalg.inv(curvature))
    return clamped_fit(float(theta[0]), float(theta[1]), (root[0, 0], root[0, 1], root[1, 0], root[1, 1]))


# `quality`: the part of the gap between the light and the large model's answers that a threshold retains.
#
# The large model's answer is the reference: p is the probability that the light one's is worse. Sending all requests to
# the light model loses sum(p) answers, sending all to the large one loses none. With `L` as the requests of the large
# model, the retained part of the gap is
#
# kept = sum(p_i, i in L) / sum(p_i)
#
# This is the expectation of RouteLLM's "performance gap recovered" (Ong et al. 2024, arXiv:2406.18665, section 2), if
# an answer is worth 1 where it is as good as the large model's and 0 where it is worse. Of all sets of one size, those
# with the highest p retain most. So a threshold is the best rule, and the highest one that keeps `quality` is the
# cheapest.

RETENTION_MEMORY = 2000  # requests after which a request's weight is 1/e in the stated quality

Z = 1.96  # 95 %


@dataclass(frozen=True, slots=True)
class QualityRetention:
    """The retained part of the gap, in [0, 1]; NaN before any request.

    The 95 % interval covers the uncertainty of the calibration.
    """

    part: float
    low: float
    high: float


def threshold_for(quality: float, scores: ScoreWindow, fit: PlattScaling) -> float:
    """Return the highest score above which at least this part of the gap lies, over the last requests.

    The result is in [-1, 1]; below 0: send all requests to the large model.
    """
    ordered: Floats = np.asarray(scores.ordered)
    worth = fit(ordered)[::-1].cumsum()  # of the hardest one, two, three, ...
    enough = int(np.searchsorted(worth, quality * worth[-1] - 1e-12)) + 1 if quality > 0 else 0
    if enough == 0:
        return 1.0
    lowest = ordered[-min(enough, len(ordered))]  # the easiest that the large model must answer, and all its equals
    at = int(np.searchsorted(ordered, lowest))
    return -1.0 if at == 0 else float((ordered[at - 1] + lowest) / 2)


class BandCounts:
    """Faded counts by band of scores: all requests with a choice, and those of the large model."""

    def __init__(self) -> None:
        self.all: Floats = np.zeros(BANDS)
        self.large: Floats = np.zeros(BANDS)

    def add(self, score: float, *, large: bool) -> None:
        fade = 1 - 1 / RETENTION_MEMORY
        self.all *= fade
        self.large *= fade
        band = band_of(score)
        self.all[band] += 1
        self.large[band] += large

    def recount(self, score: float, *, large: bool) -> None:
        """Correct a counted request that the other model answered."""
        band = band_of(score)
        self.large[band] = np.clip(self.large[band] + (1.0 if large else -1.0), 0.0, self.all[band])

    def retention(self, fit: PlattScaling) -> QualityRetention:
        if self.all.sum() <= 0:
            return QualityRetention(math.nan, 0.0, 1.0)
        part = self._part(fit)
        others = np.array([self._part(other) for other in fit.sigma_points()])
        spread = Z * float(np.sqrt(np.mean((others - part) ** 2)))
        return QualityRetention(part, max(0.0, part - spread), min(1.0, part + spread))

    def _part(self, fit: PlattScaling) -> float:
        worse = fit(_CENTRES)
        return min(1.0, float(self.large @ worse) / float(self.all @ worse))


VERSION = 1

REFRESH_EVERY = 20  # requests between two updates of the `quality` threshold and of the labels' fading: 0.3 ms each


@dataclass(frozen=True, slots=True)
class TierState:
    """The state of a route. Shares are in [0, 1]; NaN where nothing is known."""

    rule: str  # the deciding key of the policy: escalate_above, large_share or quality
    setting: float | tuple[float, ...]  # its value
    threshold: float  # the score above which the lightest model is not used, now
    large_share: float  # of the last hour's misses with a choice
    retention: QualityRetention
    fit: PlattScaling
    labels: Mapping[str, int]  # number of labels by source
    learning: bool
    version: int


class TierController:
    """`TierController` decides between the lightest tier and the others, which count as `large`.

    `basis` names the scorer; state learned with another one is not used. Only requests with a score count.
    """

    def __init__(self, basis: str) -> None:
        self._basis = basis
        self.learning = True
        self._share: ShareController | None = None
        self._spent = ShareSpent()
        self._forget()

    def _forget(self) -> None:
        self.version = 0  # counts changes of the learned state
        self._requests = 0
        self._scores = ScoreWindow()
        self._routed = BandCounts()
        self._calibration = TierCalibration()
        self._labels: dict[str, int] = {}
        self._pending = 0  # requests not yet applied to the calibration
        self._quality: tuple[float, float] | None = None  # the requested quality, and the threshold that keeps it

    def reset(self) -> None:
        """Forget all that was learned. The spent share stays."""
        self._forget()

    def rescore(self, answered: Sequence[tuple[float, bool]]) -> None:
        """Start again with other scores: those of recent requests, and whether the large model answered.

        The new scores are calibrated to the labels, so the calibration begins again.
        """
        self._calibration, self._routed = TierCalibration(), BandCounts()
        self._scores = ScoreWindow([score for score, _ in answered[-CAPACITY:]])
        for score, large in answered:
            self._routed.add(score, large=large)
        self._quality, self.version = None, self.version + 1

    # One request

    def decide(self, target: Target, score: float, now: float) -> TierDecision:
        """Return the decision of the target's rule. Only `count` changes the state."""
        if target.large_share is not None:
            return self._rule(target.large_share).decide(score, self._scores, self._spent, now)
        threshold = self.threshold(target, now)
        return TierDecision(score > threshold, threshold)

    def threshold(self, target: Target, now: float) -> float:
        """Return the threshold in [-1, 1]. Below 0, every request goes to the large model."""
        if target.large_share is not None:
            return self._rule(target.large_share).threshold(self._scores, self._spent, now)
        if target.quality is None:
            return target.escalate_above[0]
        if self._quality is None or self._quality[0] != target.quality:
            self._quality = target.quality, threshold_for(target.quality, self._scores, self._calibration.fit)
        return self._quality[1]

    def count(self, tier_decision: TierDecision, score: float, now: float, *, large: bool) -> None:
        """Count a request by the model that it went to, as decided or not."""
        if self._share is not None:
            self._share.count(tier_decision, large=large)
        self._spent.add(float(large), now)
        self._routed.add(score, large=large)
        self._scores.add(score)
        self._requests += 1
        self._pending += 1
        if self._pending >= REFRESH_EVERY:
            if self.learning:  # a frozen route does not forget either
                self._calibration.advance(self._pending)
            self._pending = 0
            self._quality = None

    def recount(self, score: float, now: float, *, large: bool) -> None:
        """Correct a counted request that the other model answered. With `large` the large one did."""
        if self._share is not None:
            self._share.recount(large=large)
        self._spent.add(1.0 if large else -1.0, now, 0.0)
        self._routed.recount(score, large=large)

    # Learning

    def observe(self, score: float, worse: float, source: str, weight: float = 1.0) -> None:
        """Learn the probability that the light model's answer was worse, or would have been, for a request with this
        score.

        `weight` in [0, 1]: 1 for a label as reliable as a comparison of both answers, 0 to count it only.
        """
        self._labels[source] = self._labels.get(source, 0) + 1
        self.version += 1
        if self.learning and weight > 0:
            self._calibration.observe(score, worse, min(1.0, weight))
            self._quality = None

    def apply_event(self, score: float, worse: float, weight: float) -> None:
        """Apply a label that another gateway observed. That gateway counts and saves it."""
        if self.learning and weight > 0:
            self._calibration.observe(score, worse, min(1.0, weight))
            self._quality = None

    def tier_state(self, target: Target, now: float) -> TierState:
        rule, setting = rule_of(target)
        return TierState(
            rule,
            setting,
            self.threshold(target, now),
            self._spent.share(now),
            self._routed.retention(self._calibration.fit),
            self._calibration.fit,
            dict(self._labels),
            self.learning,
            self.version,
        )

    @property
    def state(self) -> tuple[int, int]:
        """A value that differs whenever there is something new to save."""
        return self.version, self._requests

    def _rule(self, share: float) -> ShareController:
        """Return the share controller. It starts again when the policy changes the share."""
        if self._share is None or self._share.share != share:
            self._share = ShareController(share)
        return self._share

    # Saving and loading

    def snapshot(self) -> bytes:
        """Return the state as bytes, at most 6 kB."""
        arrays = (self._calibration.labels, self._calibration.worse, self._routed.all, self._routed.large)
        packed: bytes = msgpack.packb(
            (
                VERSION,
                self._basis,
                [array.tolist() for array in arrays],
                self._scores.recent,
                self._labels,
                self.version,
            )
        )
        return packed

    def restore(self, data: bytes) -> None:
        """Load a snapshot. Raise `SnapshotInvalid`."""
        try:
            form, basis, arrays, recent, sources, version = msgpack.unpackb(data, use_list=False)
            if (form, basis) != (VERSION, self._basis):
                raise SnapshotInvalid(
                    f"learned by version {form!r} with {basis!r}, expected version {VERSION}, {self._basis!r}"
                )
            labels, worse, every, large = (band_counts(array, BANDS) for array in arrays)
            scores = [float(score) for score in recent[-CAPACITY:]]
            if not all(math.isfinite(score) and 0 <= score <= 1 for score in scores):
                raise SnapshotInvalid("scores must be in [0, 1]")
            label_counts = {str(source): int(count) for source, count in sources.items()}
            version = int(version)
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise SnapshotInvalid(str(error) or type(error).__name__) from None
        self._calibration.restore(labels, np.minimum(worse, labels))
        self._routed.all, self._routed.large = every, np.minimum(large, every)
        self._scores, self._labels, self.version, self._quality = ScoreWindow(scores), label_counts, version, None


def rule_of(target: Target) -> tuple[str, float | tuple[float, ...]]:
    """Return the deciding key of the policy, and its value."""
    if target.large_share is not None:
        return "large_share", target.large_share
    if target.quality is not None:
        return "quality", target.quality
    above = target.escalate_above
    return "escalate_above", above[0] if len(above) == 1 else above
