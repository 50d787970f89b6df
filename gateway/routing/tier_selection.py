"""Which tier answers, and who is asked after it. Pure."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from gateway.config.policy.model import Late, Target
from gateway.latency_forecast import Prediction, Remaining
from gateway.messages import Choice


@dataclass(frozen=True, slots=True)
class Decision:
    """Backends in the order in which they are asked; the first is the choice, `reason` says why."""

    backends: tuple[str, ...]
    tier: str | None
    reason: Choice
    promised: bool = False  # there is a budget, and the choice is predicted to keep it
    late: bool = False  # there is one, and nobody is
    trial: str | None = None  # the backend whose answer is checked before these are asked
    trial_skipped: bool = False  # there is none, for want of time


def only(backend: str) -> Decision:
    return Decision((backend,), None, Choice.ONLY)


def choose(
    target: Target,
    thresholds: Sequence[float],
    complexity: float,
    remaining: Remaining,
    predictions: Sequence[Prediction | None],
    late: Late = "soonest",
) -> Decision:
    """The tier that the complexity asks for, if its predicted latency fits the budget that is left; otherwise the best
    one below it that fits, otherwise the next one above it that does.

    `thresholds`: complexities in [0, 1], ascending, one fewer than tiers. `predictions`: one a tier; of whom nothing
    is known (None) is taken to fit. Where none fits, the one that is predicted to be soonest is asked, or with `late`
    `light` the lightest; whether it is asked at all is the caller's to decide.
    """
    wanted = bisect_left(thresholds, complexity)  # at a threshold is not above it
    fitting = next((tier for tier in _nearest(wanted, len(predictions)) if fits(predictions[tier], remaining)), None)
    chosen = fitting
    if chosen is None:
        chosen = 0 if late == "light" else _soonest(wanted, predictions)
    reason = Choice.BUDGET if chosen != wanted else Choice.COMPLEX if wanted else Choice.SIMPLE
    promised = remaining.bounded and fitting is not None and predictions[chosen] is not None
    hopeless = fitting is None and (remaining.spent or not any(p is None or math.isinf(p.total_s) for p in predictions))
    if len(target.tiers) == 1:
        return Decision((target.tiers[0].backend,), None, Choice.ONLY, promised, hopeless)
    order = sorted(range(len(target.tiers)), key=lambda i: (abs(i - chosen), -i))  # the nearest, the better one first
    backends = tuple(target.tiers[i].backend for i in order)
    return Decision(backends, target.tiers[chosen].name, reason, promised, hopeless)


def _nearest(wanted: int, tiers: int) -> Iterable[int]:
    """The one that is wanted, then those below it, then those above it."""
    return chain(range(wanted, -1, -1), range(wanted + 1, tiers))


def _soonest(wanted: int, predictions: Sequence[Prediction | None]) -> int:
    """Of those of whom nothing is known yet the lightest: a crowd must not find out all at once."""

    def by(tier: int) -> tuple[float, int]:
        prediction = predictions[tier]
        if prediction is None or math.isinf(prediction.total_s):
            return math.inf, tier
        return prediction.total_s, tier != wanted

    return min(range(len(predictions)), key=by)


def relieved(decision: Decision, target: Target, waits: Sequence[float], remaining: Remaining) -> Decision:
    """The same, but that who has a place goes before the choice, where waiting for a place there takes longer by itself
    than what is left. `waits`: seconds, one a tier."""
    left = min((s for s in (remaining.total_s, remaining.ttft_s) if s is not None), default=math.inf)
    wait = dict(zip(target.backends, waits, strict=True))
    if wait[decision.backends[0]] <= max(0.0, left):
        return decision
    order = tuple(sorted(decision.backends, key=lambda name: wait[name] > 0.0))
    if order == decision.backends:
        return decision
    tier = target.tier_of(order[0])
    return replace(decision, backends=order, tier=tier, reason=Choice.OVERLOADED, promised=False)


def fits(prediction: Prediction | None, remaining: Remaining) -> bool:
    if remaining.spent:
        return False
    if prediction is None:
        return True
    return (
        (remaining.total_s is None or prediction.total_s <= remaining.total_s)
        and (remaining.ttft_s is None or prediction.ttft_s <= remaining.ttft_s)
        and (remaining.tpot_s is None or prediction.tpot_s <= remaining.tpot_s)
    )
