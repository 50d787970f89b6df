"""The simulation that holds the plan's formulas, and the formulas."""

from __future__ import annotations

import math
import random

import pytest

from bench.capacity_model import Job, Kind, Simulation, Station, kinds_of, predict, quantile, simulate
from gateway.features.capacity.costs import load_costs
from gateway.features.capacity.plan import ServiceTime, mean_wait_s, wait_quantile_s


@pytest.mark.parametrize("load", [0.4, 0.7])
@pytest.mark.parametrize("spread", ["constant", "two kinds", "exponential"])
def test_the_formula_of_waits_is_what_a_simulated_queue_shows(load: float, spread: str) -> None:
    draw, at, station, jobs = random.Random(5), 0.0, Station(), list[Job]()
    took = {
        "constant": lambda: 1.0,
        "two kinds": lambda: 0.25 if draw.random() < 0.5 else 1.75,
        "exponential": lambda: draw.expovariate(1.0),
    }[spread]
    square = {"constant": 1.0, "two kinds": (0.25**2 + 1.75**2) / 2, "exponential": 2.0}[spread]
    services = list[float]()
    for _ in range(6_000):
        at += draw.expovariate(load)
        services.append(took())
        jobs.append(Job(at, iter([(station, services[-1])])))
    Simulation(cores=1).run(jobs)
    waits = [job.took - service for job, service in zip(jobs, services, strict=True)]
    service = ServiceTime(1.0, square)
    assert sum(waits) / len(waits) == pytest.approx(mean_wait_s(load, service), rel=0.15)
    assert quantile(waits, 0.95) == pytest.approx(wait_quantile_s(load, service, 0.95), rel=0.25)


def test_work_waits_for_a_core() -> None:
    stations = [Station(), Station(), Station()]
    jobs = [Job(0.0, iter([(station, 1.0)])) for station in stations]
    Simulation(cores=2).run(jobs)
    assert sorted(job.took for job in jobs) == [1.0, 1.0, 2.0]


def test_a_delay_takes_no_server() -> None:
    station = Station()
    jobs = [Job(0.0, iter([(None, 5.0), (station, 1.0)])) for _ in range(2)]
    Simulation(cores=1).run(jobs)
    assert [job.took for job in jobs] == [6.0, 7.0]
    assert station.worked == 2.0


def test_formula_and_simulation_agree_on_utilisation_and_the_formula_is_above_in_the_tail() -> None:
    costs = load_costs(None)
    kinds = kinds_of(costs, {"exact": 0.001, "semantic": 0.006, "miss": 0.008})
    assert isinstance(kinds["miss"], Kind)
    for gateways, rate in ((1, 50.0), (4, 400.0)):
        formula = predict(kinds, costs, gateways, rate)
        model = simulate(kinds, gateways, rate, 30.0, cores=2 * gateways, seed=3)
        assert model.loop == pytest.approx(formula.loop, rel=0.1)
        assert model.threads == pytest.approx(formula.threads, rel=0.1)
        assert model.p95_ms < formula.p95_ms < 3 * model.p95_ms
        assert math.isfinite(formula.p95_ms)
