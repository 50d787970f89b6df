"""Decide the result of an attempt at a job, and how many jobs run at once. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from gateway.features.jobs.store import Conclusion, Headers, JobResult, JobStatus
from gateway.statuses import ASKS_TO_WAIT, is_failure

TOO_MANY, REQUEST_TIMEOUT = 429, 408
BASE_S, CAP_S = 1.0, 60.0
MAX_RETRY_AFTER_S = 300.0


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The job is retried. An attempt that is not `counted` leaves the number of attempts as it is."""

    delay_s: float
    counted: bool
    error: str


@dataclass(frozen=True, slots=True)
class RetryTerms:
    """`RetryTerms` are the bounds of a job. Durations are in seconds."""

    attempts: int
    max_age_s: float
    result_s: float
    dead_s: float


def decide(
    result: JobResult | str, attempt: int, age_s: float, terms: RetryTerms, jitter: float, *, final: bool = False
) -> Conclusion | RetryDecision:
    """Decide on a result: a response, or the reason why there is none. `jitter` in [0, 1) spreads the retries.

    With `final` the request has gone to a backend and may go only once. Only a 429 says that the backend did nothing.
    """
    status = result.status if isinstance(result, JobResult) else 0
    answer = result if isinstance(result, JobResult) else None
    error = result if isinstance(result, str) else ""
    # the backend, its concurrency limiter or a policy limit asks for a later call, which does not count as an attempt
    is_throttled = status in ASKS_TO_WAIT
    if answer is not None and not (is_throttled or status == REQUEST_TIMEOUT or is_failure(status)):
        return Conclusion(JobStatus.COMPLETED if status < 400 else JobStatus.FAILED, answer, "", terms.result_s)
    delay = retry_after_s(answer.headers, jitter) if answer is not None and is_throttled else backoff_s(attempt, jitter)
    if final and status != TOO_MANY:
        return Conclusion(JobStatus.FAILED, answer, sent_once(error or f"status {status}"), terms.dead_s, dead=True)
    if age_s + delay >= terms.max_age_s:
        reason = f"not answered within {terms.max_age_s:g} s (jobs.max_age)"
        return Conclusion(JobStatus.FAILED, answer, reason, terms.dead_s, dead=True)
    if not is_throttled and attempt >= terms.attempts:
        reason = f"no answer in {attempt} attempts" + (f": {error}" if error else "")
        return Conclusion(JobStatus.FAILED, answer, reason, terms.dead_s, dead=True)
    return RetryDecision(delay, counted=not is_throttled, error=error or f"status {status}")


def sent_once(error: str) -> str:
    """Return why a job that may be sent only once is not tried again. `error` is the outcome of its only attempt."""
    return f"{error}: the backend may have done the work, so the job is not sent again"


def backoff_s(attempt: int, jitter: float, base_s: float = BASE_S, cap_s: float = CAP_S) -> float:
    """Return the seconds to wait: full jitter under a bound that doubles with each attempt; `attempt` starts at 1.

    See Brooker, "Exponential Backoff and Jitter", AWS Architecture Blog, 2015.
    """
    return jitter * min(cap_s, base_s * float(2 ** min(attempt, 30)))


def retry_after_s(headers: Headers, jitter: float) -> float:
    """Return the seconds of `Retry-After` plus a random part, so that not all jobs return at once.

    The random part is at most one second or a quarter of the seconds, whichever is more.

    A date, the other form of the header, counts as missing: `BASE_S`.
    """
    header = next((value for name, value in headers if name.lower() == "retry-after"), "")
    seconds = (
        min(float(header), MAX_RETRY_AFTER_S) if header.isascii() and header.isdigit() and len(header) < 10 else BASE_S
    )
    return seconds + jitter * max(1.0, seconds / 4)


class ConcurrencyPace:
    """`ConcurrencyPace` limits the jobs that a gateway runs at once.

    The limit grows by about one for each round of finished jobs, and is halved when a job is told to come later. No job
    starts for that time, at most `BASE_S`. This is additive increase, multiplicative decrease (Chiu and Jain, 1989).
    """

    def __init__(self, max_limit: int) -> None:
        self._max_limit = max_limit
        self._limit = float(max_limit)
        self._until = -inf  # monotonic; no job starts before
        self._cut = -inf  # monotonic time of the last cut

    @property
    def limit(self) -> int:
        return min(self._max_limit, int(self._limit))

    def room(self, running: int, now: float) -> int:
        """Return how many more jobs may start."""
        if now < self._until:
            return 0
        return max(0, self.limit - running)

    def grow(self) -> None:
        """Raise the limit after a finished job."""
        self._limit = min(float(self._max_limit), self._limit + 1 / max(1.0, self._limit))

    def back_off(self, began: float, now: float, delay_s: float) -> None:
        """Lower the limit after an attempt that began at `began`.

        Attempts from before the last cut do not count, because that cut was their consequence.
        """
        if began < self._cut:
            return
        self._cut = now
        self._limit = max(1.0, self._limit / 2)
        self._until = max(self._until, now + min(delay_s, BASE_S))
