"""Which part of a tier answers, and who is asked after it."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config.policy.model import Target, Tier
from gateway.config.policy.targets import TierPart
from gateway.outcomes import Choice
from gateway.routing.selection import Decision, resolve_splits, split_point, with_fallbacks
from tests.fixtures.targets import light_and_large

KEYS = [str(i).encode() for i in range(4000)]


def never() -> float:
    raise AssertionError("a conversation leaves nothing to chance")


def split(*parts: tuple[str, float], name: str = "large") -> Target:
    tier = Tier(name, parts[0][0], tuple(TierPart(backend, share) for backend, share in parts))
    return Target((Tier("light", "small"), tier), (0.5,))


def share_of(backend: str, target: Target) -> float:
    return sum(resolve_splits(target, key, never).tiers[-1].backend == backend for key in KEYS) / len(KEYS)


def test_what_is_not_divided_is_left_alone() -> None:
    target = light_and_large("small", "big", 0.5)
    assert resolve_splits(target, b"key", never) is target


@settings(deadline=None)  # 4,000 conversations, on a machine that may be busy
@given(st.floats(0.01, 0.99))
def test_over_many_conversations_each_part_gets_its_share(share: float) -> None:
    target = split(("current", 1 - share), ("next", share))
    assert abs(share_of("next", target) - share) < 5 * (share * (1 - share) / len(KEYS)) ** 0.5


@given(st.binary(min_size=1, max_size=64), st.floats(0.01, 0.49), st.floats(1.0, 2.0))
def test_who_was_with_a_canary_stays_with_it_while_it_grows(key: bytes, share: float, growth: float) -> None:
    before = resolve_splits(split(("current", 1 - share), ("next", share)), key, never).tiers[-1].backend
    larger = share * growth
    after = resolve_splits(split(("current", 1 - larger), ("next", larger)), key, never).tiers[-1].backend
    assert before == "current" or after == "next"


def test_two_tiers_have_canaries_of_their_own() -> None:
    """Of the conversations of one canary no more than by chance have the other one, too."""
    both = sum(split_point(key, "light") >= 0.9 and split_point(key, "large") >= 0.9 for key in KEYS)
    assert 0.004 < both / len(KEYS) < 0.02


def test_without_a_key_it_is_drawn() -> None:
    target = split(("current", 0.95), ("next", 0.05))
    points = iter((0.0, 0.94, 0.96))
    drawn = [resolve_splits(target, None, lambda: next(points)).tiers[-1].backend for _ in range(3)]
    assert drawn == ["current", "current", "next"]
    assert resolve_splits(split(("a", 0.3), ("b", 0.7 - 1e-9)), None, lambda: 1 - 2**-53).tiers[-1].backend == "b"


def test_behind_the_choice_its_own_parts_then_the_other_tiers_then_the_fallbacks() -> None:
    parts = (TierPart("current", 0.2), TierPart("next", 0.1), TierPart("old", 0.7))
    target = Target((Tier("light", "small"), Tier("large", "old", parts)), (0.5,), fallback=("eu", "small", "other"))
    decision = Decision(("next", "small"), "large", Choice.COMPLEX)
    assert with_fallbacks(decision, target).backends == ("next", "old", "current", "small", "eu", "other")
    assert with_fallbacks(decision, target, beyond=False).backends == ("next", "old", "current")


NAMES = st.sampled_from(["a", "b", "c", "d", "e"])


@given(st.lists(NAMES, min_size=1, max_size=4, unique=True), st.lists(NAMES, max_size=4))
def test_nobody_is_asked_twice_and_nobody_is_left_out(chosen: list[str], fallback: list[str]) -> None:
    target = Target(tuple(Tier(name, name) for name in chosen), fallback=tuple(fallback))
    order = with_fallbacks(Decision(tuple(chosen), chosen[0], Choice.SIMPLE), target).backends
    assert len(set(order)) == len(order)
    assert set(order) == set(target.members)
    assert order[0] == chosen[0]
