"""Models backends as queues with workers, one queue and lognormal service.

Only an oracle knows the exact time that a request would take.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Arrival:
    at: float  # seconds
    budget_s: float
    light_s: float  # what the light one's worker would be busy with it
    large_s: float


@dataclass
class Station:
    """Workers that take what has waited longest."""

    workers: int
    free: list[float] = field(default_factory=list)  # when each will be

    def __post_init__(self) -> None:
        self.free = [0.0] * self.workers

    def would_take(self, at: float, service_s: float) -> float:
        """Return the seconds until the answer is there, waiting included."""
        return max(0.0, self.free[0] - at) + service_s

    def take(self, at: float, service_s: float) -> float:
        took = self.would_take(at, service_s)
        heapq.heapreplace(self.free, at + took)
        return took


@dataclass(frozen=True, slots=True)
class Scenario:
    """Medians are seconds of a worker; `spread` is the standard deviation of their logarithm."""

    light: tuple[float, int] = (0.06, 4)  # median, workers
    large: tuple[float, int] = (0.3, 8)
    spread: float = 0.3
    budgets: tuple[float, float] = (0.1, 1.5)  # drawn evenly from

    @property
    def capacity(self) -> float:
        """Requests a second that the large one can answer."""
        return self.large[1] / (self.large[0] * math.exp(self.spread**2 / 2))

    def arrivals(self, load: float, count: int, draw: random.Random) -> list[Arrival]:
        """Return Poisson arrivals at `load` times the capacity of the large one."""
        at, arrivals = 0.0, []
        for _ in range(count):
            at += draw.expovariate(load * self.capacity)
            service = (draw.lognormvariate(math.log(median), self.spread) for median, _ in (self.light, self.large))
            arrivals.append(Arrival(at, draw.uniform(*self.budgets), *service))
        return arrivals

    def stations(self) -> tuple[Station, Station]:
        return Station(self.light[1]), Station(self.large[1])


def oracle(scenario: Scenario, arrivals: Sequence[Arrival]) -> tuple[float, float]:
    """Return an oracle's share of the requests to the large model, and the share for which nothing is in time.

    The oracle knows each latency at each backend. It asks the large model if that is in time.
    """
    light, large = scenario.stations()
    to_large = impossible = 0
    for arrival in arrivals:
        if large.would_take(arrival.at, arrival.large_s) <= arrival.budget_s:
            large.take(arrival.at, arrival.large_s)
            to_large += 1
        else:
            impossible += light.take(arrival.at, arrival.light_s) > arrival.budget_s
    return to_large / len(arrivals), impossible / len(arrivals)


@dataclass(frozen=True, slots=True)
class Outcome:
    large: float  # share of the requests
    possible: float  # share of the requests
    kept: float  # share of those for which it was possible


def outcome(rows: Iterable[tuple[bool, bool, bool]]) -> Outcome:
    """Return the outcome. A row is (asked the large one, was it possible, was it in time)."""
    rows = list(rows)
    possible = [kept for _, was_possible, kept in rows if was_possible]
    return Outcome(sum(large for large, _, _ in rows) / len(rows), len(possible) / len(rows),
                   sum(possible) / max(1, len(possible)))  # fmt: skip
