"""Which backend is asked: every combination of complexity and budget, and the promise that holds for all of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.errors import BadRequest
from gateway.latency_forecast import LatencyForecast, Prediction, RemainingBudget
from gateway.outcomes import Choice
from gateway.routing.budget import budget_of
from gateway.routing.selection import Decision, choose, fits, only
from tests.fixtures.targets import light_and_large, one_backend

TIERS = light_and_large("small", "big", 0.5)
FAST, SLOW, SLOWER = (Prediction(t / 10, t / 100, t) for t in (0.1, 5.0, 9.0))
BUDGET = RemainingBudget(total_s=1.0)
LIGHT, LARGE = ("small", "big"), ("big", "small")

# complexity, light's prediction, large's, the budget -> the order of asking, the tier, the reason
TABLE = [
    (0.2, None, None, RemainingBudget(), LIGHT, "light", Choice.SIMPLE),
    (0.8, None, None, RemainingBudget(), LARGE, "large", Choice.COMPLEX),
    (0.5, None, None, RemainingBudget(), LIGHT, "light", Choice.SIMPLE),  # at the threshold is not above it
    (0.8, FAST, SLOW, RemainingBudget(), LARGE, "large", Choice.COMPLEX),  # no budget: latency does not matter
    (0.8, FAST, FAST, BUDGET, LARGE, "large", Choice.COMPLEX),
    (0.8, FAST, SLOW, BUDGET, LIGHT, "light", Choice.BUDGET),
    (0.8, None, SLOW, BUDGET, LIGHT, "light", Choice.BUDGET),  # what is unknown may fit, what is known does not
    (0.8, FAST, None, BUDGET, LARGE, "large", Choice.COMPLEX),  # an unknown backend is tried
    (0.8, SLOW, SLOWER, BUDGET, LIGHT, "light", Choice.BUDGET),  # neither fits: the sooner one
    (0.8, SLOWER, SLOW, BUDGET, LARGE, "large", Choice.COMPLEX),
    (0.2, FAST, SLOW, BUDGET, LIGHT, "light", Choice.SIMPLE),
    (0.2, SLOW, FAST, BUDGET, LARGE, "large", Choice.BUDGET),
    (0.2, SLOW, None, BUDGET, LARGE, "large", Choice.BUDGET),
    (0.2, SLOW, SLOWER, BUDGET, LIGHT, "light", Choice.SIMPLE),
    (0.2, SLOWER, SLOW, BUDGET, LARGE, "large", Choice.BUDGET),
    (0.2, None, SLOW, BUDGET, LIGHT, "light", Choice.SIMPLE),
    (0.8, FAST, SLOW, RemainingBudget(ttft_s=0.1), LIGHT, "light", Choice.BUDGET),
    (0.8, FAST, SLOW, RemainingBudget(tpot_s=0.01), LIGHT, "light", Choice.BUDGET),
    (0.8, FAST, SLOW, RemainingBudget(ttft_s=0.6, tpot_s=0.06), LARGE, "large", Choice.COMPLEX),
    (0.8, FAST, SLOW, RemainingBudget(total_s=-1.0), LIGHT, "light", Choice.BUDGET),  # too late for both
]


@pytest.mark.parametrize(("complexity", "light", "large", "remaining", "order", "tier", "reason"), TABLE)
def test_the_table_of_choices(
    complexity: float,
    light: Prediction | None,
    large: Prediction | None,
    remaining: RemainingBudget,
    order: tuple[str, str],
    tier: str,
    reason: Choice,
) -> None:
    decision = choose(TIERS, (0.5,), complexity, remaining, (light, large))
    assert (decision.backends, decision.tier, decision.reason) == (order, tier, reason)


SECONDS = st.floats(0.001, 100.0)
PREDICTION = st.builds(Prediction, SECONDS, SECONDS, SECONDS)
LEFT = st.none() | st.floats(-1.0, 100.0)
REMAINING = st.builds(RemainingBudget, LEFT, LEFT, LEFT)


@given(st.floats(0, 1), st.floats(0, 1), REMAINING, st.none() | PREDICTION, st.none() | PREDICTION)
def test_a_budget_is_never_promised_that_the_numbers_rule_out(
    threshold: float,
    complexity: float,
    remaining: RemainingBudget,
    light: Prediction | None,
    large: Prediction | None,
) -> None:
    """Where one of the two fits and the other one does not, the one that fits is asked, whatever the complexity."""
    decision = choose(TIERS, (threshold,), complexity, remaining, (light, large))
    light_fits, large_fits = fits(light, remaining), fits(large, remaining)
    if light_fits != large_fits:
        assert decision.tier == ("light" if light_fits else "large")
    elif light_fits:
        assert decision.tier == ("large" if complexity > threshold else "light")
        assert decision.reason is (Choice.COMPLEX if complexity > threshold else Choice.SIMPLE)
    assert sorted(decision.backends) == ["big", "small"], "the other one is there to fall back on"


@given(st.floats(0, 1), REMAINING, st.none() | PREDICTION, st.none() | PREDICTION)
def test_what_is_promised_fits_and_what_is_late_does_not(
    complexity: float, remaining: RemainingBudget, light: Prediction | None, large: Prediction | None
) -> None:
    decision = choose(TIERS, (0.5,), complexity, remaining, (light, large))
    chosen = light if decision.tier == "light" else large
    if decision.promised:
        assert chosen is not None and remaining.has_budget and fits(chosen, remaining)
    assert decision.late == (not fits(light, remaining) and not fits(large, remaining))
    assert not (decision.late and decision.promised)


PENDING_PREDICTION = Prediction(math.inf, math.inf, math.inf)


def test_while_somebody_finds_out_others_ask_whom_they_know() -> None:
    assert choose(TIERS, (0.5,), 0.8, BUDGET, (FAST, PENDING_PREDICTION)).tier == "light"
    assert choose(TIERS, (0.5,), 0.8, BUDGET, (None, PENDING_PREDICTION)).tier == "light"
    nobody_knows = choose(TIERS, (0.5,), 0.8, BUDGET, (PENDING_PREDICTION, PENDING_PREDICTION))
    assert nobody_knows.tier == "light", "a crowd must not find out all at once"
    assert not nobody_knows.late, "that none can is not known"
    assert choose(TIERS, (0.5,), 0.8, RemainingBudget(), (PENDING_PREDICTION, PENDING_PREDICTION)).tier == "large", (
        "no budget, no matter"
    )


def test_where_none_fits_the_policy_may_ask_for_the_lightest() -> None:
    assert choose(TIERS, (0.5,), 0.8, BUDGET, (SLOWER, SLOW), "soonest").tier == "large"
    assert choose(TIERS, (0.5,), 0.8, BUDGET, (SLOWER, SLOW), "light").tier == "light"


def test_a_budget_that_is_spent_is_late_whoever_is_asked() -> None:
    assert choose(TIERS, (0.5,), 0.8, RemainingBudget(total_s=0.0), (None, None)).late


def test_one_backend_is_no_choice_and_may_be_late_all_the_same() -> None:
    assert only("main") == Decision(("main",), None, Choice.ONLY)
    main = one_backend("main")
    assert choose(main, (), 0.0, BUDGET, (FAST,)) == Decision(("main",), None, Choice.ONLY, promised=True)
    assert choose(main, (), 0.0, BUDGET, (SLOW,)) == Decision(("main",), None, Choice.ONLY, late=True)
    assert choose(main, (), 0.0, RemainingBudget(), (SLOW,)) == Decision(("main",), None, Choice.ONLY)


def test_an_outlook_says_what_is_known_and_what_is_left() -> None:
    outlook = LatencyForecast(
        RemainingBudget(0.78, 0.2),
        {"light": Prediction(0.05, 0.01, 0.21), "large": None, "x": PENDING_PREDICTION},
        0.62,
    )
    assert outlook.server_timing() == (
        "light=0.21 large=? x=? left=0.78 ttft.light=0.05 ttft.large=? ttft.x=? ttft.left=0.2 sure=0.62"
    )
    assert outlook.as_json() == {
        "confidence": 0.62,
        "left": {"total_s": 0.78, "ttft_s": 0.2, "tpot_s": None},
        "backends": {"light": {"total_s": 0.21, "ttft_s": 0.05, "tpot_s": 0.01}, "large": None, "x": None},
    }


@pytest.mark.parametrize(
    ("headers", "policy_s", "expected"),
    [
        ({}, None, (None, None, None)),
        ({}, 0.8, (0.8, None, None)),
        ({"x-latency-budget-ms": "250"}, None, (0.25, None, None)),
        ({"x-latency-budget-ms": "250"}, 0.8, (0.25, None, None)),
        ({"x-latency-budget-ms": "900"}, 0.8, (0.8, None, None)),  # the policy's is an upper bound
        ({"x-slo-ttft-ms": "0.5", "x-slo-tpot-ms": "20"}, None, (None, 0.0005, 0.02)),
        ({"x-latency-budget-ms": "3600000"}, None, (3600.0, None, None)),
        ({"x-latency-budget-ms": " 1e3 "}, None, (1.0, None, None)),
    ],
)
def test_budgets_come_from_headers_and_policy(
    headers: dict[str, str], policy_s: float | None, expected: tuple[float | None, ...]
) -> None:
    budget = budget_of(headers, policy_s)
    assert (budget.total_s, budget.ttft_s, budget.tpot_s) == expected


@pytest.mark.parametrize("name", ["x-latency-budget-ms", "x-slo-ttft-ms", "x-slo-tpot-ms"])
@pytest.mark.parametrize("value", ["", "0", "-1", "nan", "inf", "-inf", "soon", "1s", "3600001", "1e400", "0x10"])
def test_a_budget_that_is_no_duration_is_refused(name: str, value: str) -> None:
    with pytest.raises(BadRequest, match=name):
        budget_of({name: value}, None)
