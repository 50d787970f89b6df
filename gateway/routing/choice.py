"""Which backend is asked, and which one after it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gateway.messages import Choice
from gateway.policy.model import Tiers
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
    tiers: Tiers,
    threshold: float,
    complexity: float,
    remaining: Remaining,
    light: Prediction | None,
    large: Prediction | None,
) -> Decision:
    """The large backend for what is complex, if its predicted latency fits the budget that is left.

    `threshold`: the complexity in [0, 1] above which the large one answers. A backend of which nothing is known is
    taken to fit. Where neither fits, the one that is predicted to be sooner is asked: late beats never, and the
    deadline is the client's to enforce.
    """
    to_light = Decision((tiers.light, tiers.large), "light", Choice.SIMPLE)
    to_large = Decision((tiers.large, tiers.light), "large", Choice.COMPLEX)
    if complexity <= threshold:
        return to_light if _holds(light, large, remaining) else replace(to_large, reason=Choice.BUDGET)
    return to_large if _holds(large, light, remaining) else replace(to_light, reason=Choice.BUDGET)


def _holds(wanted: Prediction | None, other: Prediction | None, remaining: Remaining) -> bool:
    """Whether the budget lets the wanted backend be asked rather than the other one."""
    if wanted is None or fits(wanted, remaining):
        return True
    return other is not None and not fits(other, remaining) and wanted.total_s <= other.total_s


def fits(prediction: Prediction | None, remaining: Remaining) -> bool:
    if prediction is None:
        return True
    return (
        (remaining.total_s is None or prediction.total_s <= remaining.total_s)
        and (remaining.ttft_s is None or prediction.ttft_s <= remaining.ttft_s)
        and (remaining.tpot_s is None or prediction.tpot_s <= remaining.tpot_s)
    )
