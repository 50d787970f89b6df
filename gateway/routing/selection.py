"""Selects the backends of a request, in order, with the reason. Pure: the gateway, `nearhit explain`, the tests of
policies and `nearhit simulate` all call it, each with the signals that it has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from gateway.config.policy.model import Late, Target
from gateway.latency_forecast import Prediction, Remaining
from gateway.messages import Choice, Wish
from gateway.routing.miss_decision import decided
from gateway.routing.tier_selection import Decision, only
from gateway.routing.traffic_split import with_fallbacks

EMBEDDINGS = "embeddings"
UNBOUNDED = Remaining()
# Adapters without HTTP: what no dialect reads cannot be passed through to them.
NOT_HTTP = frozenset({"triton", "onnx"})


class BackendTraits(Protocol):
    """What of a backend decides whether it can be asked at all."""

    @property
    def speaks(self) -> str:
        """The name of the dialect that it understands, or `text`."""

    @property
    def http(self) -> bool:
        """Whether paths that no dialect knows can be passed through to it."""


@dataclass(frozen=True, slots=True)
class AdapterTraits:
    """By a backend's `adapter` in the configuration alone."""

    speaks: str

    @property
    def http(self) -> bool:
        return self.speaks not in NOT_HTTP


@dataclass(frozen=True, slots=True)
class Signals:
    """The input of a choice. `operation` None: no dialect reads the request. By backend: `predictions`, None where
    nothing recent is known, and `waits` for a place, in seconds; a backend in neither is ready."""

    operation: str | None
    speaks_anthropic: bool = False  # its client does
    complexity: float = 0.0  # in [0, 1]
    wish: Wish | None = None  # what the rule between light and large asks for
    remaining: Remaining = UNBOUNDED  # of the latency budget
    predictions: Mapping[str, Prediction | None] = field(default_factory=dict)
    waits: Mapping[str, float] = field(default_factory=dict)
    tries: bool = False  # the cascade's check could tell something of an answer
    light_only: bool = False  # a limit takes the larger models away


def select(target: Target, traits: Mapping[str, BackendTraits], signals: Signals, late: Late) -> Decision:
    """`target`: with one backend a tier (`splits.resolved`). A request that passes through goes to an HTTP backend of
    the client's own protocol. Embeddings of two models cannot be mixed: they go to the best tier that has them, and
    nowhere else."""
    best = target.tiers[-1].backend
    if signals.operation is None:
        return only(_passing(target, traits, anthropic=signals.speaks_anthropic) or best)
    if signals.operation == EMBEDDINGS:
        embedding = (n for n in (best, *reversed(target.backends)) if traits[n].speaks != "anthropic")
        return only(next(embedding, best))
    if signals.light_only and len(target.tiers) > 1:
        return with_fallbacks(_lightest(target, signals, late), target, beyond=False)
    return with_fallbacks(_by_tiers(target, signals, late), target)


def _passing(target: Target, traits: Mapping[str, BackendTraits], *, anthropic: bool) -> str | None:
    http = [name for name in reversed(target.backends) if traits[name].http]
    own = [name for name in http if (traits[name].speaks == "anthropic") == anthropic]
    return next(iter(own or http), None)


def _lightest(target: Target, signals: Signals, late: Late) -> Decision:
    """It alone: whether it is in time is asked of it as of any other."""
    first = target.tiers[0]
    alone = replace(target, tiers=(first,), escalate_above=(), large_share=None, quality=None, cascade=None)
    return replace(_by_tiers(alone, signals, late), tier=first.name, reason=Choice.LIMIT)


def _by_tiers(target: Target, signals: Signals, late: Late) -> Decision:
    predictions = [signals.predictions.get(name) for name in target.backends]
    waits = [signals.waits.get(name, 0.0) for name in target.backends]
    score = signals.complexity if len(target.tiers) > 1 else 0.0
    return decided(target, signals.wish, score, signals.remaining, predictions, waits, late, tries=signals.tries)
