"""Decide by `large_share` which requests go to the large model, so that the share holds over any stretch.

The controller is pure: the caller passes the time. It has three parts, each correcting the one before it:

1. The quantile: the hardest of the last requests (`ScoreWindow`) are wanted, as many as the share allows.
2. The debt: an excess or deficit over the last hour changes the wanted share (an integral term). It is repaid over a
   tenth of an hour's requests.
3. Two leaky buckets (Turner 1986), one for too many and one for too few. Each request adds `band` and removes its
   deviation from the share. No bucket goes below its bottom. So among any n requests in a row, over any time, the
   number of large ones differs from share * n by at most

       band * n + DEPTH                  requests.

   This bound does not depend on the scores: sorted, constant, or suddenly of another kind. One of the two buckets
   always has enough. Their sum never falls below DEPTH, and a choice takes less than 1 from one of them.

Requests without a free choice (the budget, a failed backend, a limit) count as they came and are compensated, up to
DEPTH requests. Then a stretch is off by at most band * n + 2 * DEPTH + 2, plus its requests without a choice.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence

from gateway.scores import TierDecision

# The recent scores of a route, sorted.
# requests; the standard error of a quantile of 0.3 is then two points, which the repayment of debt corrects
CAPACITY = 500

# Assumed before any request: scores spread evenly over [0, 1], like calibrated probabilities of mixed questions. Each
# of the first requests replaces one of them.
PRIOR = tuple((k + 0.5) / 20 for k in range(20))


class ScoreWindow:
    """A window over the last `capacity` scores, so that older traffic is forgotten. Adding one takes 5 us."""

    def __init__(self, scores: Iterable[float] = (), capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._prior = list(PRIOR)
        self._recent: deque[float] = deque()
        self._sorted = sorted(PRIOR)
        for score in scores:
            self.add(score)

    def __len__(self) -> int:
        return len(self._sorted)

    def add(self, score: float) -> None:
        if self._prior:
            self._drop(self._prior.pop())
        elif len(self._recent) >= self._capacity:
            self._drop(self._recent.popleft())
        self._recent.append(score)
        insort(self._sorted, score)

    def above(self, score: float) -> int:
        """Return the number of higher scores."""
        return len(self._sorted) - bisect_right(self._sorted, score)

    def equal(self, score: float) -> int:
        return bisect_right(self._sorted, score) - bisect_left(self._sorted, score)

    def top(self, share: float) -> float:
        """Return the score above which at most this share lies. 1 selects no request, 0 all of them."""
        count = int(share * len(self._sorted) + 1e-9)
        if count <= 0:
            return 1.0
        return 0.0 if count >= len(self._sorted) else self._sorted[-count - 1]

    @property
    def ordered(self) -> Sequence[float]:
        """All scores, lowest first."""
        return self._sorted

    @property
    def recent(self) -> tuple[float, ...]:
        """The scores without the assumed ones, oldest first, for the snapshot."""
        return tuple(self._recent)

    def _drop(self, score: float) -> None:
        del self._sorted[bisect_left(self._sorted, score)]


HOUR_S = 3600.0

DEPTH = 5.0  # requests; a run of hard ones need not wait, and 200 requests are within 4.5 points of a share of 30 %

BAND = 0.02  # maximum share of requests; for small and large shares a tenth, so that 1 % does not become 3 %

# A debt is repaid over this share of an hour's requests, and never over fewer than the minimum. On even scores at 1,200
# an hour, 92 % of the chosen requests are an oracle's with 0.1 and with 0.25, 91 % with 0.05. Where a fifth must be
# light, 0.25 leaves the share 1 point short, 0.1 half a point (tests/routing/test_share_controller.py has both
# streams).
REPAYMENT_SHARE, MIN_REPAYMENT_WINDOW = 0.1, 50.0


def band_of(share: float) -> float:
    return min(BAND, 0.1 * min(share, 1.0 - share))


class ShareSpent:
    """Counts of all requests and of the large model's, with weight 1/e after an hour."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._all = 0.0
        self._large = 0.0

    def add(self, large: float, now: float, requests: float = 1.0) -> None:
        """Add `large` requests of the large model, and `requests` to the total."""
        self._fade(now)
        self._all += requests
        self._large = max(0.0, self._large + large)

    def requests(self, now: float) -> float:
        self._fade(now)
        return self._all

    def share(self, now: float) -> float:
        """Return the share of the large model; NaN before any request."""
        self._fade(now)
        return min(1.0, self._large / self._all) if self._all > 1e-6 else math.nan

    def beyond(self, share: float, now: float) -> float:
        """Return the requests of the large model beyond this share; negative: too few."""
        self._fade(now)
        return self._large - share * self._all

    def _fade(self, now: float) -> None:
        if self._since is not None and now > self._since:
            decay = math.exp(-(now - self._since) / HOUR_S)
            self._all *= decay
            self._large *= decay
        self._since = now if self._since is None else max(self._since, now)


class ShareController:
    """`ShareController` keeps the share of requests that go to the large model. It serves one thread.

    `share` is in [0, 1], of the requests that could have gone to either. `decide` changes nothing. At equal state and
    time, a higher score never gets the light model where a lower one gets the large one. `count` must be called with
    the outcomes in the order of the decisions.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.band = band_of(share)
        self._room_above = self._room_below = DEPTH
        self._carried = 0.0

    def decide(self, score: float, scores: ScoreWindow, spent: ShareSpent, now: float) -> TierDecision:
        target = self._target_share(spent, now)
        threshold = scores.top(target)
        if self.share <= 0.0 or self.share >= 1.0:
            return TierDecision(self.share >= 1.0, threshold)
        part = self._part(score, target, scores)
        large, carried = part >= 1.0, None
        if 0.0 < part < 1.0:  # among equal scores take a fixed fraction, rather than all or none
            large = self._carried + part >= 1.0 - 1e-9
            carried = min(1.0, max(0.0, self._carried + part - large))
        return TierDecision(self._clamp(large), threshold, carried)

    def threshold(self, scores: ScoreWindow, spent: ShareSpent, now: float) -> float:
        return scores.top(self._target_share(spent, now))

    def count(self, tier_decision: TierDecision, *, large: bool) -> None:
        """Count one request and the model that it went to."""
        if tier_decision.carried is not None:
            self._carried = tier_decision.carried
        self._update_room(large - self.share, self.band)

    def recount(self, *, large: bool) -> None:
        """Correct a counted request that the other model answered. `large` tells which."""
        self._update_room(1.0 if large else -1.0, 0.0)

    def _target_share(self, spent: ShareSpent, now: float) -> float:
        """Return the share that the quantile is set to."""
        window = max(MIN_REPAYMENT_WINDOW, REPAYMENT_SHARE * spent.requests(now))
        return min(1.0, max(0.0, self.share - spent.beyond(self.share, now) / window))

    @staticmethod
    def _part(score: float, target: float, scores: ScoreWindow) -> float:
        """Return the wanted fraction of requests with this score, in [0, 1]; it rises with the score."""
        places = target * (len(scores) + 1) - scores.above(score)
        return min(1.0, max(0.0, places / (scores.equal(score) + 1)))

    def _clamp(self, large: bool) -> bool:
        """Return the wanted model if its bucket has room, else the other one, else the one with more room."""
        may_large = self._room_above + self.band >= 1.0 - self.share
        may_light = self._room_below + self.band >= self.share
        if may_large and may_light:
            return large
        if may_large or may_light:
            return may_large
        return self._room_above > self._room_below

    def _update_room(self, beyond: float, refill: float) -> None:
        self._room_above = min(DEPTH, max(-DEPTH, self._room_above + refill - beyond))
        self._room_below = min(DEPTH, max(-DEPTH, self._room_below + refill + beyond))
