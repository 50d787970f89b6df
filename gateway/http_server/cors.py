"""Answers cross-origin requests of browsers, by the Fetch standard (https://fetch.spec.whatwg.org/#http-cors-protocol).
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from gateway.config.schema import CorsConfig

Headers = list[tuple[str, str]]
# Headers that a script may read in addition to the safelisted ones. They are listed one by one, since `*` has no effect
# on requests with credentials.
EXPOSED_HEADERS = ", ".join(
    [
        "Age",
        "Cache-Status",
        "request-id",
        "Retry-After",
        "Server-Timing",
        "x-nearhit-backend",
        "x-nearhit-complexity",
        "x-nearhit-route",
        "x-nearhit-similarity",
        "x-nearhit-upstream-request-id",
        "x-request-id",
    ]
)
CORS_PREFIX = "access-control-"
MAX_KNOWN = 512  # heads of answers, some kB each


@dataclass(frozen=True, slots=True)
class CrossOrigin:
    """Decides which origins may send requests. The gateway decides this, not the backend that answers."""

    rule: CorsConfig

    def preflight(self, method: str, headers: Mapping[str, str]) -> Headers | None:
        """Return the headers that answer a preflight, or None if the request is not one. For an origin that is not
        allowed they are missing, which tells the browser no."""
        requested_method = headers.get("access-control-request-method")
        if method != "OPTIONS" or requested_method is None or "origin" not in headers or not self.rule.origins:
            return None
        allowed = self._allow_headers(headers)
        if allowed is None:
            return [("Vary", "Origin")]
        return [
            *allowed,
            ("Access-Control-Allow-Methods", requested_method),
            ("Access-Control-Allow-Headers", headers.get("access-control-request-headers", "")),
            ("Access-Control-Max-Age", str(int(self.rule.max_age))),
        ]

    def apply(self, request: Mapping[str, str], answer: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """Return the headers of an answer with the gateway's CORS headers in place of the backend's."""
        if not self.rule.origins:
            return answer
        origin = request.get("origin")
        return _apply(answer, None if origin is None or not self._is_allowed(origin) else origin)

    def may_open(self, request: Mapping[str, str]) -> bool:
        """Return whether a page may open a WebSocket, whose answers no browser keeps from it (RFC 6455 section 10.2).

        Clients that are no pages send no `Origin`, or that of the server itself.
        """
        origin = request.get("origin")
        if origin is None or self._is_allowed(origin):
            return True
        return origin.partition("://")[2].lower() == request.get("host", "").lower()

    def _allow_headers(self, headers: Mapping[str, str]) -> Headers | None:
        return allow_headers(headers["origin"]) if self._is_allowed(headers["origin"]) else None

    def _is_allowed(self, origin: str) -> bool:
        return "*" in self.rule.origins or origin in self.rule.origins


@lru_cache(maxsize=MAX_KNOWN)
def _apply(answer: tuple[tuple[str, str], ...], origin: str | None) -> tuple[tuple[str, str], ...]:
    """Return the headers with CORS. The result is cached, because there are few origins and few heads. `origin` is None
    if the policy does not allow it."""
    retained = [(name, value) for name, value in answer if not name.lower().startswith(CORS_PREFIX)]
    if origin is None:
        return (*retained, ("Vary", "Origin"))
    return (*retained, *allow_headers(origin), ("Access-Control-Expose-Headers", EXPOSED_HEADERS))


def allow_headers(origin: str) -> Headers:
    """Return the headers that allow an origin. They name the origin, not `*`, so that credentials may be sent."""
    return [
        ("Access-Control-Allow-Origin", origin),
        ("Access-Control-Allow-Credentials", "true"),
        ("Vary", "Origin"),
    ]
