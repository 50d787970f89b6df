"""From limits to demands, words and headers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gateway.features.limits.demands import MICROS, Meters
from gateway.features.limits.evaluation import (
    CostEstimate,
    Reservation,
    light_only,
    limit_requests,
    rate_limit_headers,
    refused,
    returns_of,
    with_headers,
)
from gateway.limits import Cap, Limits, Pace
from gateway.steps.metering import subjects

NOW = 1_790_000_000 * MICROS
WHOSE = subjects("acme", "ada", "sk-secret")


def test_no_subject_tells_a_key_or_a_user() -> None:
    assert "sk-secret" not in "".join(WHOSE.values())
    assert "ada" not in "".join(WHOSE.values())
    assert WHOSE["tenant"] == "acme"


def test_keys_of_a_tenant_and_users_of_two_tenants_are_told_apart() -> None:
    other_key, other_tenant = subjects("acme", "ada", "sk-other"), subjects("other", "ada", "sk-secret")
    assert (other_key["key"] != WHOSE["key"], other_key["user"] == WHOSE["user"]) == (True, True)
    assert other_tenant["user"] != WHOSE["user"]


def test_every_limit_of_a_request_has_a_key_of_its_own() -> None:
    pace = (Pace(5, "s", 5), Pace(9, "min", 9))
    caps = (Cap("day", 5, True), Cap("day", 9, False), Cap("month", 9, False))
    limits = [Limits(per, pace, pace, 3, 0.5, caps) for per in ("tenant", "key", "user", "route")]
    asked = limit_requests("r", limits, WHOSE, Reservation.of(CostEstimate(7, 9)), "m")
    assert len({a.demand.key for a in asked}) == len(asked) == 4 * 9


@given(estimated=st.integers(0, 50), real=st.integers(0, 50), dollars=st.integers(0, 900))
def test_once_it_is_put_right_a_call_has_taken_what_it_used(estimated: int, real: int, dollars: int) -> None:
    limits = [Limits(tokens=(Pace(60, "min", 100),), concurrency=1, caps=(Cap("day", 10_000, False),))]
    meters = Meters()
    asked = limit_requests("r", limits, WHOSE, Reservation.of(CostEstimate(estimated, 500)), "m")
    taken = meters.take([a.demand for a in asked], NOW, NOW)
    assert taken.granted
    meters.settle(returns_of(asked, taken, CostEstimate(real, dollars)), NOW)
    tokens, places, spent = meters.take([a.demand for a in asked], NOW, NOW).observed
    assert (abs(tokens.level - real * MICROS) <= 1, places.level, spent.level) == (True, 0, dollars)


def test_of_several_limits_the_one_that_takes_longest_is_named() -> None:
    limits = [Limits(requests=(Pace(1, "s", 1), Pace(2, "h", 1)))]
    meters, asked = Meters(), limit_requests("r", limits, WHOSE, Reservation(), "m")
    meters.take([a.demand for a in asked], NOW, NOW)
    limit, sentence, seconds = refused("r", asked, meters.take([a.demand for a in asked], NOW, NOW))
    assert (limit.rule_text, seconds) == ("2/h", 1800)
    assert sentence == (
        "the limit of 2 requests a hour for this tenant on route r is reached: 0 left; try again in 1800 s"
    )


def test_a_soft_cap_takes_the_large_model_away_and_refuses_nothing() -> None:
    limits = [Limits(caps=(Cap("day", 10, True),))]
    meters, asked = Meters(), limit_requests("r", limits, WHOSE, Reservation.of(CostEstimate(1, 11)), "m")
    taken = meters.take([a.demand for a in asked], NOW, NOW)
    assert (taken.granted, light_only(asked, taken)) == (True, "cost")


def test_a_backends_own_headers_of_the_same_names_give_way() -> None:
    limits = [Limits(requests=(Pace(20, "s", 20), Pace(10, "min", 10)))]
    asked = limit_requests("r", limits, WHOSE, Reservation(), "m")
    headers = rate_limit_headers(asked, Meters().take([a.demand for a in asked], NOW, NOW))
    merged = with_headers((("X-RateLimit-Remaining-Requests", "7000"), ("ETag", "x")), headers)
    assert merged[0] == ("ETag", "x")
    said = {name.lower(): value for name, value in merged}
    assert (said["x-ratelimit-limit-requests"], said["x-ratelimit-remaining-requests"]) == ("10", "9")
    assert len(said) == len(merged)
