"""Cross-origin requests of browsers, as the Fetch standard has them (https://fetch.spec.whatwg.org/#http-cors-protocol).
Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gateway.config.schema import Cors

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


@dataclass(frozen=True, slots=True)
class CrossOrigin:
    """Which pages may ask, decided here and not by whatever backend answers."""

    rule: Cors

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

    def added(self, request: Mapping[str, str], answer: Sequence[tuple[str, str]]) -> Headers | None:
        """An answer's headers with those of this gateway in place of a backend's; None where nothing changes."""
        if not self.rule.origins:
            return None
        kept = [(name, value) for name, value in answer if not name.lower().startswith(OURS)]
        allowed = self._allowed(request) if "origin" in request else None
        if allowed is None:
            return [*kept, ("Vary", "Origin")]
        return [*kept, *allowed, ("Access-Control-Expose-Headers", EXPOSED)]

    def _allowed(self, headers: Mapping[str, str]) -> Headers | None:
        """The origin itself rather than `*`, so that credentials may come with the request."""
        origin = headers["origin"]
        if "*" not in self.rule.origins and origin not in self.rule.origins:
            return None
        return [
            ("Access-Control-Allow-Origin", origin),
            ("Access-Control-Allow-Credentials", "true"),
            ("Vary", "Origin"),
        ]
