"""Decide whether, where and when a failed call is retried, within a budget. Pure."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum

from gateway.context import RequestContext
from gateway.dialects.self_contained import may_be_repeated
from gateway.errors import AttemptTimedOut, BackendError, BackendOverloaded, ModelNotReady, UnsupportedByBackend
from gateway.messages import Response
from gateway.observability.metrics import Counter
from gateway.ports import Clock
from gateway.statuses import is_failure
from gateway.streams import close_body

# As in Finagle and linkerd: a share of the calls of the last ten seconds, and a few more for quiet times.
WINDOW_S = 10.0

MINIMUM = 5  # per window, whatever the share gives: enough to open a breaker in a quiet hour

BACKOFF_S, MAX_RETRY_BACKOFF_S = 0.025, 0.25  # Envoy's defaults

IDEMPOTENT = frozenset({"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE"})  # RFC 9110 section 9.2.2


class RetryTarget(Enum):
    """The upstreams that may be tried after a failure."""

    NOBODY = "nobody"
    OTHERS = "others"  # another upstream, but not this one
    ANYBODY = "anybody"  # another upstream, or this one if there is no other


def target_after_response(status: int, *, waits: bool) -> RetryTarget:
    """Return the target after a response. If it `waits`, the upstream said when it accepts calls again."""
    if status in (408, 429, 500):
        return RetryTarget.OTHERS
    if not is_failure(status):
        return RetryTarget.NOBODY
    return RetryTarget.OTHERS if waits else RetryTarget.ANYBODY


def target_after_failure(status: int, *, retryable: bool) -> RetryTarget:
    """Return the target after a call without a response. `status` is 504 for a timeout, 400 for a refused request."""
    if not retryable or status == 400:
        return RetryTarget.NOBODY
    return RetryTarget.OTHERS if status == 504 else RetryTarget.ANYBODY


class RetryWindow(deque[tuple[float, int]]):
    """`RetryWindow` counts events of the last `WINDOW_S`, by the second, so it has at most `WINDOW_S` + 1 counts."""

    __slots__ = ()

    def add(self, now: float) -> None:
        second = float(int(now))
        if self and self[-1][0] == second:  # the common case
            self[-1] = second, self[-1][1] + 1
        else:
            self.total(now)
            self.append((second, 1))

    def subtract(self, count: int) -> None:
        """Remove the latest `count` events."""
        while count > 0 and self:
            second, counted = self.pop()
            if counted > count:
                self.append((second, counted - count))
            count -= counted

    def total(self, now: float) -> int:
        """Return the number of events in the window, and forget older ones."""
        while self and self[0][0] <= int(now) - WINDOW_S:
            self.popleft()
        return sum(count for _, count in self)


class RetryBudget:
    """`RetryBudget` allows retries up to `share` of the calls of the last `WINDOW_S`, or `MINIMUM` if that is more.

    A share of 0 allows none. Each backend has one budget, because a failing backend fails for all routes. `reserved`
    counts retries that are set aside for calls in flight.

    Call `record_call` for each call (not for its retries), `spend` for each retry, and `refund` with the number of
    spent retries that were not made.
    """

    __slots__ = ("_calls", "_retries", "_share", "record_call", "refund", "reserved", "spend")

    def __init__(self, share: float) -> None:
        self._share = share
        self.reserved = 0
        self._calls, self._retries = RetryWindow(), RetryWindow()
        self.record_call, self.spend = self._calls.add, self._retries.add  # bound methods save a frame on each call
        self.refund = self._retries.subtract

    def is_available(self, now: float) -> bool:
        """Return whether a retry may be made now."""
        allowed = max(MINIMUM, self._share * self._calls.total(now)) if self._share > 0 else 0
        return self._retries.total(now) + self.reserved + 1 <= allowed


def backoff_s(retry: int, jitter: float) -> float:
    """Return the seconds to wait before retry number `retry`, counted from 0.

    This is exponential backoff with full jitter (Brooker, "Exponential Backoff and Jitter", 2015). `jitter` is in [0,
    1).
    """
    return jitter * min(MAX_RETRY_BACKOFF_S, BACKOFF_S * 2.0**retry)


def attempt_timeout_s(remaining_s: float, other_s: float | None) -> float | None:
    """Return the time to first byte that an upstream is allowed, so that another one could still respond.

    The other one gets twice its expected time, at most half of the remaining time; half if nothing is known of it.
    Return None if the other one would be too late too: giving up on this one gains nothing then.
    """
    if other_s is None:
        return remaining_s / 2
    if other_s > remaining_s / 2:
        return None
    return max(remaining_s / 2, remaining_s - 2 * other_s)


# The outcome of one call to an upstream, and whether the call may be repeated.
Outcome = Response | BackendError


def retry_target(outcome: Outcome, request: RequestContext, *, waits: bool) -> RetryTarget:
    """Return the upstreams that may be tried next. If it `waits`, the upstream said when it accepts calls
    again."""
    if isinstance(outcome, Response):
        target, sent, answered = target_after_response(outcome.status, waits=waits), True, True
        if target is not RetryTarget.NOBODY and forbids_retry(outcome):
            return RetryTarget.NOBODY
    elif isinstance(outcome, BackendOverloaded):
        return RetryTarget.OTHERS
    elif isinstance(outcome, UnsupportedByBackend):
        return RetryTarget.NOBODY  # all upstreams have the same models
    else:
        target, sent = target_after_failure(outcome.status, retryable=outcome.retryable), outcome.sent
        answered = False
        if isinstance(outcome, AttemptTimedOut):
            target = RetryTarget.ANYBODY  # no other upstream may be left by now
        elif isinstance(outcome, ModelNotReady):
            target = RetryTarget.OTHERS
    return target if is_repeatable(request, sent=sent, answered=answered) else RetryTarget.NOBODY


def forbids_retry(response: Response) -> bool:
    """Return whether the upstream says that a retry is useless: a header of OpenAI and Anthropic, which their clients
    obey."""
    return any(name.lower() == "x-should-retry" and value.lower() == "false" for name, value in response.headers)


def failed(outcome: Outcome) -> bool:
    """Return whether the outcome counts as a failure of the upstream."""
    if isinstance(outcome, Response):
        return is_failure(outcome.status)
    return not isinstance(outcome, BackendOverloaded | AttemptTimedOut | UnsupportedByBackend)


def is_repeatable(request: RequestContext, *, sent: bool = True, answered: bool = False) -> bool:
    """Return whether the call may be sent again. It may if nothing of it was `sent`. A backend that has `answered`
    with an error works no longer.

    Parsed calls change nothing upstream, unless they are stateful. Others may. They are repeated only if the method
    allows it (RFC 9110 section 9.2.2), or if they make nothing and were answered. Their body must be at hand. The
    retries of a pool, the transport, the fallbacks of a route and the attempts of a job all ask here.
    """
    if not sent:
        return True
    if request.call is not None and not request.call.passes:
        return not request.call.stateful
    if request.opens_websocket:
        return False  # a refusal is the answer, and an open WebSocket is a session
    harmless = request.method in IDEMPOTENT or (answered and may_be_repeated(request.method, request.path))
    return harmless and request.body_source.replayable


@dataclass(slots=True, eq=False)
class Resends:
    """`Resends` permits and counts the calls that a transport sends again because a kept connection turned out closed.

    Such a call is no further attempt of its request: the upstream has not failed. It takes from the backend's `budget`
    of retries all the same, because the upstream may have begun to work.
    """

    backend: str
    budget: RetryBudget
    clock: Clock
    counter: Counter

    def allow(self) -> bool:
        """Return whether a call may be sent once more now, and count it."""
        now = self.clock.monotonic()
        if not self.budget.is_available(now):
            self.counter.add(self.backend, "budget")
            return False
        self.budget.spend(now)
        self.counter.add(self.backend, "reconnected")
        return True


def is_free_attempt(outcome: Outcome) -> bool:
    """Return whether going on to the next upstream is not a retry: this one did no work, and little time was lost.

    Each upstream is tried at most once in this way.
    """
    return isinstance(outcome, BackendError) and not outcome.sent and outcome.status != 504


def is_refusal(outcome: Outcome) -> bool:
    """Return whether the upstream has refused the gateway's own credentials, or lacks the model. Going on is free, as
    such an upstream is preferred no longer."""
    return isinstance(outcome, Response) and outcome.refused


def unwrap_outcome(outcome: Outcome) -> Response:
    """Return the response, or raise the error."""
    if isinstance(outcome, Response):
        return outcome
    raise outcome


async def discard_response(outcome: Outcome) -> None:
    """Close the body of a response that nobody will read."""
    if isinstance(outcome, Response):
        await close_body(outcome.body)
