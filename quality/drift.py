"""Measures the drift alarm by simulation: false alarms of stationary routes, and labels until a change is noticed.

`python -m quality.drift` draws routes as the prior of the wrong shares does (`gateway.cache.threshold.wrong_shares`): a
level and a slope of the log-odds around the shipped calibration. Scores come as often as the calibration says. Misses
are labelled, and 5 % of the hits are. At the change the share of wrong neighbours doubles at every score.

`one score` is a route whose neighbours all have the same score: 20 % of them are wrong, and 40 % after the change.
"""

# ruff: noqa: T201 (a command prints)
from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gateway.cache.model_factory import build_verifier
from gateway.cache.threshold.drift import LIMIT
from gateway.cache.threshold.ledger import BANDS, CENTRES, GREATEST_SHARE, LEAST_SHARE, band_of
from gateway.cache.threshold.route_control import Observation, RouteControl
from gateway.cache.threshold.wrong_hits import Label
from gateway.cache.threshold.wrong_shares import LEVEL, SLOPE
from gateway.config.schema import EmbedderConfig, VerifierConfig
from gateway.ports import Acceptance, PriorBands

AUDIT, PROMISE = 0.05, Acceptance(max_wrong_hits=0.01)
NO_VECTOR = np.zeros(1, np.float32)
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Route:
    """The true shares of wrong neighbours by band, and how often each band is met."""

    prior: PriorBands
    shares: Floats
    rates: Floats

    def labels(self, control: RouteControl, changes_at: int, seed: int) -> Iterator[bool]:
        """Send requests to `control` for ever, and yield for each label whether it raised the alarm."""
        draw, requests, labels = np.random.default_rng(seed), 0.0, 0
        doubled = np.minimum(2 * self.shares, GREATEST_SHARE)
        bands, chances = np.arange(BANDS), self.rates / self.rates.sum()
        while True:
            for band, audit, wrong in zip(draw.choice(bands, 5000, p=chances), *draw.random((2, 5000)), strict=True):
                requests += 1 / self.rates.sum()
                control.advance(int(requests))
                score = float(CENTRES[band])
                served = band >= band_of(control.threshold(PROMISE))
                control.record_neighbour(score)
                if served and audit >= AUDIT:
                    continue
                share = (doubled if labels >= changes_at else self.shares)[band]
                label = Label.WRONG if wrong < share else Label.RIGHT
                labels += 1
                yield control.learn(Observation(NO_VECTOR, score, 0.5, label))


def draw_route(prior: PriorBands, seed: int) -> Route:
    """Return a route that differs from the calibration as the ledger's prior expects."""
    draw = np.random.default_rng(seed)
    shares, rates = np.array(prior, np.float64).T
    shares = np.clip(shares, LEAST_SHARE, GREATEST_SHARE)
    odds = np.log(shares / (1 - shares)) + LEVEL * draw.normal() + SLOPE * draw.normal() * (CENTRES - CENTRES.mean())
    return Route(prior, 1 / (1 + np.exp(-odds)), rates)


def single_score_route(prior: PriorBands) -> Route:
    """Return a route whose neighbours all have the same score, below the threshold; a fifth of them is wrong."""
    band = band_of(0.8)
    return Route(prior, np.full(BANDS, 0.2), np.where(np.arange(BANDS) == band, 0.7, 0.0))


def false_alarms(route: Route, labels: int, seed: int) -> int:
    stream = route.labels(RouteControl(route.prior, "simulated"), 10**9, seed)
    return sum(raised for raised, _ in zip(stream, range(labels), strict=False))


def delay(route: Route, before: int, most: int, seed: int) -> float:
    """Return the labels from the change to the alarm; infinite: more than `most`."""
    for at, raised in enumerate(route.labels(RouteControl(route.prior, "simulated"), before, seed), 1):
        if raised and at > before:
            return at - before
        if at >= before + most:
            return float("inf")
    raise AssertionError("the stream ended")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m quality.drift", description=__doc__)
    parser.add_argument("--routes", type=int, default=40)
    parser.add_argument("--labels", type=int, default=50_000, help="of each stationary route")
    parser.add_argument("--before", type=int, nargs="+", default=[500, 2000, 10_000], help="labels before the change")
    given = parser.parse_args()
    prior = build_verifier(VerifierConfig(), EmbedderConfig()).prior
    print(f"limit {LIMIT}; {given.routes} routes")
    for before in given.before:
        for name, routes in (
            ("one score", [single_score_route(prior)] * given.routes),
            ("drawn", [draw_route(prior, seed) for seed in range(given.routes)]),
        ):
            delays = np.array([delay(route, before, 1000, seed) for seed, route in enumerate(routes)])
            median, p95 = (np.quantile(delays, q, method="higher") for q in (0.5, 0.95))
            print(
                f"change after {before} labels, {name}: noticed after {median:.0f} labels (median), {p95:.0f} (95 %), "
                f"within 300: {np.mean(delays <= 300):.0%}",
                flush=True,
            )
    alarms = [false_alarms(draw_route(prior, seed), given.labels, seed) for seed in range(given.routes)]
    print(f"stationary: {sum(alarms)} alarms in {given.routes * given.labels} labels")


if __name__ == "__main__":
    main()
