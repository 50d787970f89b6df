"""Whether a stored answer may still be served. Pure: the clock's reading comes in."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.messages import CacheDirectives, Entry


@dataclass(frozen=True, slots=True)
class Freshness:
    fresh: bool
    age_s: float
    ttl_s: float  # seconds of freshness left, 0 where it is not fresh


def freshness_of(entry: Entry, ttl_s: float, directives: CacheDirectives, now: float) -> Freshness:
    """`ttl_s` is the policy's for this kind of hit; `now` is wall-clock seconds.

    An entry from the future (the clock was set back) counts as expired: it must not become immortal.
    """
    age = now - entry.created
    if age < -1.0:  # a second of skew between machines is no fault
        return Freshness(False, 0.0, 0.0)
    age = max(0.0, age)
    lifetime = ttl_s if directives.max_age_s is None else min(ttl_s, directives.max_age_s)
    left = lifetime - age
    return Freshness(left > 0, age, max(0.0, left))
