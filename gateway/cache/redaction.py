"""The port of a feature that keeps a part of each text out of the caches, such as personal data. Pure."""

from __future__ import annotations

from gateway.calls import Decisive
from gateway.outcomes import Bypass


class Redaction:
    """A rule of a route, found by `route.of(Redaction)`. A feature's rule overrides what it does not leave as it is."""

    def redact(self, text: str) -> str:
        """Return a text as those may read it who read no more than the caches."""
        return text

    def redact_question(self, decisive: Decisive) -> tuple[Decisive, Bypass | None]:
        """Return what decides an answer as the caches see it, and the reason why they are not looked up, if any.

        The context then has the part that the question lost.
        """
        return decisive, None

    def keeps_out(self, question: str | None) -> bool:
        """Return whether a stored question has something that the caches may not have."""
        return False
