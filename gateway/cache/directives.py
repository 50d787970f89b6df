"""Cache-Control of requests (RFC 9111 section 5.2.1). Pure."""

from __future__ import annotations

from gateway.messages import Bypass, CacheDirectives

NONE = CacheDirectives()


def parse_directives(header: str | None) -> CacheDirectives:
    """Directives that are unknown or malformed are ignored, as section 5.2.3 demands."""
    if not header:
        return NONE
    found: dict[str, str] = {}
    for part in header.lower().split(","):
        name, _, value = part.strip().partition("=")
        found[name] = value.strip('" ')
    return CacheDirectives(
        no_store="no-store" in found,
        no_cache="no-cache" in found,
        only_if_cached="only-if-cached" in found,
        max_age_s=_seconds(found.get("max-age")),
        min_fresh_s=_seconds(found.get("min-fresh")) or 0.0,
    )


def bypass_of(uncached: Bypass | None, directives: CacheDirectives) -> Bypass | None:
    """Why no stored answer is looked for; None: one is. `uncached`: why the call's answers are never kept."""
    if uncached is not None:
        return uncached
    if directives.no_store:
        return Bypass.NO_STORE
    return Bypass.NO_CACHE if directives.no_cache else None


def shares_flight(directives: CacheDirectives) -> bool:
    """Whether the answer of an identical request in flight will do, and that of this one for others."""
    return not (directives.no_cache or directives.only_if_cached)


def _seconds(value: str | None) -> float | None:
    return float(value) if value is not None and value.isascii() and value.isdigit() else None
