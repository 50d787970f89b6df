"""Which part of a tier answers a request, and who is asked after it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b

from gateway.config.policy.model import Target
from gateway.config.policy.targets import Part
from gateway.routing.tier_selection import Decision


def resolved(target: Target, key: bytes | None, draw: Callable[[], float]) -> Target:
    """The same target with one backend a tier. `key`: what belongs together, such as the turns of a conversation, has
    the same one and gets the same parts, as long as the policy says the same shares; None: by `draw`, in [0, 1).

    Over many keys each part gets its share. Parts lie one after another in the order in which they are written: where
    the last one grows, what it already had stays with it."""
    if not any(tier.parts for tier in target.tiers):
        return target
    tiers = tuple(
        replace(tier, backend=_part_at(tier.parts, draw() if key is None else point_of(key, tier.name)))
        if tier.parts
        else tier
        for tier in target.tiers
    )
    return replace(target, tiers=tiers)


def point_of(key: bytes, name: str) -> float:
    """In [0, 1), even over keys; for each tier another one, so that one canary says nothing of the other."""
    digest = blake2b(key, digest_size=8, person=blake2b(name.encode(), digest_size=16).digest()).digest()
    return (int.from_bytes(digest, "big") >> 11) / 2**53


def _part_at(parts: Sequence[Part], point: float) -> str:
    reached = 0.0
    for part in parts:
        reached += part.share
        if point < reached:
            return part.backend
    return parts[-1].backend  # the shares' sum may be a rounding error short of 1


def with_fallbacks(decision: Decision, target: Target, *, beyond: bool = True) -> Decision:
    """Behind the choice the other parts of its tier, then the other tiers as decided, then `fallback`, each once.
    `beyond` False: its tier alone."""
    if len(target.tiers) == 1 and not target.tiers[0].parts and not target.fallback:
        return decision  # most targets: this is on the way of every miss
    chosen = next((tier for tier in target.tiers if tier.name == decision.tier), target.tiers[-1])
    siblings = [part.backend for part in sorted(chosen.parts, key=lambda part: -part.share)]
    after = [*decision.backends[1:], *target.fallback] if beyond else []
    order = dict.fromkeys([decision.backends[0], *siblings, *after])
    return replace(decision, backends=tuple(order))
