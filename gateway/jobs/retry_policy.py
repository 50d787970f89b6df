"""What is made of an attempt at a job, and how many may be under way. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from gateway.job_records import Headers, JobResult, JobStatus
from gateway.job_store import Conclusion

# Told to come later: by a backend, by its gate here, by a limit of the policy. No fault of the job, and no attempt.
LATER = frozenset({429, 503})
FAULTY = frozenset({408, 500, 502, 504})
BASE_S, CAP_S = 1.0, 60.0
MAX_RETRY_AFTER_S = 300.0


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """To be tried again. `counted` False: that was no attempt."""

    delay_s: float
    counted: bool
    error: str


@dataclass(frozen=True, slots=True)
class RetryTerms:
    """What bounds a job. Durations in seconds."""

    attempts: int
    max_age_s: float
    result_s: float
    dead_s: float


def judged(
    result: JobResult | str, attempt: int, age_s: float, terms: RetryTerms, draw: float
) -> Conclusion | RetryDecision:
    """`result`: an answer, or why there is none; `draw`: in [0, 1), spreads what was put off together."""
    status = result.status if isinstance(result, JobResult) else 0
    answer = result if isinstance(result, JobResult) else None
    error = result if isinstance(result, str) else ""
    if answer is not None and status not in LATER and status not in FAULTY:
        return Conclusion(JobStatus.COMPLETED if status < 400 else JobStatus.FAILED, answer, "", terms.result_s)
    later = status in LATER
    delay = later_s(answer.headers, draw) if answer is not None and later else backoff_s(attempt, draw)
    if age_s + delay >= terms.max_age_s:
        late = f"not answered within {terms.max_age_s:g} s (jobs.max_age)"
        return Conclusion(JobStatus.FAILED, answer, late, terms.dead_s, dead=True)
    if not later and attempt >= terms.attempts:
        tried = f"no answer in {attempt} attempts" + (f": {error}" if error else "")
        return Conclusion(JobStatus.FAILED, answer, tried, terms.dead_s, dead=True)
    return RetryDecision(delay, counted=not later, error=error or f"status {status}")


def backoff_s(attempt: int, draw: float, base_s: float = BASE_S, cap_s: float = CAP_S) -> float:
    """Full jitter: anything up to a bound that doubles with each attempt (Brooker, "Exponential Backoff and Jitter",
    AWS Architecture Blog, 2015). `attempt`: 1 is the first."""
    return draw * min(cap_s, base_s * float(2 ** min(attempt, 30)))


def later_s(headers: Headers, draw: float) -> float:
    """What `Retry-After` says in seconds, and up to a second or a quarter more, so that not all come back at once. Its
    other form, a date, counts as not said: `BASE_S`."""
    said = next((value for name, value in headers if name.lower() == "retry-after"), "")
    wait = min(float(said), MAX_RETRY_AFTER_S) if said.isascii() and said.isdigit() and len(said) < 10 else BASE_S
    return wait + draw * max(1.0, wait / 4)


class ConcurrencyPace:
    """How many jobs a gateway has under way: one more for each that is done, half as many when one is told to come
    later, and none for as long as that says (additive increase, multiplicative decrease: Chiu and Jain, 1989)."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._limit = float(most)
        self._until = -inf  # monotonic clock
        self._cut = -inf  # when the limit was halved

    @property
    def limit(self) -> int:
        return min(self._most, int(self._limit))

    def room(self, running: int, now: float) -> int:
        """How many more may begin."""
        if now < self._until:
            return 0
        return max(0, self.limit - running)

    def done(self) -> None:
        self._limit = min(float(self._most), self._limit + 1 / max(1.0, self._limit))

    def told_later(self, began: float, now: float, delay_s: float) -> None:
        """`began`: when that attempt began. Those begun before the last cut tell nothing new: that they were too many
        is what it was for."""
        if began < self._cut:
            return
        self._cut = now
        self._limit = max(1.0, self._limit / 2)
        self._until = max(self._until, now + min(delay_s, BASE_S))
