"""Whether a stored answer may still be served. Pure: the clock's reading comes in."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.messages import Aged, CacheDirectives, Lifetime

FAILED = frozenset({500, 502, 503, 504})  # what a stale answer may stand in for: RFC 5861, section 4

SKEW_S = 1.0  # between the clocks of machines that share a store: no fault


@dataclass(slots=True)
class Freshness:
    fresh: bool
    age_s: float
    ttl_s: float  # seconds of freshness left, 0 where it is not fresh
    revalidate: bool = False  # no longer fresh, and may be served while it is fetched anew
    on_error: bool = False  # no longer fresh, and may be served where no backend answers


EXPIRED = Freshness(False, 0.0, 0.0)


def freshness_of(entry: Aged, lifetime: Lifetime, directives: CacheDirectives, now: float) -> Freshness:
    """`lifetime` is the policy's for this kind of hit; `now` is wall-clock seconds.

    An entry from the future (the clock was set back) counts as expired: it must not become immortal. A client that
    says what age it accepts (max-age, min-fresh) gets nothing stale.
    """
    age = now - entry.created
    if age < -SKEW_S:
        return EXPIRED
    age, ttl = max(0.0, age), lifetime.ttl_of(entry)
    accepted = ttl if directives.max_age_s is None else min(ttl, directives.max_age_s)
    left = accepted - age
    if left > directives.min_fresh_s:
        return Freshness(True, age, left)
    if directives.max_age_s is not None or directives.min_fresh_s > 0:
        return Freshness(False, age, 0.0)
    return Freshness(False, age, 0.0, age < ttl + lifetime.revalidate_s, age < ttl + lifetime.error_s)
