"""Cache-Control of requests (RFC 9111 section 5.2.1). Pure."""

from __future__ import annotations

from gateway.messages import CacheDirectives

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


def _seconds(value: str | None) -> float | None:
    return float(value) if value is not None and value.isascii() and value.isdigit() else None
