"""Which tier answers, and who is asked after it. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from gateway.messages import Choice
from gateway.policy.model import Target
from gateway.routing.latency import Prediction


@dataclass(frozen=True, slots=True)
class Remaining:
    """What is left of the request's budgets after the time already spent, in seconds; None: no such budget."""

    total_s: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """Backends in the order in which they are asked; the first is the choice, `reason` says why."""

    backends: tuple[str, ...]
    tier: str | None
    reason: Choice


def only(backend: str) -> Decision:
    return Decision((backend,), None, Choice.ONLY)


def choose(
    target: Target,
    thresholds: Sequence[float],
    complexity: float,
    remaining: Remaining,
    predictions: Sequence[Prediction | None],
) -> Decision:
    """The tier that the complexity asks for, if its predicted latency fits the budget that is left; otherwise the best
    one below it that fits, otherwise the next one above it that does.

    `thresholds`: complexities in [0, 1], ascending, one fewer than tiers. `predictions`: one a tier; of whom nothing
    is known (None) is taken to fit. Where none fits, the one that is predicted to be soonest is asked: late beats
    never, and the deadline is the client's to enforce.
    """
    wanted = bisect_left(thresholds, complexity)  # at a threshold is not above it
    chosen = _affordable(wanted, remaining, predictions)
    reason = Choice.BUDGET if chosen != wanted else Choice.COMPLEX if wanted else Choice.SIMPLE
    order = sorted(range(len(target.tiers)), key=lambda i: (abs(i - chosen), -i))  # the nearest, the better one first
    return Decision(tuple(target.tiers[i].backend for i in order), target.tiers[chosen].name, reason)


def _affordable(wanted: int, remaining: Remaining, predictions: Sequence[Prediction | None]) -> int:
    for tier in chain(range(wanted, -1, -1), range(wanted + 1, len(predictions))):
        if fits(predictions[tier], remaining):
            return tier
    # Nobody fits, so everybody is known, or about to be: of these the lightest.
    known = {tier: prediction.total_s for tier, prediction in enumerate(predictions) if prediction is not None}
    return min(known, key=lambda tier: (known[tier], tier if math.isinf(known[tier]) else tier != wanted))


def fits(prediction: Prediction | None, remaining: Remaining) -> bool:
    if prediction is None:
        return True
    return (
        (remaining.total_s is None or prediction.total_s <= remaining.total_s)
        and (remaining.ttft_s is None or prediction.ttft_s <= remaining.ttft_s)
        and (remaining.tpot_s is None or prediction.tpot_s <= remaining.tpot_s)
    )
