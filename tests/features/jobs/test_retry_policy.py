"""What is made of an attempt, and how many are under way: pure."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.features.jobs.retry_policy import (
    ConcurrencyPace,
    RetryDecision,
    RetryTerms,
    backoff_s,
    decide,
    retry_after_s,
)
from gateway.features.jobs.store import Conclusion, JobResult, JobStatus

TERMS = RetryTerms(attempts=3, max_age_s=1000.0, result_s=60.0, dead_s=600.0)


def answer(status: int, *headers: tuple[str, str]) -> JobResult:
    return JobResult(status, headers, b"")


def test_an_answer_ends_the_job_and_an_error_of_the_client_is_a_failure() -> None:
    assert decide(answer(200), 1, 0.0, TERMS, 0.5) == Conclusion(JobStatus.COMPLETED, answer(200), "", 60.0)
    assert decide(answer(404), 1, 0.0, TERMS, 0.5) == Conclusion(JobStatus.FAILED, answer(404), "", 60.0)


def test_a_faulty_backend_is_asked_again_until_the_attempts_are_spent() -> None:
    assert decide(answer(502), 2, 0.0, TERMS, 0.5) == RetryDecision(2.0, counted=True, error="status 502")
    last = decide("no answer came", 3, 0.0, TERMS, 0.5)
    assert isinstance(last, Conclusion)
    assert (last.status, last.dead, last.keep_s) == (JobStatus.FAILED, True, 600.0)
    assert last.error == "no answer in 3 attempts: no answer came"


def test_later_is_no_attempt_but_ends_with_the_jobs_age() -> None:
    busy = answer(503, ("retry-after", "8"))
    assert decide(busy, 99, 0.0, TERMS, 0.5) == RetryDecision(9.0, counted=False, error="status 503")
    late = decide(busy, 1, 995.0, TERMS, 0.5)
    assert isinstance(late, Conclusion)
    assert late.dead


@given(st.text(), st.floats(0, 1, exclude_max=True))
def test_whatever_retry_after_says_the_wait_is_bounded(said: str, draw: float) -> None:
    assert 0 <= retry_after_s((("Retry-After", said),), draw) <= 375


@given(st.integers(1, 10_000), st.floats(0, 1, exclude_max=True))
def test_backoff_is_bounded(attempt: int, draw: float) -> None:
    assert 0 <= backoff_s(attempt, draw) <= 60


@given(st.integers(0, 64), st.lists(st.tuples(st.booleans(), st.floats(0, 10)), max_size=200))
def test_the_pace_stays_between_one_and_the_most(most: int, steps: list[tuple[bool, float]]) -> None:
    pace, now = ConcurrencyPace(most), 0.0
    for done, passed in steps:
        now += passed
        if done:
            pace.grow()
        else:
            pace.back_off(now, now, passed)
        assert min(1, most) <= pace.limit <= most
        assert 0 <= pace.room(0, now) <= most
        assert pace.room(most, now + 100) == 0


def test_a_crowd_that_is_told_later_counts_once() -> None:
    pace = ConcurrencyPace(16)
    for _ in range(16):
        pace.back_off(began=1.0, now=2.0, delay_s=0.5)
    assert (pace.limit, pace.room(0, 2.1), pace.room(0, 2.6)) == (8, 0, 8)
    pace.back_off(began=2.6, now=3.0, delay_s=0.5)
    assert pace.limit == 4
