"""When a call is hedged, and how often at most."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call
from gateway.context import Load
from gateway.outcomes import Bypass
from gateway.upstream.hedging import (
    BURST,
    MIN_DELAY_S,
    HedgeBudget,
    HedgeOutcome,
    delay_s,
    has_room,
    is_hedgeable,
    skip_reason,
)
from tests.features.answer_schemas.test_validator import CHAT, MESSAGES, RESPONSES, call_of

SECONDS = st.floats(0, 1e4)
CROWDS = st.builds(Load, st.integers(0, 9), st.integers(1, 9), st.integers(0, 2))
ROOM, FULL, QUEUE = Load(0, 4, 0), Load(4, 4, 0), Load(4, 4, 1)


@given(st.lists(st.booleans(), max_size=400), st.floats(0.001, 0.2))
def test_hedges_never_exceed_their_share_of_any_run_of_calls(wanted: list[bool], share: float) -> None:
    """After each call in turn, from any earlier one on; from the first one on without the burst."""
    budget = HedgeBudget(share)
    hedged = [0]
    for want in wanted:
        budget.record_call()
        hedged.append(hedged[-1] + (want and budget.spend()))
    for end, sent in enumerate(hedged):
        assert sent <= share * end + 1e-6
        for begin in range(0, end, 7):
            assert sent - hedged[begin] <= share * (end - begin) + BURST + 1e-6


@given(st.integers(1, 400))
def test_where_every_call_is_slow_a_twentieth_is_hedged_and_no_less(calls: int) -> None:
    budget, sent = HedgeBudget(0.05), 0
    for _ in range(calls):
        budget.record_call()
        sent += budget.spend()
    assert sent == calls // 20


def test_a_quiet_time_saves_up_a_burst_and_no_more() -> None:
    budget = HedgeBudget(0.05)
    for _ in range(10_000):
        budget.record_call()
    assert [budget.spend() for _ in range(int(BURST) + 1)] == [True] * int(BURST) + [False]


@given(st.none() | SECONDS | st.just(math.inf), SECONDS | st.just(math.inf), st.none() | SECONDS)
def test_the_delay_is_what_is_predicted_and_leaves_the_other_one_time(
    predicted: float | None, remaining: float, other: float | None
) -> None:
    delay = delay_s(predicted, remaining, other)
    if predicted is None or math.isinf(predicted):
        assert delay is None
    elif delay is not None:
        assert delay == max(predicted, MIN_DELAY_S)
        assert delay + (other or 0.0) < remaining
    else:
        assert max(predicted, MIN_DELAY_S) + (other or 0.0) >= remaining


@given(st.lists(CROWDS, max_size=4), CROWDS, st.booleans())
def test_no_hedge_takes_a_place_that_somebody_waits_for(others: list[Load], first: Load, left: bool) -> None:
    budget = HedgeBudget(1.0)
    if left:
        budget.record_call()
    why_not = skip_reason(budget, [first, *others], others)
    if why_not is None:
        assert left
        assert any(map(has_room, others))
        assert not any(occupancy.queued for occupancy in [first, *others])
    assert budget.spend() == (left and why_not is not None), "only what is sent is taken from the budget"


@pytest.mark.parametrize(
    ("first", "others", "why_not"),
    [
        (ROOM, [], HedgeOutcome.ALONE),
        (ROOM, [FULL], HedgeOutcome.OVERLOADED),
        (QUEUE, [ROOM], HedgeOutcome.OVERLOADED),
        (ROOM, [FULL, ROOM], None),
        (FULL, [ROOM], None),
    ],
)
def test_why_a_hedge_is_held_back(first: Load, others: list[Load], why_not: HedgeOutcome | None) -> None:
    budget = HedgeBudget(1.0)
    budget.record_call()
    assert skip_reason(budget, [first, *others], others) is why_not


def call(operation: str = "chat.completions", **body: Any) -> Call:
    path = {"chat.completions": CHAT, "responses": RESPONSES, "messages": MESSAGES}[operation]
    return call_of(path, **body)


@pytest.mark.parametrize(
    "asked",
    [
        call(tools=[{"type": "function"}, {"type": "custom"}]),
        call(store=False),
        call("messages", tools=[{"name": "a client's, as Anthropic has them"}]),
        call("responses", store=False, tools=[{"type": "function"}]),
    ],
)
def test_what_changes_nothing_is_hedged(asked: Any) -> None:
    assert is_hedgeable(asked, is_internal=False)
    assert not is_hedgeable(asked, is_internal=True)
    assert not is_hedgeable(replace(asked, uncached=Bypass.SEQUENCE), is_internal=False)


@pytest.mark.parametrize(
    "asked",
    [
        None,
        call(store=True),
        call("responses"),
        call("responses", store=False, background=True),
        call("responses", store=False, conversation="conv_1"),
        call("responses", store=False, tools=[{"type": "mcp"}]),
        call("messages", tools=[{"type": "web_search_20250305"}]),
        call("messages", mcp_servers=[{"url": "https://host"}]),
        call(tools=["nonsense"]),
    ],
)
def test_what_may_not_run_twice_is_not_hedged(asked: Any) -> None:
    assert not is_hedgeable(asked, is_internal=False)
