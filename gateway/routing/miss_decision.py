"""A miss, from what is known of it to whom it is put: the same for a request that waits for it and for one that is
replayed. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from gateway.config.policy.model import Late, Target
from gateway.latency_forecast import Prediction, Remaining
from gateway.messages import Wish
from gateway.routing.cascade_policy import tried_first
from gateway.routing.tier_selection import Decision, choose, relieved


def thresholds_of(target: Target, wish: Wish | None) -> Sequence[float]:
    """Where the policy names none, what is wished for: of equal scores not all, so no threshold can say it."""
    if wish is None or (target.large_share is None and target.quality is None):
        return target.escalate_above
    return (-1.0 if wish.large else 1.0,) * (len(target.tiers) - 1)  # the best one, or the lightest


def decided(
    target: Target,
    wish: Wish | None,
    score: float,
    remaining: Remaining,
    predictions: Sequence[Prediction | None],
    waits: Sequence[float],
    late: Late,
    *,
    tries: bool,
) -> Decision:
    """`predictions`, `waits`: one a tier, which each have one backend by now. `tries`: whether the cascade's check
    could tell anything of an answer."""
    decision = choose(target, thresholds_of(target, wish), score, remaining, predictions, late)
    decision = relieved(decision, target, waits, remaining)
    if not tries:
        return decision
    better = predictions[target.backends.index(decision.backends[0])]
    return tried_first(decision, target.tiers[0].backend, remaining, predictions[0], better)
