"""One route's way to the large model: what its rule asks for now, what came of it, and what labels change. Pure but for
its own state."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import msgpack
import numpy as np

from gateway.config.policy.model import Target
from gateway.errors import SnapshotInvalid
from gateway.messages import Wish
from gateway.routing.calibration import BANDS, Calibration, Fit, Floats
from gateway.routing.quality_retention import Kept, Routed, threshold_for
from gateway.routing.score_window import CAPACITY, Scores
from gateway.routing.share_controller import ShareThreshold, Spent

VERSION = 1
REFRESH_EVERY = 20  # requests between two looks at the threshold of `quality`, and at how labels fade: 0.3 ms each


@dataclass(frozen=True, slots=True)
class Standing:
    """What is known of a route. Shares are in [0, 1], NaN where nothing is known."""

    rule: str  # the key of the policy that decides: escalate_above, large_share or quality
    asked: float | tuple[float, ...]  # its value
    threshold: float  # the score above which the lightest model is not asked, now
    large_share: float  # of the last hour's misses that could have gone to either
    kept: Kept
    fit: Fit
    labels: Mapping[str, int]  # heard, by source
    learning: bool
    version: int


class RouteEscalation:
    """`basis` names what makes the scores: what was learnt of others does not count. Requests count that had a score;
    `large` is every tier but the lightest."""

    def __init__(self, basis: str) -> None:
        self._basis = basis
        self.learning = True
        self._share: ShareThreshold | None = None
        self._spent = Spent()
        self._forget()

    def _forget(self) -> None:
        self.version = 0  # counts what was learnt
        self._requests = 0
        self._scores = Scores()
        self._routed = Routed()
        self._calibration = Calibration()
        self._labels: dict[str, int] = {}
        self._pending = 0  # requests that the calibration has not been told of
        self._quality: tuple[float, float] | None = None  # asked for, and the threshold that keeps it

    def reset(self) -> None:
        """Forgets all that was learnt; what was spent of a share stays spent."""
        self._forget()

    # A request

    def wish(self, target: Target, score: float, now: float) -> Wish:
        """What the rule of `target` asks for; changes nothing that `count` has not been told of."""
        if target.large_share is not None:
            return self._rule(target.large_share).wish(score, self._scores, self._spent, now)
        threshold = self.threshold(target, now)
        return Wish(score > threshold, threshold)

    def threshold(self, target: Target, now: float) -> float:
        """In [-1, 1]: below 0 where every request is to go to the large model."""
        if target.large_share is not None:
            return self._rule(target.large_share).threshold(self._scores, self._spent, now)
        if target.quality is None:
            return target.escalate_above[0]
        if self._quality is None or self._quality[0] != target.quality:
            self._quality = target.quality, threshold_for(target.quality, self._scores, self._calibration.fit)
        return self._quality[1]

    def count(self, wish: Wish, score: float, now: float, *, large: bool) -> None:
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

    def hear(self, score: float, light_was_worse: bool, weight: float) -> None:
        """What `observe` was told at another gateway, which counts and keeps it."""
        if self.learning and weight > 0:
            self._calibration.observe(score, light_was_worse, min(1.0, weight))
            self._quality = None

    def standing(self, target: Target, now: float) -> Standing:
        rule, asked = rule_of(target)
        return Standing(
            rule,
            asked,
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

    def _rule(self, share: float) -> ShareThreshold:
        """Anew where the policy now asks for another share."""
        if self._share is None or self._share.share != share:
            self._share = ShareThreshold(share)
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
            labels, worse, every, large = (_counts(array) for array in arrays)
            scores = [float(score) for score in recent[-CAPACITY:]]
            if not all(math.isfinite(score) and 0 <= score <= 1 for score in scores):
                raise SnapshotInvalid("scores outside of [0, 1]")
            heard = {str(source): int(count) for source, count in sources.items()}
            version = int(version)
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise SnapshotInvalid(str(error) or type(error).__name__) from None
        self._calibration.restore(labels, np.minimum(worse, labels))
        self._routed.all, self._routed.large = every, np.minimum(large, every)
        self._scores, self._labels, self.version, self._quality = Scores(scores), heard, version, None


def rule_of(target: Target) -> tuple[str, float | tuple[float, ...]]:
    """The key of the policy that decides, and its value."""
    if target.large_share is not None:
        return "large_share", target.large_share
    if target.quality is not None:
        return "quality", target.quality
    above = target.escalate_above
    return "escalate_above", above[0] if len(above) == 1 else above


def _counts(values: Sequence[float]) -> Floats:
    array = np.array(values, np.float64)
    if array.shape != (BANDS,) or not np.isfinite(array).all() or (array < 0).any():
        raise SnapshotInvalid(f"{array.shape} counts, expected {BANDS} that are not negative")
    return array
