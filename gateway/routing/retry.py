"""Whether a call that failed is sent again, where to and when. Pure: the clock's reading and chance come in."""

from __future__ import annotations

from collections import deque
from enum import Enum

# Finagle's and linkerd's retry budgets: a share of the calls of the last ten seconds, and a few for quiet times.
WINDOW_S = 10.0
MINIMUM = 5  # in a window, whatever the share gives: until a breaker opens in a quiet hour
BACKOFF_S, LONGEST_BACKOFF_S = 0.025, 0.25  # Envoy's defaults
IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})  # RFC 9110 section 9.2.2


class Again(Enum):
    """Who may be asked after a failure."""

    NOBODY = "nobody"
    OTHERS = "others"  # another upstream, not this one
    ANYBODY = "anybody"  # another one, or this one where there is no other


def after_answer(status: int, *, waits: bool) -> Again:
    """`waits`: the upstream said when it wants to be asked again."""
    if status in (502, 503, 504):
        return Again.OTHERS if waits else Again.ANYBODY
    return Again.OTHERS if status in (408, 429, 500) else Again.NOBODY


def after_failure(status: int, *, retryable: bool) -> Again:
    """Of a call without an answer: `status` is 504 where none came in time, 400 where the request was refused."""
    if not retryable or status == 400:
        return Again.NOBODY
    return Again.OTHERS if status == 504 else Again.ANYBODY


class RetryBudget:
    """At most `share` of the calls of the last `WINDOW_S` are retries, or `MINIMUM` where that is more. A share of 0
    allows none. One for each backend: what fails there fails for all routes. `held`: retries that are set aside for
    calls that are on their way, as long as they are."""

    __slots__ = ("_asked", "_retried", "_share", "held")

    def __init__(self, share: float) -> None:
        self._share = share
        self.held = 0
        self._asked: deque[tuple[float, int]] = deque()  # the second, and the calls in it
        self._retried: deque[tuple[float, int]] = deque()

    def asked(self, now: float) -> None:
        """A call came; its retries are none."""
        asked, second = self._asked, float(int(now))
        if asked and asked[-1][0] == second:  # as a rule
            asked[-1] = second, asked[-1][1] + 1
        else:
            _count(asked, now)

    def left(self, now: float) -> bool:
        """Whether a retry may be made now."""
        allowed = max(MINIMUM, self._share * _recent(self._asked, now)) if self._share > 0 else 0
        return _recent(self._retried, now) + self.held + 1 <= allowed

    def spend(self, now: float) -> None:
        """A retry is made."""
        _count(self._retried, now)


def _count(seconds: deque[tuple[float, int]], now: float) -> None:
    second = float(int(now))
    if seconds and seconds[-1][0] == second:
        seconds[-1] = (second, seconds[-1][1] + 1)
    else:
        _recent(seconds, now)
        seconds.append((second, 1))


def _recent(seconds: deque[tuple[float, int]], now: float) -> int:
    """Forgets what is older than the window; at most `WINDOW_S` + 1 counts stay."""
    while seconds and seconds[0][0] <= int(now) - WINDOW_S:
        seconds.popleft()
    return sum(count for _, count in seconds)


def backoff_s(retry: int, chance: float) -> float:
    """How long to wait before the `retry`-th retry, counted from 0: exponential with full jitter (Brooker, "Exponential
    Backoff and Jitter", 2015). `chance`: in [0, 1)."""
    return chance * min(LONGEST_BACKOFF_S, BACKOFF_S * 2.0**retry)


def patience_s(remaining_s: float, other_s: float | None) -> float | None:
    """How long an upstream may take to its first byte where another one could still answer after it: the other one gets
    twice what it is expected to take, at most half of what remains; half where nothing is known of it. None: the other
    one could not make it either, so that giving up this one would win nothing."""
    if other_s is None:
        return remaining_s / 2
    if other_s > remaining_s / 2:
        return None
    return max(remaining_s / 2, remaining_s - 2 * other_s)
