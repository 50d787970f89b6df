"""One route's way to the large model: what its rule asks for now, what came of it, and what labels change. Pure but for
its own state."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import msgpack
import numpy as np
from numpy.typing import NDArray

from gateway.cache.threshold.ledger import band_counts
from gateway.config.policy.model import Target
from gateway.errors import SnapshotInvalid
from gateway.messages import TierDecision
from gateway.routing.share_controller import CAPACITY, ScoreWindow, ShareController, ShareSpent

# What a route's labels say of its scores: P(the light model's answer is worse) as this route's traffic has it. Pure.
#
# p = sigmoid(shift + slope * logit(score))
#
# Platt's scaling (1999) of a score that is a probability already, with a Gaussian prior on "it is right as it is": the
# most probable shift and slope by Newton's method, how sure they are by Laplace's approximation (Bishop, Pattern
# Recognition and Machine Learning, 2006, section 4.5). Two numbers, since labels are few; both have bounds, since some
# of them come from clients.

Floats = NDArray[np.float64]

BANDS = 20  # of scores: a label is kept as one count of its band

# Standard deviations before any label. With .7 ten labels weigh as much as what was believed before them, as in the
# cache's ledger (`PRIOR_LABELS`); slopes are known less well from labels, and held more firmly.
SHIFT_SPREAD, SLOPE_SPREAD = 0.7, 0.25

MAX_SHIFT = 2.0  # a score of .5 means .12 to .88 at the utmost

MIN_SLOPE, MAX_SLOPE = 0.5, 2.0

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

    def sigma_points(self) -> tuple[Fit, ...]:
        """Four that together are spread as what is not known: the sigma points of the unscented transform (Julier and
        Uhlmann 1997), each of weight 1/4."""
        a, _, c, d = (math.sqrt(2.0) * x for x in self.root)
        steps = ((a, c), (-a, -c), (0.0, d), (0.0, -d))
        return tuple(clamped_fit(self.shift + x, self.slope + y, self.root) for x, y in steps)


def clamped_fit(shift: float, slope: float, root: tuple[float, float, float, float]) -> Fit:
    return Fit(min(MAX_SHIFT, max(-MAX_SHIFT, shift)), min(MAX_SLOPE, max(MIN_SLOPE, slope)), root)


class TierCalibration:
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
            self._fit = _fit_labels(self.labels, self.worse)
        return self._fit


def band_of(score: float) -> int:
    return min(BANDS - 1, max(0, int(score * BANDS)))


def _fit_labels(labels: Floats, worse: Floats) -> Fit:
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
    return clamped_fit(float(theta[0]), float(theta[1]), (root[0, 0], root[0, 1], root[1, 0], root[1, 1]))


# `quality`: how much of the gap between the light and the large model's answers a threshold keeps. Pure.
#
# The large model's answer is the measure: p is the probability that the light one's is worse. Sending everything to the
# light model loses sum(p) answers against it, sending everything to the large one none; of what is sent to the light
# one sum(p) is lost again. So the part of the gap that is kept, with `L` the requests that the large model answers, is
#
# kept = sum(p_i, i in L) / sum(p_i)
#
# which is the expectation of the "performance gap recovered" of RouteLLM (Ong et al. 2024, arXiv:2406.18665, section 2)
# for an answer that is worth 1 where it is as good as the large model's and 0 where it is worse. Of all sets of one
# size those with the highest p keep most, so a threshold is the best rule, and the highest one that keeps `quality` is
# the cheapest.

RETENTION_MEMORY = 2000  # requests after which one counts 1/e in what is stated

Z = 1.96  # 95 %


@dataclass(frozen=True, slots=True)
class QualityRetention:
    """A part of the gap, in [0, 1], with the 95 % interval of what the calibration does not know; NaN before any
    request."""

    part: float
    low: float
    high: float


def threshold_for(quality: float, scores: ScoreWindow, fit: Fit) -> float:
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
        fade = 1 - 1 / RETENTION_MEMORY
        self.all *= fade
        self.large *= fade
        band = band_of(score)
        self.all[band] += 1
        self.large[band] += large

    def recount(self, score: float, *, large: bool) -> None:
        """One that was counted went to the other model after all."""
        band = band_of(score)
        self.large[band] = np.clip(self.large[band] + (1.0 if large else -1.0), 0.0, self.all[band])

    def kept(self, fit: Fit) -> QualityRetention:
        if self.all.sum() <= 0:
            return QualityRetention(math.nan, 0.0, 1.0)
        part = self._part(fit)
        others = np.array([self._part(other) for other in fit.sigma_points()])
        spread = Z * float(np.sqrt(np.mean((others - part) ** 2)))
        return QualityRetention(part, max(0.0, part - spread), min(1.0, part + spread))

    def _part(self, fit: Fit) -> float:
        worse = fit(_CENTRES)
        return min(1.0, float(self.large @ worse) / float(self.all @ worse))


VERSION = 1

REFRESH_EVERY = 20  # requests between two looks at the threshold of `quality`, and at how labels fade: 0.3 ms each


@dataclass(frozen=True, slots=True)
class TierState:
    """What is known of a route. Shares are in [0, 1], NaN where nothing is known."""

    rule: str  # the key of the policy that decides: escalate_above, large_share or quality
    setting: float | tuple[float, ...]  # its value
    threshold: float  # the score above which the lightest model is not asked, now
    large_share: float  # of the last hour's misses that could have gone to either
    kept: QualityRetention
    fit: Fit
    labels: Mapping[str, int]  # heard, by source
    learning: bool
    version: int


class TierController:
    """`basis` names what makes the scores: what was learnt of others does not count. Requests count that had a score;
    `large` is every tier but the lightest."""

    def __init__(self, basis: str) -> None:
        self._basis = basis
        self.learning = True
        self._share: ShareController | None = None
        self._spent = ShareSpent()
        self._forget()

    def _forget(self) -> None:
        self.version = 0  # counts what was learnt
        self._requests = 0
        self._scores = ScoreWindow()
        self._routed = Routed()
        self._calibration = TierCalibration()
        self._labels: dict[str, int] = {}
        self._pending = 0  # requests that the calibration has not been told of
        self._quality: tuple[float, float] | None = None  # asked for, and the threshold that keeps it

    def reset(self) -> None:
        """Forgets all that was learnt; what was spent of a share stays spent."""
        self._forget()

    # A request

    def wish(self, target: Target, score: float, now: float) -> TierDecision:
        """What the rule of `target` asks for; changes nothing that `count` has not been told of."""
        if target.large_share is not None:
            return self._rule(target.large_share).wish(score, self._scores, self._spent, now)
        threshold = self.threshold(target, now)
        return TierDecision(score > threshold, threshold)

    def threshold(self, target: Target, now: float) -> float:
        """In [-1, 1]: below 0 where every request is to go to the large model."""
        if target.large_share is not None:
            return self._rule(target.large_share).threshold(self._scores, self._spent, now)
        if target.quality is None:
            return target.escalate_above[0]
        if self._quality is None or self._quality[0] != target.quality:
            self._quality = target.quality, threshold_for(target.quality, self._scores, self._calibration.fit)
        return self._quality[1]

    def count(self, wish: TierDecision, score: float, now: float, *, large: bool) -> None:
        """A request was sent where `large` says, wished for or not."""
        if self._share is not None:
            self._share.count(wish, large=large)
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
        """One that was counted is answered by the other model after all: `large` says whether by that one."""
        if self._share is not None:
            self._share.recount(large=large)
        self._spent.add(1.0 if large else -1.0, now, 0.0)
        self._routed.recount(score, large=large)

    # What became known

    def observe(self, score: float, light_was_worse: bool, source: str, weight: float = 1.0) -> None:
        """A request of this score was answered by the light model, or would have been. `weight`: in (0, 1], 1 for what
        says it as surely as a comparison of both models' answers does, 0 for what is counted alone."""
        self._labels[source] = self._labels.get(source, 0) + 1
        self.version += 1
        if self.learning and weight > 0:
            self._calibration.observe(score, light_was_worse, min(1.0, weight))
            self._quality = None

    def apply_event(self, score: float, light_was_worse: bool, weight: float) -> None:
        """What `observe` was told at another gateway, which counts and keeps it."""
        if self.learning and weight > 0:
            self._calibration.observe(score, light_was_worse, min(1.0, weight))
            self._quality = None

    def tier_state(self, target: Target, now: float) -> TierState:
        rule, setting = rule_of(target)
        return TierState(
            rule,
            setting,
            self.threshold(target, now),
            self._spent.share(now),
            self._routed.kept(self._calibration.fit),
            self._calibration.fit,
            dict(self._labels),
            self.learning,
            self.version,
        )

    @property
    def state(self) -> tuple[int, int]:
        """Differs whenever there is something new to be kept."""
        return self.version, self._requests

    def _rule(self, share: float) -> ShareController:
        """Anew where the policy now asks for another share."""
        if self._share is None or self._share.share != share:
            self._share = ShareController(share)
        return self._share

    # Over a restart

    def snapshot(self) -> bytes:
        """At most 6 kB."""
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
        """Raises `SnapshotInvalid`."""
        try:
            form, basis, arrays, recent, sources, version = msgpack.unpackb(data, use_list=False)
            if (form, basis) != (VERSION, self._basis):
                raise SnapshotInvalid(f"learnt by version {form!r} with {basis!r}, expected {self._basis!r}")
            labels, worse, every, large = (band_counts(array, BANDS) for array in arrays)
            scores = [float(score) for score in recent[-CAPACITY:]]
            if not all(math.isfinite(score) and 0 <= score <= 1 for score in scores):
                raise SnapshotInvalid("scores outside of [0, 1]")
            label_counts = {str(source): int(count) for source, count in sources.items()}
            version = int(version)
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise SnapshotInvalid(str(error) or type(error).__name__) from None
        self._calibration.restore(labels, np.minimum(worse, labels))
        self._routed.all, self._routed.large = every, np.minimum(large, every)
        self._scores, self._labels, self.version, self._quality = ScoreWindow(scores), label_counts, version, None


def rule_of(target: Target) -> tuple[str, float | tuple[float, ...]]:
    """The key of the policy that decides, and its value."""
    if target.large_share is not None:
        return "large_share", target.large_share
    if target.quality is not None:
        return "quality", target.quality
    above = target.escalate_above
    return "escalate_above", above[0] if len(above) == 1 else above
