"""What a route's policy says of how long answers live. Pure."""

from __future__ import annotations

from gateway.config.policy.model import Route
from gateway.messages import Lifetime


def exact_lifetime(route: Route) -> Lifetime | None:
    """None where the exact cache is off."""
    if route.exact_ttl_s is None:
        return None
    return Lifetime(route.exact_ttl_s, route.jitter, route.stale_while_revalidate_s, route.stale_if_error_s)


def longest_lifetime_s(route: Route) -> float:
    """After which nobody has a use for what it stores; seconds."""
    exact = exact_lifetime(route)
    return max(exact.longest_s if exact else 0.0, route.semantic.ttl_s if route.semantic else 0.0)
