"""How many retries there may be, when, and after what."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.retry import (
    MAX_RETRY_BACKOFF_S,
    MINIMUM,
    WINDOW_S,
    RetryBudget,
    RetryTarget,
    attempt_timeout_s,
    backoff_s,
    target_after_failure,
    target_after_response,
)

STEPS = st.lists(st.tuples(st.sampled_from(["ask", "ask", "spend"]), st.floats(0, 4)), max_size=200)


@given(STEPS, st.floats(0.01, 1))
def test_retries_never_exceed_their_share_of_the_calls(steps: list[tuple[str, float]], share: float) -> None:
    """At each retry: in the last ten seconds (of whole ones), this one included."""
    budget, now = RetryBudget(share), 1000.0
    asked: list[float] = []
    retried: list[float] = []
    for what, later in steps:
        now += later
        recent = [sum(int(at) > int(now) - WINDOW_S for at in times) for times in (asked, retried)]
        if what == "ask":
            budget.record_call(now)
            asked.append(now)
            continue
        allowed = recent[1] + 1 <= max(MINIMUM, share * recent[0])
        assert budget.is_available(now) == allowed
        if allowed:
            budget.spend(now)
            retried.append(now)


@given(st.lists(st.integers(0, 30), min_size=1, max_size=40).map(sorted), st.integers(0, 50))
def test_what_is_not_spent_after_all_is_there_for_others(spent: list[int], fewer: int) -> None:
    budget = RetryBudget(1.0)
    for at in spent:
        budget.spend(float(at))
    recent = [at for at in spent if at > spent[-1] - WINDOW_S]
    budget.refund(fewer)
    assert budget._retries.total(float(spent[-1])) == max(0, len(recent) - fewer)


@given(st.integers(20, 500))
def test_every_call_failing_costs_a_fifth_more(calls: int) -> None:
    budget, retries = RetryBudget(0.2), 0
    for i in range(calls):
        budget.record_call(i / 100)
        if budget.is_available(i / 100):
            budget.spend(i / 100)
            retries += 1
    assert retries <= max(MINIMUM, 0.2 * calls)


def test_what_is_set_aside_is_not_there_for_others() -> None:
    budget = RetryBudget(0.2)
    budget.reserved = MINIMUM - 1
    assert budget.is_available(0.0)
    budget.reserved = MINIMUM
    assert not budget.is_available(0.0)


def test_a_share_of_nothing_allows_none() -> None:
    budget = RetryBudget(0.0)
    for _ in range(100):
        budget.record_call(0.0)
    assert not budget.is_available(0.0)


@given(st.integers(0, 50), st.floats(0, 1, exclude_max=True))
def test_a_backoff_is_bounded_and_may_be_none(retry: int, chance: float) -> None:
    assert 0 <= backoff_s(retry, chance) < MAX_RETRY_BACKOFF_S
    assert backoff_s(retry, 0.0) == 0


@given(st.floats(0.001, 100), st.one_of(st.none(), st.floats(0.001, 100)))
def test_who_is_given_up_leaves_the_other_one_time_enough(remaining: float, other: float | None) -> None:
    patience = attempt_timeout_s(remaining, other)
    if patience is None:
        assert other is not None
        assert other > remaining / 2
    else:
        assert remaining / 2 <= patience < remaining
        assert remaining - patience >= (other or 0.0) * 0.999


@pytest.mark.parametrize(
    ("status", "waits", "again"),
    [
        (200, False, RetryTarget.NOBODY),
        (400, False, RetryTarget.NOBODY),
        (404, False, RetryTarget.NOBODY),
        (429, False, RetryTarget.OTHERS),
        (500, False, RetryTarget.OTHERS),
        (502, False, RetryTarget.ANYBODY),
        (503, False, RetryTarget.ANYBODY),
        (503, True, RetryTarget.OTHERS),
        (504, False, RetryTarget.ANYBODY),
    ],
)
def test_what_an_answer_says_of_a_retry(status: int, waits: bool, again: RetryTarget) -> None:
    assert target_after_response(status, waits=waits) is again


@pytest.mark.parametrize(
    ("status", "retryable", "again"),
    [
        (502, True, RetryTarget.ANYBODY),
        (504, True, RetryTarget.OTHERS),
        (400, True, RetryTarget.NOBODY),
        (502, False, RetryTarget.NOBODY),
    ],
)
def test_what_a_failure_says_of_a_retry(status: int, retryable: bool, again: RetryTarget) -> None:
    assert target_after_failure(status, retryable=retryable) is again
