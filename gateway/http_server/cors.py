"""Cross-origin requests of browsers, as the Fetch standard has them (https://fetch.spec.whatwg.org/#http-cors-protocol).
Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from gateway.config.schema import CorsConfig

Headers = list[tuple[str, str]]
# What a script may read beside the safe headers. Named one by one: `*` means nothing where credentials are sent.
EXPOSED = ", ".join(
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
        "x-request-id",
    ]
)
OURS = "access-control-"
MAX_KNOWN = 512  # heads of answers, of some kB


@dataclass(frozen=True, slots=True)
class CrossOrigin:
    """Which pages may ask, decided here and not by whatever backend answers."""

    rule: CorsConfig

    def preflight(self, method: str, headers: Mapping[str, str]) -> Headers | None:
        """The headers that answer a preflight; None where the request is none. An origin that may not ask is answered
        without them, which is how a browser is told no."""
        asked = headers.get("access-control-request-method")
        if method != "OPTIONS" or asked is None or "origin" not in headers or not self.rule.origins:
            return None
        allowed = self._allowed(headers)
        if allowed is None:
            return [("Vary", "Origin")]
        return [
            *allowed,
            ("Access-Control-Allow-Methods", asked),
            ("Access-Control-Allow-Headers", headers.get("access-control-request-headers", "")),
            ("Access-Control-Max-Age", str(int(self.rule.max_age))),
        ]

    def added(self, request: Mapping[str, str], answer: tuple[tuple[str, str], ...]) -> tuple[tuple[str, str], ...]:
        """An answer's headers with those of this gateway in place of a backend's."""
        if not self.rule.origins:
            return answer
        origin = request.get("origin")
        return _added(answer, None if origin is None or not self._allows(origin) else origin)

    def _allowed(self, headers: Mapping[str, str]) -> Headers | None:
        return allowing(headers["origin"]) if self._allows(headers["origin"]) else None

    def _allows(self, origin: str) -> bool:
        return "*" in self.rule.origins or origin in self.rule.origins


@lru_cache(maxsize=MAX_KNOWN)
def _added(answer: tuple[tuple[str, str], ...], origin: str | None) -> tuple[tuple[str, str], ...]:
    """Remembered: pages of few origins get answers with few heads. `origin` None: one that may not ask."""
    kept = [(name, value) for name, value in answer if not name.lower().startswith(OURS)]
    if origin is None:
        return (*kept, ("Vary", "Origin"))
    return (*kept, *allowing(origin), ("Access-Control-Expose-Headers", EXPOSED))


def allowing(origin: str) -> Headers:
    """The origin itself rather than `*`, so that credentials may come with the request."""
    return [
        ("Access-Control-Allow-Origin", origin),
        ("Access-Control-Allow-Credentials", "true"),
        ("Vary", "Origin"),
    ]
