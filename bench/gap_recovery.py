"""Computes how much of the gap between the answers of a light and a large model a score recovers. Pure.

It also places the gateway's rules on that curve. The inputs are outcomes and scores, the results are figures.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gateway.config.policy.model import Target, Tier
from gateway.routing.prompt_features import FloatArray
from gateway.routing.tier_controller import TierController
from training import gaps

STEPS = 10  # of the area, as RouteLLM's evaluation and `router_eval.py` take them
SHOWN = 50  # points of a curve in the picture
HELD_OUT, SHIPPED = "held out", "shipped"
EVERY_S = 3.0  # between two requests: 1,200 an hour, over which shares are held
IN_A_ROW = 500  # requests over which a share is looked at
ORDERS = 5  # in which the prompts are played


@dataclass(frozen=True, slots=True)
class Outcomes:
    """n prompts that two models answered, and what is said of them."""

    light: FloatArray  # (n,) 1.0 right, 0.0 wrong
    large: FloatArray
    scores: dict[str, FloatArray]  # by who says it: higher is harder


@dataclass(frozen=True, slots=True)
class Curve:
    """`low`, `high`: 95 % over resampled prompts. `points`: (share of the large model, part of the gap recovered)."""

    name: str
    apgr: float
    low: float
    high: float
    points: Sequence[tuple[float, float]]

    def at(self, share: float) -> float:
        return float(np.interp(share, [x for x, _ in self.points], [y for _, y in self.points]))


@dataclass(frozen=True, slots=True)
class RuleResult:
    """The result of a policy's rule: the mean over the orders in which the prompts were played."""

    rule: str
    audited: float  # share of the light model's answers that were labelled
    large: float  # share of the requests
    furthest: float  # from the share that was asked for, over so many in a row, in any order; NaN for `quality`
    kept: float  # of the answers at which the light model is worse, the part that the large one gave
    recovered: float  # part of the gap: as `kept`, less where the large model is worse
    worst_kept: float  # in the worst order


def load(path: Path) -> Outcomes:
    """Read the output of `training.outcome_scores`."""
    said = {name: np.array(values, np.float64) for name, values in json.loads(path.read_text("utf-8")).items()}
    light, large = said["light"], said["large"]
    scores = {HELD_OUT: said["held_out"], SHIPPED: said["shipped"], "prompt length": said["length"]}
    # As the file lies, its subjects are in a row: where scores are equal the order would be one of subjects.
    mixed = np.random.default_rng(0).permutation(len(light))
    return Outcomes(light[mixed], large[mixed], {name: score[mixed] for name, score in scores.items()})


def curves(seen: Outcomes) -> list[Curve]:
    """Return the curve of each score, of chance, and of an oracle, which knows both answers."""
    chance = np.random.default_rng(1).random(len(seen.light))
    scores = {**seen.scores, "random": chance, "oracle": seen.large - seen.light}
    return [_curve(name, score, seen) for name, score in scores.items()]


def _curve(name: str, score: FloatArray, seen: Outcomes) -> Curve:
    def area(at: npt.NDArray[np.int_]) -> float:
        return gaps.apgr(score[at], seen.light[at], seen.large[at], STEPS)

    low, high = gaps.interval(area, len(score))
    shares, recovered = gaps.curve(score, seen.light, seen.large, SHOWN)
    points = list(zip(shares.tolist(), recovered.tolist(), strict=True))
    return Curve(name, area(np.arange(len(score))), low, high, points)


def rule_results(seen: Outcomes, score: FloatArray, *, audited: float = 0.05) -> list[RuleResult]:
    """Return the results for the `SHARES`, and for the `QUALITIES` without labels and with some."""
    found = [
        _rule_result(_target(large_share=share), f"large_share: {share:.0%}", 0.0, seen, score) for share in SHARES
    ]
    for labelled in (0.0, audited):
        found += [
            _rule_result(_target(quality=part), f"quality: {part:g}", labelled, seen, score) for part in QUALITIES
        ]
    return found


SHARES, QUALITIES = (0.1, 0.3, 0.5), (0.9, 0.95)


def _target(*, large_share: float | None = None, quality: float | None = None) -> Target:
    tiers = (Tier("light", "light"), Tier("large", "large"))
    return Target(tiers, (0.5,), large_share=large_share, quality=quality)


def _rule_result(target: Target, rule: str, audited: float, seen: Outcomes, score: FloatArray) -> RuleResult:
    gain = seen.large - seen.light
    shares, kept, recovered, furthest = [], [], [], []
    for seed in range(ORDERS):
        order, to_large = play(target, score, gain > 0, audited, seed)
        shares.append(to_large.mean())
        won = gain[order]
        kept.append(float((to_large & (won > 0)).sum() / (won > 0).sum()))
        recovered.append(float(won[to_large].sum() / won.sum()))
        furthest.append(_furthest(to_large, target.large_share))
    return RuleResult(rule, audited, float(np.mean(shares)), max(furthest), float(np.mean(kept)),
                   float(np.mean(recovered)), min(kept))  # fmt: skip


def play(
    target: Target, score: FloatArray, light_is_worse: npt.NDArray[np.bool_], audited: float, seed: int
) -> tuple[npt.NDArray[np.int_], npt.NDArray[np.bool_]]:
    """Put the prompts to the gateway's own rule, one after the other.

    Return their order, and which of them went to the large model. The share `audited` of the light model's answers is
    labelled as an audit would.
    """
    draw, route = random.Random(seed), TierController("bench")
    order = np.random.default_rng(seed).permutation(len(score))
    to_large = np.zeros(len(score), bool)
    for place, prompt in enumerate(order):
        now, hard = EVERY_S * place, float(score[prompt])
        decision = route.decide(target, hard, now)
        route.count(decision, hard, now, large=decision.large)
        to_large[place] = decision.large
        if not decision.large and draw.random() < audited:
            route.observe(hard, bool(light_is_worse[prompt]), "audit")
    return order, to_large


def _furthest(to_large: npt.NDArray[np.bool_], share: float | None) -> float:
    """Return the largest distance from the share, in any `IN_A_ROW` requests in a row, in shares."""
    if share is None:
        return float("nan")
    total = np.concatenate([[0], np.cumsum(to_large)])
    length = min(IN_A_ROW, len(to_large))
    return float(np.abs((total[length:] - total[:-length]) / length - share).max())
