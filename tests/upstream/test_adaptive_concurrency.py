"""The limit on what is in flight to a backend: between its bounds, and near what the backend works on at once."""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.upstream.adaptive_concurrency import MIN_LIMIT, AdaptiveLimit

Draw = Callable[[random.Random], float]


def lognormal(mean_s: float, sigma: float) -> Draw:
    return lambda rng: rng.lognormvariate(math.log(mean_s) - sigma**2 / 2, sigma)


class Simulated:
    """Open-loop Poisson arrivals before a limit without a queue, before workers with one: first come, first served."""

    def __init__(self, limit: AdaptiveLimit, workers: int, service: Draw, seed: int = 1) -> None:
        self.limit, self.service, self.rng = limit, service, random.Random(seed)
        self.now, self.inflight, self.served, self.seen = 0.0, 0, 0, [limit.value]
        self._free = [0.0] * workers
        self._ends: list[tuple[float, float]] = []

    def run(self, seconds: float, rate: float) -> float:
        """-> answers a second."""
        until, before = self.now + seconds, self.served
        while self.now < until:
            self.now += self.rng.expovariate(rate)
            while self._ends and self._ends[0][0] <= self.now:
                ended, asked = heapq.heappop(self._ends)
                self.limit.on_response("chat", asked, ended, self.inflight)
                self.inflight -= 1
                self.served += 1
                self.seen.append(self.limit.value)
            if self.inflight < self.limit.value:
                self.inflight += 1
                ended = max(heapq.heappop(self._free), self.now) + self.service(self.rng)
                heapq.heappush(self._free, ended)
                heapq.heappush(self._ends, (ended, self.now))
        return (self.served - before) / seconds


answers = st.tuples(
    st.sampled_from(["stream", "whole"]),
    st.floats(0, 1e4, allow_nan=False),  # since the last one
    st.floats(0, 1e3, allow_nan=False),  # how long it took
    st.integers(0, 300),
    st.booleans(),
)


@given(ceiling=st.integers(1, 200), told=st.lists(answers, max_size=200))
def test_the_limit_stays_between_its_bounds_whatever_comes(
    ceiling: int, told: list[tuple[str, float, float, int, bool]]
) -> None:
    limit, now = AdaptiveLimit(ceiling, adaptive=True), 0.0
    for kind, later, took, inflight, on_overload in told:
        now += later
        if on_overload:
            limit.on_overload(now - took)
        limit.on_response(kind, now - took, now, inflight)
        assert min(MIN_LIMIT, ceiling) <= limit.value <= ceiling


@given(told=st.lists(answers, max_size=50))
def test_what_is_not_adaptive_does_not_move(told: list[tuple[str, float, float, int, bool]]) -> None:
    limit = AdaptiveLimit(64, adaptive=False)
    for kind, later, took, inflight, _ in told:
        limit.on_overload(0.0)
        limit.on_response(kind, later, later + took, inflight)
    assert limit.value == 64


@pytest.mark.parametrize(("workers", "sigma", "load"), [(8, 0.3, 3.0), (8, 1.0, 10.0), (16, 0.7, 3.0), (40, 0.5, 10.0)])
def test_under_overload_the_limit_is_near_what_the_backend_works_on(workers: int, sigma: float, load: float) -> None:
    """Learnt in the calm, as a rule: within 0.7 and 2 times the workers, and no answers are lost by it."""
    capacity = workers / 0.1
    simulated = Simulated(AdaptiveLimit(256, adaptive=True), workers, lognormal(0.1, sigma))
    simulated.run(30.0, 0.8 * capacity)
    simulated.run(10.0, load * capacity)
    simulated.seen.clear()
    throughput = simulated.run(60.0, load * capacity)
    assert throughput >= 0.9 * capacity
    middle = sorted(simulated.seen)[len(simulated.seen) // 2]
    assert 0.7 * workers <= middle <= 2 * workers


@pytest.mark.parametrize("sigma", [0.3, 0.7])
def test_a_baseline_that_was_learnt_under_load_comes_down(sigma: float) -> None:
    """A gateway that starts into an overload, with a fourth of its ceiling: four times what the backend works on."""
    simulated = Simulated(AdaptiveLimit(256, adaptive=True), 16, lognormal(0.1, sigma))
    simulated.run(60.0, 1600.0)
    simulated.seen.clear()
    assert simulated.run(60.0, 1600.0) >= 0.9 * 160
    assert sorted(simulated.seen)[len(simulated.seen) // 2] <= 2.5 * 16


@pytest.mark.parametrize("sigma", [0.5, 1.0])
def test_without_load_the_limit_does_not_drift(sigma: float) -> None:
    simulated = Simulated(AdaptiveLimit(256, adaptive=True), 100, lognormal(1.0, sigma))
    simulated.run(1000.0, 30.0)
    assert min(simulated.seen) >= 30 and max(simulated.seen) <= 128, "a fourth of the ceiling, doubled once at most"


@pytest.mark.parametrize("sigma", [0.3, 0.7])
def test_a_slower_backend_keeps_its_places(sigma: float) -> None:
    """Answers that take four times as long for another reason than load: more places are needed, not fewer."""
    limit = AdaptiveLimit(64, adaptive=True)
    simulated = Simulated(limit, 64, lognormal(0.1, sigma))
    simulated.run(60.0, 400.0)
    simulated.service = lognormal(0.4, sigma)
    simulated.run(60.0, 400.0)
    assert simulated.run(120.0, 400.0) >= 0.85 * 160


def test_a_backend_that_loses_workers_is_sent_less_and_gets_its_places_back() -> None:
    limit = AdaptiveLimit(256, adaptive=True)
    simulated = Simulated(limit, 40, lognormal(0.1, 0.5))
    simulated.run(30.0, 320.0)
    simulated._free = [simulated.now] * 10
    simulated.run(60.0, 400.0)
    assert limit.value <= 30
    simulated._free = [simulated.now] * 40
    assert simulated.run(60.0, 380.0) >= 0.8 * 380
    assert simulated.run(30.0, 380.0) >= 0.93 * 380


def test_streams_are_not_held_against_wholes() -> None:
    """What is asked for changes from streams, which begin soon, to wholes: no sign of load."""
    limit = AdaptiveLimit(64, adaptive=True)
    rng, now = random.Random(2), 0.0
    for kind, mean in [("stream", 0.1), ("whole", 2.0), ("stream", 0.1), ("whole", 2.0)] * 3:
        for _ in range(400):
            now += 0.01
            limit.on_response(kind, now, now + lognormal(mean, 0.5)(rng), 64)
            assert limit.value >= 16


def test_a_backend_that_refuses_is_sent_a_tenth_less_once_a_window() -> None:
    limit = AdaptiveLimit(100, adaptive=True)
    assert limit.value == 25
    limit.on_overload(1.0)
    limit.on_overload(1.0)
    assert limit.value == 22


def told(limit: AdaptiveLimit, now: float, seconds: list[float]) -> float:
    """A window in which the limit is reached. -> its end."""
    for took in seconds:
        limit.on_response("chat", now, now + took, limit.value)
    return now + max(seconds)


def test_the_growth_from_the_start_is_not_ended_by_one_stall() -> None:
    limit = AdaptiveLimit(256, adaptive=True)
    now = told(limit, 0.0, [0.1] * 64)
    now = told(limit, now, [0.1] * 64)
    assert (limit.value, limit.is_starting) == (128, True)
    now = told(limit, now, [0.4] * 128)
    assert (limit.value, limit.is_starting) == (128, True), "once"
    told(limit, now, [0.4] * 128)
    assert not limit.is_starting, "twice"


def test_nor_by_what_chance_explains() -> None:
    limit, rng = AdaptiveLimit(256, adaptive=True), random.Random(3)
    draw, now = lognormal(0.5, 1.0), 0.0
    while limit.value < 256:
        now = told(limit, now, [draw(rng) for _ in range(limit.value)])
        assert limit.value == 256 or limit.is_starting


def test_nobody_is_sent_less_for_milliseconds() -> None:
    limit, now = AdaptiveLimit(64, adaptive=True), 0.0
    for took in [0.001, 0.02] * 10:
        now = told(limit, now, [took] * 64)
    assert limit.value == 64
