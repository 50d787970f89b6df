"""The port of a feature that scores the complexity of requests instead of the gateway."""

from __future__ import annotations

from typing import Protocol

from gateway.calls import Call
from gateway.context import RequestContext


class RouteClassifier(Protocol):
    """The classifier of one route."""

    async def classify(self, request: RequestContext, call: Call, text: str) -> None:
        """Ask for the complexity of a text. It never raises."""

    def score_of(self, request: RequestContext, text: str) -> float | None:
        """Return the complexity of a text in [0, 1], or None if it gave none, or was asked for another text."""
