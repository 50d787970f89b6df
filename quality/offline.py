"""Runs the replays of a report: promises kept online, the best fixed threshold, curves, and adaptation to a domain."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import numpy as np

from gateway.cache.threshold.ledger import BANDS, LOWEST, WIDTH
from gateway.cache.threshold.route_control import RouteControl
from quality.decision import FixedThreshold, FrozenEvidence
from quality.figures import Point, best_within, hit_rate, mean, promise_share, served_share_at, windows, worst
from quality.replay import Replay

CURVE_SEEDS = 2  # runs for each point of a curve: 7,300 windows on the development stream
ENOUGH = 1.1  # curves end where the loosest budget is spent by a tenth more
LABELS = 500
LEARNT = 2000  # requests after which a route should spend its promise


@dataclass(frozen=True, slots=True)
class PromiseResult:
    """One budget on one stream, over all seeds. `labels`: raw or audited, to learn from and to count by."""

    stream: str
    labels: str
    budget: float
    seeds: int
    served: float
    error: float
    later: float  # the error after the first LEARNT requests
    kept: float  # share of orders within the promise
    worst: int  # wrong hits of the worst window
    hindsight: float | None  # served by fixed thresholds at the same error; None: the curve ends before it
    audited: float  # of hits
    covered: float  # of runs: whether the stated interval held the true error
    threshold: float  # in force at the end, median

    @property
    def relative(self) -> float | None:
        return self.served / self.hindsight if self.hindsight else None


@dataclass(frozen=True, slots=True)
class Rung:
    """One score on the stream: served by fixed thresholds at each budget, and the area under its precision."""

    score: str
    labels: str
    served: tuple[float | None, ...]
    area: float


def thresholds(learn: bool) -> Iterator[float]:
    """Yield the thresholds that the control chooses from, the strictest first.

    Without evidence no score is above 1, and with it next to none is above 1.1.
    """
    return (t for band in range(BANDS, -1, -1) if (t := LOWEST + band * WIDTH) <= (1.1 if learn else 1.0) + 1e-9)


def curve(replay: Replay, loosest: float, *, learn: bool, audit: float, grow: bool = False, seeds: int) -> list[Point]:
    """Return the served and wrong shares at each fixed threshold, until more than `loosest` is wrong."""
    points: list[Point] = []
    for threshold in thresholds(learn):
        controls = [FixedThreshold(replay.opinions, threshold, learn=learn) for _ in range(seeds)]
        runs = [replay.play(c, loosest, audit=audit, seed=seed, grow=grow) for seed, c in enumerate(controls)]
        wrongs = tuple(run.wrong(replay.labels) for run in runs)
        served, error = mean([run.served.mean() for run in runs]), mean([wrong.mean() for wrong in wrongs])
        hits = [hit_rate(r.served, w, r.repeated) for r, w in zip(runs, wrongs, strict=True)]
        points.append(Point(threshold, float(served), float(error), wrongs, mean(hits)))
        if error > loosest * ENOUGH and max(int(windows(w).max()) for w in wrongs) > loosest * ENOUGH * 1000:
            break
    return points


def promise(
    replay: Replay, labels: str, budget: float, hindsight: Sequence[Point], *, seeds: int, audit: float, grow: bool
) -> PromiseResult:
    """Measure the control as it is in production, from its prior on, over all seeds.

    `labels`: the name of the labels of the replay.
    """
    verifier = replay.opinions
    runs, covers = [], []
    for seed in range(seeds):
        control = RouteControl(verifier.prior, verifier.basis)
        run = replay.play(control, budget, audit=audit, seed=seed, grow=grow)
        stated = control.estimate()
        covers.append(stated.of_all_low <= run.wrong(replay.labels).mean() <= stated.of_all_high)
        runs.append(run)
    wrongs = [run.wrong(replay.labels) for run in runs]
    error = float(np.mean([wrong.mean() for wrong in wrongs]))
    hits = sum(int(run.served.sum()) for run in runs)
    return PromiseResult(
        stream=replay.world.stream.name + (", cache grown tenfold" if grow else ""),
        labels=labels,
        budget=budget,
        seeds=seeds,
        served=float(np.mean([run.served.mean() for run in runs])),
        error=error,
        later=float(np.mean([wrong[min(LEARNT, len(wrong) // 2) :].mean() for wrong in wrongs])),
        kept=promise_share(wrongs, budget),
        worst=worst(wrongs),
        hindsight=served_share_at(hindsight, error),
        audited=sum(run.audited for run in runs) / max(1, hits),
        covered=float(np.mean(covers)),
        threshold=median(run.threshold for run in runs),
    )


@dataclass(frozen=True, slots=True)
class AdaptationResult:
    """The hit rate on the rest of a stream, at the same error, before and after labels of its domain."""

    stream: str
    budget: float
    labels: int
    cold: float
    taught: float


def adaptation(replay: Replay, budgets: Sequence[float], *, audit: float) -> list[AdaptationResult]:
    """Measure each budget before and after LABELS labels. Thresholds are those of hindsight.

    The first requests are all misses, until they have given these labels.
    """
    verifier, total = replay.opinions, replay.world.stream.request_count
    first = next(
        (n for n in range(LABELS, total // 2 + 1, 50) if _trained_control(replay, n).labels >= LABELS), total // 2
    )
    control = _trained_control(replay, first)
    curves: list[list[Point]] = []
    for learnt in (None, control.snapshot()):
        points: list[Point] = []
        for threshold in thresholds(learnt is not None):
            frozen = FrozenEvidence(verifier, threshold, learn=learnt is not None)
            if learnt is not None:
                frozen.restore(learnt)
            run = replay.play(frozen, max(budgets), audit=audit, seed=1, requests=slice(first, None))
            wrong = run.wrong(replay.labels)
            hit = hit_rate(run.served, wrong, run.repeated)
            points.append(Point(threshold, float(run.served.mean()), float(wrong.mean()), (wrong,), hit))
            if wrong.mean() > max(budgets) * ENOUGH:
                break
        curves.append(points)
    pairs = [[best_within(points, budget) for points in curves] for budget in budgets]
    return [
        AdaptationResult(replay.world.stream.name, budget, control.labels, *(0.0 if p is None else p.hit for p in pair))
        for budget, pair in zip(budgets, pairs, strict=True)
    ]


def _trained_control(replay: Replay, requests: int) -> RouteControl:
    """Return a control that has seen that many requests and served none of them.

    At its threshold every neighbour is read.
    """
    control = FixedThreshold(replay.opinions, LOWEST)
    replay.play(control, 0.01, seed=1, requests=slice(requests), serve=False)
    return control
