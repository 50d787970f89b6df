"""Apply RFC 9111 freshness: decide by lifetimes and directives whether a stored answer may be served. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config.policy.model import Route
from gateway.entries import AgedAnswer, CacheDirectives, Lifetime
from gateway.outcomes import Bypass

SKEW_S = 1.0  # seconds; normal difference between the clocks of machines that share a store


@dataclass(slots=True)
class Freshness:
    fresh: bool
    age_s: float
    ttl_s: float  # seconds of freshness left; 0 if not fresh
    stale_while_revalidate: bool = False  # not fresh, but may be served while it is fetched again
    stale_if_error: bool = False  # not fresh, but may be served if no backend answers


EXPIRED = Freshness(False, 0.0, 0.0)


def freshness_of(entry: AgedAnswer, lifetime: Lifetime, directives: CacheDirectives, now: float) -> Freshness:
    """Return the freshness of an entry. `lifetime` is the policy's for this kind of hit. `now` is in seconds since
    1970.

    An entry from the future (the clock was set back) counts as expired, as it would otherwise never expire. A client
    that limits the age (max-age, min-fresh) gets nothing stale. An answer may end its own use before the policy does.
    """
    age = now - entry.created
    if age < -SKEW_S:
        return EXPIRED
    age, ttl = max(0.0, age), lifetime.ttl_of(entry)
    accepted = ttl if directives.max_age_s is None else min(ttl, directives.max_age_s)
    remaining_s = min(accepted - age, entry.expires - now)
    if remaining_s > directives.min_fresh_s:
        return Freshness(True, age, remaining_s)
    if directives.max_age_s is not None or directives.min_fresh_s > 0:
        return Freshness(False, age, 0.0)
    return Freshness(False, age, 0.0, age < ttl + lifetime.revalidate_s, age < ttl + lifetime.error_s)


# The lifetimes of a route's policy.
def exact_lifetime(route: Route) -> Lifetime | None:
    """Return the lifetime of exact hits; None where the exact cache is off."""
    if route.exact_ttl_s is None:
        return None
    return Lifetime(route.exact_ttl_s, route.jitter, route.stale_while_revalidate_s, route.stale_if_error_s)


def longest_lifetime_s(route: Route) -> float:
    """Return the seconds after which no entry of the route is of use."""
    exact = exact_lifetime(route)
    return max(exact.longest_s if exact else 0.0, route.semantic.ttl if route.semantic else 0.0)


# Cache-Control of requests (RFC 9111 section 5.2.1).
NO_DIRECTIVES = CacheDirectives()


def parse_directives(header: str | None) -> CacheDirectives:
    """Parse a Cache-Control header. Ignore unknown and malformed directives, as section 5.2.3 demands."""
    if not header:
        return NO_DIRECTIVES
    parsed: dict[str, str] = {}
    for part in header.lower().split(","):
        name, _, value = part.strip().partition("=")
        parsed[name] = value.strip('" ')
    return CacheDirectives(
        no_store="no-store" in parsed,
        no_cache="no-cache" in parsed,
        only_if_cached="only-if-cached" in parsed,
        max_age_s=_seconds(parsed.get("max-age")),
        min_fresh_s=_seconds(parsed.get("min-fresh")) or 0.0,
    )


def bypass_of(uncached: Bypass | None, directives: CacheDirectives) -> Bypass | None:
    """Return why there is no lookup of a stored answer, or None if there is one. `uncached` tells why answers to the
    call are never stored."""
    if uncached is not None:
        return uncached
    if directives.no_store:
        return Bypass.NO_STORE
    return Bypass.NO_CACHE if directives.no_cache else None


def can_share_flight(directives: CacheDirectives) -> bool:
    """Return whether the request may share the answer of an identical one in flight, in either direction."""
    return not (directives.no_cache or directives.only_if_cached)


def _seconds(value: str | None) -> float | None:
    return float(value) if value is not None and value.isascii() and value.isdigit() else None
