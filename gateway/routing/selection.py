"""Select the backends of a request, in order, with the reason. Pure.

The gateway, `nearhit explain`, policy tests and the simulation all use it.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from hashlib import blake2b
from itertools import chain
from typing import Protocol

from gateway.calls import EMBEDDINGS
from gateway.config.policy.model import Late, Target
from gateway.config.policy.parameters import untuned
from gateway.config.policy.targets import TierPart
from gateway.dialects.known import answers_client, endpoint_of
from gateway.latency_forecast import Prediction, RemainingBudget
from gateway.outcomes import Choice
from gateway.scores import TierDecision


# First: which part of a tier answers a request.
def resolve_splits(target: Target, key: bytes | None, rng: Callable[[], float]) -> Target:
    """Return the target with one backend for each tier.

    Requests that belong together, such as the turns of a conversation, have the same `key`. They get the same parts
    while the policy keeps the shares. Without a key, choose by `rng`, in [0, 1). Over many keys each part gets its
    share. Parts lie one after another in written order, so if the last one grows, it keeps its earlier keys.
    """
    if not any(tier.parts for tier in target.tiers):
        return target
    tiers = tuple(
        replace(tier, backend=_part_for(tier.parts, rng() if key is None else split_point(key, tier.name)))
        if tier.parts
        else tier
        for tier in target.tiers
    )
    return replace(target, tiers=tiers)


def split_point(key: bytes, name: str) -> float:
    """Return a point in [0, 1), uniform over keys and independent between tiers, so canaries do not correlate."""
    digest = blake2b(key, digest_size=8, person=blake2b(name.encode(), digest_size=16).digest()).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def _part_for(parts: Sequence[TierPart], point: float) -> str:
    reached = 0.0
    for part in parts:
        reached += part.share
        if point < reached:
            return part.backend
    return parts[-1].backend  # the shares' sum may fall short of 1 by a rounding error


def with_fallbacks(decision: Decision, target: Target, *, beyond: bool = True) -> Decision:
    """Append fallbacks: the other parts of the tier, the other tiers in order, then `fallback`, each once.

    Unless `beyond`, append only the tier's own parts.
    """
    if len(target.tiers) == 1 and not target.tiers[0].parts and not target.fallback:
        return decision  # most targets; every miss runs this
    chosen = next((tier for tier in target.tiers if tier.name == decision.tier), target.tiers[-1])
    siblings = [part.backend for part in sorted(chosen.parts, key=lambda part: -part.share)]
    after = [*decision.backends[1:], *target.fallback] if beyond else []
    order = dict.fromkeys([decision.backends[0], *siblings, *after])
    return replace(decision, backends=tuple(order))


# Second: which tier answers.
@dataclass(frozen=True, slots=True)
class Decision:
    """Backends in the order of their calls. The first is the choice; `reason` tells why."""

    backends: tuple[str, ...]
    tier: str | None
    reason: Choice
    promised: bool = False  # there is a budget, and the choice is predicted to meet it
    late: bool = False  # there is a budget, and no backend is predicted to meet it
    trial: str | None = None  # the backend whose answer is tried and checked first
    trial_skipped: bool = False  # there is no trial, for lack of time


def only(backend: str) -> Decision:
    return Decision((backend,), None, Choice.ONLY)


def bound_to(decision: Decision, target: Target, backend: str) -> Decision:
    """Return the decision for a request that names a resource of `backend`. No other backend has it.

    A limit that excludes the backend stands. The backend need not be one of the route's: another route may have used
    it.
    """
    named = (*decision.backends, *target.members)
    name = next((each for each in named if untuned(each) == backend), backend)
    if decision.reason is Choice.LIMIT and name not in decision.backends:
        return decision
    return replace(
        decision,
        backends=(name,),
        tier=target.tier_with_backend(name),
        reason=Choice.RESOURCE,
        promised=False,
        late=False,
        trial=None,
        trial_skipped=False,
    )


def choose(
    target: Target,
    thresholds: Sequence[float],
    complexity: float,
    remaining: RemainingBudget,
    predictions: Sequence[Prediction | None],
    late: Late = "soonest",
) -> Decision:
    """Choose the tier that the complexity asks for, if its predicted latency meets the remaining budget.

    Otherwise choose the best tier below it that does, else the next one above. If none does, choose the soonest, or the
    lightest if `late` is `light`; the caller decides whether to call it at all.

    `thresholds` are complexities in [0, 1], ascending, one fewer than tiers. `predictions` has one for each tier; None
    (nothing known) counts as in time.
    """
    preferred = bisect_left(thresholds, complexity)  # a score at the threshold is not above it
    fitting = next((tier for tier in _nearest(preferred, len(predictions)) if fits(predictions[tier], remaining)), None)
    chosen = fitting
    if chosen is None:
        chosen = 0 if late == "light" else _soonest(preferred, predictions)
    reason = Choice.BUDGET if chosen != preferred else Choice.COMPLEX if preferred else Choice.SIMPLE
    promised = remaining.has_budget and fitting is not None and predictions[chosen] is not None
    hopeless = fitting is None and (remaining.spent or not any(p is None or math.isinf(p.total_s) for p in predictions))
    if len(target.tiers) == 1:
        return Decision((target.tiers[0].backend,), None, Choice.ONLY, promised, hopeless)
    backends = tuple(target.tiers[i].backend for i in nearest_first(len(target.tiers), chosen))
    return Decision(backends, target.tiers[chosen].name, reason, promised, hopeless)


def nearest_first(tiers: int, chosen: int) -> Sequence[int]:
    """Return the tiers by their distance from the chosen one; of two equally near, the better one first."""
    return sorted(range(tiers), key=lambda i: (abs(i - chosen), -i))


def _nearest(preferred: int, tiers: int) -> Iterable[int]:
    """Yield the preferred tier, then those below it, then those above it."""
    return chain(range(preferred, -1, -1), range(preferred + 1, tiers))


def _soonest(preferred: int, predictions: Sequence[Prediction | None]) -> int:
    """Return the tier predicted soonest.

    If nothing is known of any tier yet, return the lightest: a crowd must not probe the others at once.
    """

    def by(tier: int) -> tuple[float, int]:
        prediction = predictions[tier]
        if prediction is None or math.isinf(prediction.total_s):
            return math.inf, tier
        return prediction.total_s, tier != preferred

    return min(range(len(predictions)), key=by)


def avoid_overloaded(
    decision: Decision, target: Target, waits: Sequence[float], remaining: RemainingBudget
) -> Decision:
    """Move backends with a free permit to the front, if waiting for the chosen one takes longer than the budget.

    `waits` has seconds for each tier.
    """
    remaining_s = min((s for s in (remaining.total_s, remaining.ttft_s) if s is not None), default=math.inf)
    wait = dict(zip(target.backends, waits, strict=True))
    if wait[decision.backends[0]] <= max(0.0, remaining_s):
        return decision
    order = tuple(sorted(decision.backends, key=lambda name: wait[name] > 0.0))
    if order == decision.backends:
        return decision
    tier = target.tier_with_backend(order[0])
    return replace(decision, backends=order, tier=tier, reason=Choice.OVERLOADED, promised=False)


def fits(prediction: Prediction | None, remaining: RemainingBudget) -> bool:
    if remaining.spent:
        return False
    if prediction is None:
        return True
    return (
        (remaining.total_s is None or prediction.total_s <= remaining.total_s)
        and (remaining.ttft_s is None or prediction.ttft_s <= remaining.ttft_s)
        and (remaining.tpot_s is None or prediction.tpot_s <= remaining.tpot_s)
    )


# The whole decision about a miss, for live requests and for the simulation.
def thresholds_of(target: Target, tier_decision: TierDecision | None) -> Sequence[float]:
    """Return the thresholds of the policy, or those that express the decision.

    A decision may treat equal scores differently, which no fixed threshold can.
    """
    if tier_decision is None or (target.large_share is None and target.quality is None):
        return target.escalate_above
    return (-1.0 if tier_decision.large else 1.0,) * (len(target.tiers) - 1)  # the best tier, or the lightest


def decide(
    target: Target,
    tier_decision: TierDecision | None,
    score: float,
    remaining: RemainingBudget,
    predictions: Sequence[Prediction | None],
    waits: Sequence[float],
    late: Late,
    *,
    can_check: bool,
) -> Decision:
    """Decide on a miss. `predictions` and `waits` have one for each tier, after `resolve_splits`.

    With `can_check` the cascade's check can judge the answer.
    """
    decision = choose(target, thresholds_of(target, tier_decision), score, remaining, predictions, late)
    decision = avoid_overloaded(decision, target, waits, remaining)
    if not can_check:
        return decision
    better = predictions[target.backends.index(decision.backends[0])]
    return with_trial(decision, target.tiers[0].backend, remaining, predictions[0], better)


UNBOUNDED = RemainingBudget()

# Adapters without HTTP: requests that no dialect reads cannot be passed through to them.
NOT_HTTP = frozenset({"triton", "onnx"})


class BackendTraits(Protocol):
    """The properties of a backend that decide whether it can serve a request at all."""

    @property
    def speaks(self) -> str:
        """The name of the dialect that it understands, or `text`."""

    @property
    def http(self) -> bool:
        """Whether unknown paths can be passed through to it."""


@dataclass(frozen=True, slots=True)
class AdapterTraits:
    """The traits that follow from a backend's `adapter` in the configuration."""

    speaks: str

    @property
    def http(self) -> bool:
        return self.speaks not in NOT_HTTP


@dataclass(frozen=True, slots=True)
class Signals:
    """The input of a choice. `operation` is None if no dialect reads the request.

    Each backend may have `predictions` (None without recent calls) and `waits` for a permit in seconds. A backend in
    neither is ready.
    """

    operation: str | None
    client: str | None = None  # the dialect of the client, if a header tells it (`client_of`)
    complexity: float = 0.0  # in [0, 1]
    tier_decision: TierDecision | None = None  # the decision of the rule between light and large
    remaining: RemainingBudget = UNBOUNDED  # of the latency budget
    predictions: Mapping[str, Prediction | None] = field(default_factory=dict)
    waits: Mapping[str, float] = field(default_factory=dict)
    can_check: bool = False  # the cascade's check can judge an answer
    light_only: bool = False  # a limit excludes the larger models
    self_contained: bool = False  # no dialect reads the request, but any backend can answer it


def select(target: Target, traits: Mapping[str, BackendTraits], signals: Signals, late: Late) -> Decision:
    """Select the backends for a request. `target` has one backend for each tier (`resolve_splits`).

    A passthrough request goes to an HTTP backend of the client's own protocol. If it is self-contained, it falls back
    to the others. Embeddings of two models cannot be mixed, so they go only to the best tier that has them.
    """
    best = target.tiers[-1].backend
    if signals.operation is None:
        passing = _passing(target, traits, client=signals.client) or (best,)
        return Decision(passing if signals.self_contained else passing[:1], None, Choice.ONLY)
    if signals.operation == EMBEDDINGS:
        embedding = (n for n in (best, *reversed(target.backends)) if _may_embed(traits[n].speaks))
        return only(next(embedding, best))
    if signals.light_only and len(target.tiers) > 1:
        return with_fallbacks(_lightest(target, signals, late), target, beyond=False)
    return with_fallbacks(_by_tiers(target, signals, late), target)


def select_unscored(target: Target, traits: Mapping[str, BackendTraits], signals: Signals) -> Decision:
    """Select by the traits of the backends alone, for a request that could not be scored: the best tier first."""
    if signals.operation in (None, EMBEDDINGS):
        return select(target, traits, signals, "soonest")
    tiers = target.backends[:1] if signals.light_only else (*reversed(target.backends), *target.fallback)
    tier = target.tier_with_backend(tiers[0])
    return Decision(tuple(dict.fromkeys(tiers)), tier, Choice.STEP_FAILED)


def _may_embed(speaks: str) -> bool:
    endpoint = endpoint_of(speaks)
    return endpoint is None or endpoint.embeds


def _passing(target: Target, traits: Mapping[str, BackendTraits], *, client: str | None) -> tuple[str, ...]:
    """Return the backends for a passthrough request: of the client's own protocol, or one of another if there is none.

    The best tier comes first, then the other tiers, then `fallback`.
    """
    tiers = [name for name in reversed(target.backends) if traits[name].http]
    names = dict.fromkeys([*tiers, *(name for name in target.fallback if traits[name].http)])
    own = [name for name in names if answers_client(traits[name].speaks, client)]
    first = next((name for name in own if name in tiers), None)
    return tuple(tiers[:1] if first is None else own)


def _lightest(target: Target, signals: Signals, late: Late) -> Decision:
    """Choose the lightest tier alone. Its latency is judged as usual."""
    first = target.tiers[0]
    alone = replace(target, tiers=(first,), escalate_above=(), large_share=None, quality=None)
    return replace(_by_tiers(alone, signals, late), tier=first.name, reason=Choice.LIMIT)


def _by_tiers(target: Target, signals: Signals, late: Late) -> Decision:
    predictions = [signals.predictions.get(name) for name in target.backends]
    waits = [signals.waits.get(name, 0.0) for name in target.backends]
    score = signals.complexity if len(target.tiers) > 1 else 0.0
    return decide(
        target, signals.tier_decision, score, signals.remaining, predictions, waits, late, can_check=signals.can_check
    )


def with_trial(
    decision: Decision, lightest: str, remaining: RemainingBudget, light: Prediction | None, better: Prediction | None
) -> Decision:
    """Put a trial of the lightest tier first, where the complexity asks for a better one and the budget allows both.

    An unknown latency counts as zero, as in `choose`. Both predictions are quantiles. If they are independent, their
    sum holds more often than each of them.
    """
    if decision.reason is not Choice.COMPLEX or decision.backends[0] == lightest or decision.late:
        return decision
    if remaining.has_budget and not fits(after(better, light), remaining):
        return replace(decision, trial_skipped=True)
    return replace(decision, trial=lightest)


def after(prediction: Prediction | None, first: Prediction | None) -> Prediction:
    """Return the latency of a call that begins when `first` has ended: its first token is the client's first."""
    spent = 0.0 if first is None else first.total_s
    if prediction is None:
        return Prediction(spent, 0.0, spent)
    return Prediction(spent + prediction.ttft_s, prediction.tpot_s, spent + prediction.total_s)
