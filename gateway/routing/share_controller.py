"""`large_share`: which requests go to the large model, so that the share holds over any stretch of the traffic. Pure:
the clock's reading comes in.

Three parts, each correcting the one before it:

1. The quantile: of the last requests (`ScoreWindow`) the hardest are wanted, as many as the share says.
2. The debt: what was too much or too little over the last hour is paid back over a tenth of an hour's requests, by
   wanting fewer or more (an integral term).
3. Two leaky buckets (Turner 1986), one for too many and one for too few: each request brings `band`, and what the
   request is off the share takes it out. No bucket is drawn on beyond its bottom, so that of any n requests in a row,
   over whatever time, the large model's differ from share * n by at most

       band * n + DEPTH                  requests,

   whatever the scores do: sorted, constant, or of another kind from now on. One of the two always has enough: their
   sum never falls below DEPTH, and a choice needs less than 1 of one of them.

What was not free to choose (the budget, a backend that failed, a limit) counts as it came and is made up for, as far as
DEPTH requests: then a stretch is off by at most band * n + 2 * DEPTH + 2, and by those within it that had no choice.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterable, Sequence

from gateway.messages import TierDecision

# What complexities a route has met lately: of the last requests, in order of size. Pure.
CAPACITY = 500  # the standard error of a quantile of .3 is two points then; what `share` does about debt takes it out

# Believed before anything was met: scores spread evenly over [0, 1], as calibrated probabilities of all sorts of
# questions are. One leaves with each of the first requests.
PRIOR = tuple((k + 0.5) / 20 for k in range(20))


class ScoreWindow:
    """A window over requests: a regime of the traffic is forgotten after `capacity` of them. 5 us an addition."""

    def __init__(self, known: Iterable[float] = (), capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._prior = list(PRIOR)
        self._recent: deque[float] = deque()
        self._sorted = sorted(PRIOR)
        for score in known:
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
        """How many are higher."""
        return len(self._sorted) - bisect_right(self._sorted, score)

    def equal(self, score: float) -> int:
        return bisect_right(self._sorted, score) - bisect_left(self._sorted, score)

    def top(self, share: float) -> float:
        """The score above which at most this share lies: 1 for none of them, below all of them for all."""
        count = int(share * len(self._sorted) + 1e-9)
        if count <= 0:
            return 1.0
        return 0.0 if count >= len(self._sorted) else self._sorted[-count - 1]

    @property
    def ordered(self) -> Sequence[float]:
        """Lowest first."""
        return self._sorted

    @property
    def recent(self) -> tuple[float, ...]:
        """Oldest first, what was believed before left out: to be kept over a restart."""
        return tuple(self._recent)

    def _drop(self, score: float) -> None:
        del self._sorted[bisect_left(self._sorted, score)]


HOUR_S = 3600.0

DEPTH = 5.0  # requests: a run of hard ones need not wait, and 200 requests are within 4.5 points of a share of 30 %

BAND = 0.02  # of the requests, at most; of small and of large shares a tenth, so that 1 % does not become 3 %

# Of an hour's requests, over which a debt is paid back, and never over fewer than these. On even scores at 1,200 an
# hour 92 % of those chosen are an oracle's with .1 and with .25, 91 % with .05; where a fifth must be light, .25 leaves
# the share 1 point short, .1 half a point (tests/routing/test_share_controller.py has both streams).
REPAYMENT_SHARE, MIN_REPAYMENT_WINDOW = 0.1, 50.0


def band_of(share: float) -> float:
    return min(BAND, 0.1 * min(share, 1.0 - share))


class ShareSpent:
    """Requests and those of the large model, fading with the hour: one counts 1/e after it."""

    def __init__(self) -> None:
        self._since: float | None = None
        self._all = 0.0
        self._large = 0.0

    def add(self, large: float, now: float, requests: float = 1.0) -> None:
        """`large` requests more of the large model, and so many more in all."""
        self._fade(now)
        self._all += requests
        self._large = max(0.0, self._large + large)

    def requests(self, now: float) -> float:
        self._fade(now)
        return self._all

    def share(self, now: float) -> float:
        """Of the large model; NaN before anything came."""
        self._fade(now)
        return min(1.0, self._large / self._all) if self._all > 1e-6 else math.nan

    def beyond(self, share: float, now: float) -> float:
        """Requests of the large model beyond this share; negative: too few."""
        self._fade(now)
        return self._large - share * self._all

    def _fade(self, now: float) -> None:
        if self._since is not None and now > self._since:
            decay = math.exp(-(now - self._since) / HOUR_S)
            self._all *= decay
            self._large *= decay
        self._since = now if self._since is None else max(self._since, now)


class ShareController:
    """`share`: of the requests that could have gone to either, in [0, 1]. To be used from one thread.

    `wish` changes nothing; of equal state and time it never wants the large model for a score and the light one for a
    higher score. `count` is told what came of each, in the order of the wishes.
    """

    def __init__(self, share: float) -> None:
        self.share = share
        self.band = band_of(share)
        self._room_above = self._room_below = DEPTH
        self._carried = 0.0

    def wish(self, score: float, scores: ScoreWindow, spent: ShareSpent, now: float) -> TierDecision:
        target = self._target_share(spent, now)
        threshold = scores.top(target)
        if self.share <= 0.0 or self.share >= 1.0:
            return TierDecision(self.share >= 1.0, threshold)
        part = self._part(score, target, scores)
        large, carried = part >= 1.0, None
        if 0.0 < part < 1.0:  # one of several that are equal: every so many of them, rather than all or none
            large = self._carried + part >= 1.0 - 1e-9
            carried = min(1.0, max(0.0, self._carried + part - large))
        return TierDecision(self._clamp(large), threshold, carried)

    def threshold(self, scores: ScoreWindow, spent: ShareSpent, now: float) -> float:
        return scores.top(self._target_share(spent, now))

    def count(self, wish: TierDecision, *, large: bool) -> None:
        """What one request came to."""
        if wish.carried is not None:
            self._carried = wish.carried
        self._update_room(large - self.share, self.band)

    def recount(self, *, large: bool) -> None:
        """One that was counted went to the other model after all: `large` says to which."""
        self._update_room(1.0 if large else -1.0, 0.0)

    def _target_share(self, spent: ShareSpent, now: float) -> float:
        """The share that the quantile is set to."""
        window = max(MIN_REPAYMENT_WINDOW, REPAYMENT_SHARE * spent.requests(now))
        return min(1.0, max(0.0, self.share - spent.beyond(self.share, now) / window))

    @staticmethod
    def _part(score: float, target: float, scores: ScoreWindow) -> float:
        """How much of this score is wanted, itself among its equals: rises with the score, in [0, 1]."""
        places = target * (len(scores) + 1) - scores.above(score)
        return min(1.0, max(0.0, places / (scores.equal(score) + 1)))

    def _clamp(self, large: bool) -> bool:
        """As wanted where there is room for it, otherwise the other one, otherwise what there is more room for."""
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
