"""Decide whether a session keeps its backend, and what is known of it afterwards. Pure.

The rules, in their order:

1. The result of a tool call goes to the backend that made the call, unless the policy no longer has that backend. So
   does a request that continues a response which the backend stores.
2. After idleness the choice is free.
3. A choice by a budget, a limit or an overload stands for its request. The session returns afterwards.
4. A harder question raises the tier. An easier one lowers it only if it is on another topic.
5. Otherwise the backend stays.

`SessionEffect.reason` is `new`, `unnamed`, `kept`, `returned`, or the reason for another backend: `idle`, `topic`,
`harder`, `removed`, or a `Choice`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from gateway.config.policy.model import Target
from gateway.entries import Vector
from gateway.features.sessions.turns import Session, SessionEffect, SessionState
from gateway.outcomes import Choice
from gateway.routing.selection import Decision, nearest_first

FREE = frozenset({Choice.SIMPLE, Choice.COMPLEX, Choice.ONLY})  # reasons that a session may overrule
FRESH = frozenset({"new", "unnamed", "idle", "topic"})  # after these the tier starts again

# Cosine between a question and the session's questions below which it is on another topic. With all-MiniLM-L6-v2 none
# of 400 pairs on one topic (`training/wordings`) is below, and 91 % of the pairs on two are. Models whose cosines are
# all higher never see another topic, so tiers fall by idleness only.
SAME_TOPIC = 0.15
TOPIC_WEIGHT = 0.5  # of the newest question in the running mean


def hold(
    decision: Decision, target: Target, session: Session, idle_s: float, now: float, in_time: Callable[[str], bool]
) -> tuple[Decision, SessionEffect]:
    """Return the decision with the session's backend first, if it is kept, and what the session did to it.

    `now` is in seconds on the monotonic clock. `in_time` returns whether a backend is predicted to meet the request's
    budget.
    """
    state = session.state
    if state is None:
        return decision, SessionEffect(session, "new" if session.by else "unnamed")
    if session.bound:
        return _to_caller(decision, target, session, state)
    if now - state.used > idle_s:
        return decision, SessionEffect(session, "idle")
    if decision.reason not in FREE:
        return decision, SessionEffect(session, str(decision.reason))
    floor, rank = min(state.rank, len(target.tiers) - 1), rank_of(target, decision.backends[0])
    if rank > floor:
        return decision, SessionEffect(session, "harder")
    if rank < floor and is_other_topic(state.topic, session.topic):
        return decision, SessionEffect(session, "topic")
    tier = target.tiers[floor]
    backend = state.backend if state.backend in tier.members else tier.backend
    if backend != decision.backends[0] and not in_time(backend):
        return decision, SessionEffect(session, str(Choice.BUDGET))
    return _put_first(decision, target, backend, Choice.SESSION), _effect_of(session, state, backend)


def _to_caller(
    decision: Decision, target: Target, session: Session, state: SessionState
) -> tuple[Decision, SessionEffect]:
    """Send the result of a tool call to the backend that made the call, whatever its tier."""
    backend = state.backend
    if backend not in target.members:
        return decision, SessionEffect(session, "removed")
    if decision.reason is Choice.LIMIT and backend not in decision.backends:
        return decision, SessionEffect(session, str(Choice.LIMIT))
    to_caller = replace(_put_first(decision, target, backend, Choice.TOOL_RESULT), reason=Choice.TOOL_RESULT)
    return to_caller, _effect_of(session, state, backend)


def _effect_of(session: Session, state: SessionState, backend: str) -> SessionEffect:
    same = backend == state.backend
    return SessionEffect(session, "kept" if same else "returned", state.upstream if same else None)


def _put_first(decision: Decision, target: Target, backend: str, reason: Choice) -> Decision:
    """Put a backend first. There is no trial of a lighter one, which would be another backend."""
    if backend == decision.backends[0]:
        return replace(decision, trial=None)
    order = [backend]
    if decision.reason is not Choice.LIMIT:  # a limit excludes the other tiers
        rank = rank_of(target, backend)
        order += [target.tiers[i].backend for i in nearest_first(len(target.tiers), rank)]
    return replace(
        decision,
        backends=tuple(dict.fromkeys([*order, *decision.backends])),
        tier=target.tier_with_backend(backend),
        reason=reason,
        trial=None,
        trial_skipped=False,
    )


def next_state(
    effect: SessionEffect, target: Target, backend: str, upstream: str | None, score: float | None, now: float
) -> SessionState:
    """Return the state after an answer of `backend`. `score` is the complexity of the request."""
    session, rank = effect.session, rank_of(target, backend)
    before = None if effect.reason in FRESH else session.state
    if before is None:
        return SessionState(backend, upstream, rank, now, score, running_topic(None, session.topic))
    is_question = not session.turn.delivers and not session.turn.short
    return SessionState(
        backend,
        upstream,
        max(before.rank, rank),
        now,
        score if is_question or before.score is None else before.score,
        running_topic(before.topic, session.topic),
    )


def outcome_of(effect: SessionEffect, backend: str, upstream: str | None, instead: Choice | None) -> str:
    """Return what became of the session, as a word for the metric: a backend was kept, or why another one answered.

    `instead` is the reason why another backend than the chosen one answered.
    """
    state = effect.session.state
    if state is None:
        return effect.reason
    if backend != state.backend:
        return str(instead or effect.reason)
    moved = effect.upstream is not None and upstream is not None and upstream != effect.upstream
    return "upstream" if moved else "kept"


def rank_of(target: Target, backend: str) -> int:
    """Return the place of the tier with a backend, from the lightest; 0 for a backend of no tier."""
    return next((i for i, tier in enumerate(target.tiers) if backend in (tier.backend, *tier.members)), 0)


def is_other_topic(running: Vector | None, question: Vector | None) -> bool:
    """Return whether a question is on another topic. Without both embeddings nothing is known, so it is not."""
    if running is None or question is None or running.shape != question.shape:
        return False
    return float(running @ question) < SAME_TOPIC


def running_topic(running: Vector | None, question: Vector | None) -> Vector | None:
    """Return the session's topic after a question. Another topic replaces it.

    The result is a copy: an embedding may be a row of a whole batch, which it would keep in memory.
    """
    if question is None:
        return running
    if running is None or running.shape != question.shape or is_other_topic(running, question):
        return question.copy()
    mean = (1.0 - TOPIC_WEIGHT) * running + TOPIC_WEIGHT * question
    return np.asarray(mean / np.linalg.norm(mean), np.float32)
