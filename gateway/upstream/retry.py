"""Decides whether a failed call is retried, where and when, within a budget. Pure."""

from __future__ import annotations

from collections import deque
from enum import Enum

from gateway.context import RequestContext
from gateway.errors import AttemptTimedOut, BackendError, BackendOverloaded, ModelNotReady, UnsupportedByBackend
from gateway.messages import Response
from gateway.streams import close_body

# Finagle's and linkerd's retry budgets: a share of the calls of the last ten seconds, and a few for quiet times.
WINDOW_S = 10.0

MINIMUM = 5  # in a window, whatever the share gives: until a breaker opens in a quiet hour

BACKOFF_S, MAX_RETRY_BACKOFF_S = 0.025, 0.25  # Envoy's defaults

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})  # RFC 9110 section 9.2.2


class RetryTarget(Enum):
    """Who may be asked after a failure."""

    NOBODY = "nobody"
    OTHERS = "others"  # another upstream, not this one
    ANYBODY = "anybody"  # another one, or this one where there is no other


def target_after_response(status: int, *, waits: bool) -> RetryTarget:
    """`waits`: the upstream said when it wants to be asked again."""
    if status in (502, 503, 504):
        return RetryTarget.OTHERS if waits else RetryTarget.ANYBODY
    return RetryTarget.OTHERS if status in (408, 429, 500) else RetryTarget.NOBODY


def target_after_failure(status: int, *, retryable: bool) -> RetryTarget:
    """Of a call without an answer: `status` is 504 where none came in time, 400 where the request was refused."""
    if not retryable or status == 400:
        return RetryTarget.NOBODY
    return RetryTarget.OTHERS if status == 504 else RetryTarget.ANYBODY


class RetryWindow(deque[tuple[float, int]]):
    """What was counted in the last `WINDOW_S`, by the second: `WINDOW_S` + 1 counts at most."""

    __slots__ = ()

    def add(self, now: float) -> None:
        second = float(int(now))
        if self and self[-1][0] == second:  # as a rule
            self[-1] = second, self[-1][1] + 1
        else:
            self.total(now)
            self.append((second, 1))

    def subtract(self, count: int) -> None:
        """So many of the latest were none."""
        while count > 0 and self:
            second, counted = self.pop()
            if counted > count:
                self.append((second, counted - count))
            count -= counted

    def total(self, now: float) -> int:
        """Forgets what is older."""
        while self and self[0][0] <= int(now) - WINDOW_S:
            self.popleft()
        return sum(count for _, count in self)


class RetryBudget:
    """At most `share` of the calls of the last `WINDOW_S` are retries, or `MINIMUM` where that is more. A share of 0
    allows none. One for each backend: what fails there fails for all routes. `reserved`: retries that are set aside for
    calls that are on their way, as long as they are.

    `asked` is told when a call came, of which its retries are none; `spend` when a retry is made; `refund` of how many
    that were not made after all."""

    __slots__ = ("_calls", "_retries", "_share", "asked", "refund", "reserved", "spend")

    def __init__(self, share: float) -> None:
        self._share = share
        self.reserved = 0
        self._calls, self._retries = RetryWindow(), RetryWindow()
        self.asked, self.spend = self._calls.add, self._retries.add  # every call comes by: no frame more
        self.refund = self._retries.subtract

    def is_available(self, now: float) -> bool:
        """Whether a retry may be made now."""
        allowed = max(MINIMUM, self._share * self._calls.total(now)) if self._share > 0 else 0
        return self._retries.total(now) + self.reserved + 1 <= allowed


def backoff_s(retry: int, jitter: float) -> float:
    """How long to wait before the `retry`-th retry, counted from 0: exponential with full jitter (Brooker, "Exponential
    Backoff and Jitter", 2015). `jitter`: in [0, 1)."""
    return jitter * min(MAX_RETRY_BACKOFF_S, BACKOFF_S * 2.0**retry)


def attempt_timeout_s(remaining_s: float, other_s: float | None) -> float | None:
    """How long an upstream may take to its first byte where another one could still answer after it: the other one gets
    twice what it is expected to take, at most half of what remains; half where nothing is known of it. None: the other
    one could not make it either, so that giving up this one would win nothing."""
    if other_s is None:
        return remaining_s / 2
    if other_s > remaining_s / 2:
        return None
    return max(remaining_s / 2, remaining_s - 2 * other_s)


# What came of asking an upstream once, and whether it may be asked about again.
Outcome = Response | BackendError


def retry_target(outcome: Outcome, request: RequestContext, *, waits: bool) -> RetryTarget:
    """Who may be asked after it. `waits`: the upstream said when it wants to be asked again."""
    if isinstance(outcome, Response):
        target, sent = target_after_response(outcome.status, waits=waits), True
    elif isinstance(outcome, BackendOverloaded):
        return RetryTarget.OTHERS
    elif isinstance(outcome, UnsupportedByBackend):
        return RetryTarget.NOBODY  # upstreams have the same models
    else:
        target, sent = target_after_failure(outcome.status, retryable=outcome.retryable), outcome.sent
        if isinstance(outcome, AttemptTimedOut):
            target = RetryTarget.ANYBODY  # it may be all there is by now
        elif isinstance(outcome, ModelNotReady):
            target = RetryTarget.OTHERS
    return target if is_repeatable(request, sent=sent) else RetryTarget.NOBODY


def failed(outcome: Outcome) -> bool:
    """Whether it speaks against the upstream."""
    if isinstance(outcome, Response):
        return outcome.status >= 500
    return not isinstance(outcome, BackendOverloaded | AttemptTimedOut | UnsupportedByBackend)


def is_repeatable(request: RequestContext, *, sent: bool = True) -> bool:
    """Calls that a dialect knows change nothing upstream, unless they are stateful. What passes through may: it is
    repeated only where that is harmless by its method (RFC 9110 section 9.2.2) and its body is still there, or where
    nothing of it was sent."""
    if not sent:
        return True
    if request.call is not None:
        return not request.call.stateful
    return request.method in IDEMPOTENT and request.body_source.replayable


def is_free_attempt(outcome: Outcome) -> bool:
    """The upstream had no work from it, and the client hardly waited: to go on to the next one is no retry. Each is
    asked once in this way."""
    return isinstance(outcome, BackendError) and not outcome.sent and outcome.status != 504


def unwrap_outcome(outcome: Outcome) -> Response:
    """Raises what was an error."""
    if isinstance(outcome, Response):
        return outcome
    raise outcome


async def discard_response(outcome: Outcome) -> None:
    """Of an answer that nobody will read."""
    if isinstance(outcome, Response):
        await close_body(outcome.body)
