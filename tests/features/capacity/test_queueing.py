"""Waiting for one server."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.features.capacity.plan import ServiceTime, mean_wait_s, round_up, wait_quantile_s

seconds = st.floats(1e-6, 10)
loads = st.floats(0.01, 0.99)


@given(mean=seconds, load=loads)
def test_constant_service_waits_half_of_what_exponential_service_does(mean: float, load: float) -> None:
    constant, exponential = ServiceTime(mean, mean**2), ServiceTime(mean, 2 * mean**2)
    rate = load / mean
    assert mean_wait_s(rate, exponential) == pytest.approx(load * mean / (1 - load))  # M/M/1
    assert mean_wait_s(rate, constant) == pytest.approx(mean_wait_s(rate, exponential) / 2)


@given(mean=seconds, load=st.floats(0.06, 0.99))
def test_the_quantile_is_exact_for_exponential_service(mean: float, load: float) -> None:
    expected = mean / (1 - load) * math.log(load / 0.05)  # P(W > t) = load exp(-t (1 - load) / mean)
    assert wait_quantile_s(load / mean, ServiceTime(mean, 2 * mean**2), 0.95) == pytest.approx(expected, rel=1e-6)


@given(mean=seconds, load=loads, more=st.floats(1, 1.5), reserved_share=st.floats(0, 0.9))
def test_more_load_and_other_work_never_shorten_a_wait(
    mean: float, load: float, more: float, reserved_share: float
) -> None:
    service = ServiceTime.of([(0.5, mean), (0.5, mean / 3)])
    rate = load / mean
    assert mean_wait_s(rate * more, service) >= mean_wait_s(rate, service)
    assert mean_wait_s(rate, service, reserved_share) >= mean_wait_s(rate, service)
    assert wait_quantile_s(rate * more, service, 0.95) >= wait_quantile_s(rate, service, 0.95)


def test_a_server_that_cannot_keep_up_has_no_end_of_waiting() -> None:
    service = ServiceTime(1.0, 1.0)
    assert mean_wait_s(1.0, service) == wait_quantile_s(1.0, service, 0.95) == math.inf
    assert mean_wait_s(0.5, service, reserved_share=1.0) == math.inf


@pytest.mark.parametrize(("count", "expected"), [(0.0, 1), (1.0, 1), (1.0000000000001, 1), (1.01, 2), (7, 7)])
def test_a_sums_last_bit_makes_no_further_machine(count: float, expected: int) -> None:
    assert round_up(count) == expected
