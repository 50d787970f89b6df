"""A session keeps its backend, or gives it up for a reason: a table of every case."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from gateway.config.policy.model import Target, Tier
from gateway.config.policy.targets import TierPart
from gateway.features.sessions.hold import hold, next_state, outcome_of, running_topic
from gateway.features.sessions.turns import Session, SessionEffect, SessionState, Turn
from gateway.outcomes import Choice
from gateway.routing.selection import Decision, only
from tests.fixtures.targets import light_and_large

TIERS = light_and_large("small", "big", 0.5)
SPLIT = Target((Tier("light", "a", (TierPart("a", 0.9), TierPart("b", 0.1))), Tier("large", "big")), (0.5,))
THREE = Target((Tier("light", "s"), Tier("m", "m"), Tier("large", "l")), (0.3, 0.7))
EASY = Decision(("small", "big"), "light", Choice.SIMPLE)
HARD = Decision(("big", "small"), "large", Choice.COMPLEX)
TRIED = replace(HARD, trial="small")
LATE = Decision(("small", "big"), "light", Choice.BUDGET)
LIMITED = Decision(("small",), "light", Choice.LIMIT)
X, Y = np.eye(2, dtype=np.float32)
FOLLOW_UP, TOOL = Turn(first=False), Turn(delivers=True, first=False)
IDLE_S = 600.0


def state(backend: str, rank: int, used: float = 0.0, **fields: object) -> SessionState:
    return replace(SessionState(backend, None, rank, used), **fields)  # type: ignore[arg-type]


def held(
    decision: Decision, before: SessionState | None, turn: Turn = FOLLOW_UP, now: float = 1.0, *, in_time: bool = True
) -> tuple[str, Choice, str]:
    """The first backend, the reason, and what the session did."""
    session = Session(turn, turn.delivers, "turns", state=before, topic=X)
    found, effect = hold(decision, TIERS, session, IDLE_S, now, lambda _: in_time)
    assert set(found.backends) == set(decision.backends) | {found.backends[0]}
    return found.backends[0], found.reason, effect.reason


# the decision without sessions, the state, the turn, the time -> backend, reason, what the session did
TABLE = [
    (EASY, None, FOLLOW_UP, 1.0, ("small", Choice.SIMPLE, "new")),
    (HARD, None, FOLLOW_UP, 1.0, ("big", Choice.COMPLEX, "new")),
    (EASY, state("small", 0), FOLLOW_UP, 1.0, ("small", Choice.SIMPLE, "kept")),
    (HARD, state("small", 0), FOLLOW_UP, 1.0, ("big", Choice.COMPLEX, "harder")),
    (EASY, state("big", 1), FOLLOW_UP, 1.0, ("big", Choice.SESSION, "kept")),
    (EASY, state("big", 1), FOLLOW_UP, IDLE_S + 1, ("small", Choice.SIMPLE, "idle")),
    (EASY, state("big", 1, topic=Y), FOLLOW_UP, 1.0, ("small", Choice.SIMPLE, "topic")),
    (EASY, state("big", 1, topic=X), FOLLOW_UP, 1.0, ("big", Choice.SESSION, "kept")),
    (HARD, state("big", 1, topic=Y), FOLLOW_UP, 1.0, ("big", Choice.COMPLEX, "kept")),
    (LATE, state("big", 1), FOLLOW_UP, 1.0, ("small", Choice.BUDGET, "budget")),  # a promise to the client goes first
    (EASY, state("small", 1), FOLLOW_UP, 1.0, ("big", Choice.SESSION, "returned")),  # after that, back to its tier
    (LIMITED, state("big", 1), FOLLOW_UP, 1.0, ("small", Choice.LIMIT, "limit")),
    (HARD, state("small", 0), TOOL, 1.0, ("small", Choice.TOOL_RESULT, "kept")),
    (EASY, state("big", 1), TOOL, 1.0, ("big", Choice.TOOL_RESULT, "kept")),
    (EASY, state("small", 1), TOOL, 1.0, ("small", Choice.TOOL_RESULT, "kept")),  # it made the call, whatever its tier
    (EASY, state("big", 1, topic=Y), TOOL, IDLE_S + 1, ("big", Choice.TOOL_RESULT, "kept")),  # a tool may take long
    (LATE, state("big", 1), TOOL, 1.0, ("big", Choice.TOOL_RESULT, "kept")),
    (LIMITED, state("big", 1), TOOL, 1.0, ("small", Choice.LIMIT, "limit")),  # what may be spent goes first
    (LIMITED, state("small", 1), TOOL, 1.0, ("small", Choice.TOOL_RESULT, "kept")),
    (EASY, state("gone", 1), TOOL, 1.0, ("small", Choice.SIMPLE, "removed")),
    (EASY, state("gone", 1), FOLLOW_UP, 1.0, ("big", Choice.SESSION, "returned")),
]


@pytest.mark.parametrize(("decision", "before", "turn", "now", "expected"), TABLE)
def test_the_table_of_turns(
    decision: Decision, before: SessionState | None, turn: Turn, now: float, expected: tuple[str, Choice, str]
) -> None:
    assert held(decision, before, turn, now) == expected


def test_a_session_does_not_keep_a_backend_that_would_be_late() -> None:
    assert held(EASY, state("big", 1), in_time=False) == ("small", Choice.SIMPLE, "budget")
    assert held(EASY, state("big", 1), TOOL, in_time=False)[0] == "big"


def test_a_session_on_the_large_model_tries_no_lighter_one() -> None:
    kept, _ = hold(TRIED, TIERS, Session(FOLLOW_UP, by="turns", state=state("big", 1)), IDLE_S, 1.0, lambda _: True)
    assert (kept.backends[0], kept.trial) == ("big", None)
    rising, _ = hold(TRIED, TIERS, Session(FOLLOW_UP, by="turns", state=state("small", 0)), IDLE_S, 1.0, lambda _: True)
    assert rising.trial == "small", "the session is on that one"


def test_a_session_keeps_its_part_of_a_split() -> None:
    decision = Decision(("a", "b", "big"), "light", Choice.SIMPLE)
    kept, _ = hold(decision, SPLIT, Session(FOLLOW_UP, by="user", state=state("b", 0)), IDLE_S, 1.0, lambda _: True)
    assert kept.backends == ("b", "a", "big") and kept.tier == "light"


def test_the_backend_after_the_kept_one_is_of_the_nearest_tier() -> None:
    decision = Decision(("s", "m", "l", "spare"), "light", Choice.SIMPLE)
    kept, _ = hold(decision, THREE, Session(FOLLOW_UP, by="user", state=state("l", 2)), IDLE_S, 1.0, lambda _: True)
    assert kept.backends == ("l", "m", "s", "spare") and kept.tier == "large"


def test_a_policy_with_fewer_tiers_lowers_the_session() -> None:
    session = Session(FOLLOW_UP, by="user", state=state("l", 2))
    assert hold(only("main"), Target((Tier("main", "main"),)), session, IDLE_S, 1.0, lambda _: True)[0].backends == (
        "main",
    )


@pytest.mark.parametrize(
    ("why", "before", "backend", "rank"),
    [
        ("new", None, "big", 1),
        ("kept", state("big", 1), "big", 1),
        ("harder", state("small", 0), "big", 1),
        ("budget", state("big", 1), "small", 1),
        ("idle", state("big", 1), "small", 0),
        ("topic", state("big", 1), "small", 0),
        ("kept", state("small", 0), "big", 1),  # the light model failed: the session has moved up
    ],
)
def test_the_tier_of_a_session_is_the_highest_that_answered(
    why: str, before: SessionState | None, backend: str, rank: int
) -> None:
    after = next_state(SessionEffect(Session(FOLLOW_UP, state=before), why), TIERS, backend, "u", 0.3, 7.0)
    assert (after.backend, after.upstream, after.rank, after.used, after.score) == (backend, "u", rank, 7.0, 0.3)


@pytest.mark.parametrize(
    ("backend", "upstream", "instead", "outcome"),
    [
        ("big", "u1", None, "kept"),
        ("big", "u2", None, "upstream"),
        ("big", None, None, "kept"),
        ("small", None, Choice.FALLBACK, "fallback"),
        ("small", None, Choice.OVERLOADED, "overloaded"),
        ("small", None, None, "topic"),
    ],
)
def test_a_move_has_its_reason(backend: str, upstream: str | None, instead: Choice | None, outcome: str) -> None:
    session = Session(FOLLOW_UP, state=state("big", 1))
    assert outcome_of(SessionEffect(session, "topic", "u1"), backend, upstream, instead) == outcome


def test_the_topic_follows_the_questions_and_changes_with_another_one() -> None:
    near = np.asarray([0.8, 0.6], np.float32)
    mean = running_topic(X, near)
    assert mean is not None and np.linalg.norm(mean) == pytest.approx(1.0) and mean @ near > X @ near
    assert running_topic(X, None) is X
    for before in (X, None):
        after = running_topic(before, Y)
        assert after is not None and after is not Y and (after == Y).all()
