"""The port of the screen, which tells before a question is embedded that nothing stored resembles it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from gateway.cache.late_vectors import LateVectors
from gateway.cache.links import Links
from gateway.config.schema import EmbeddingModel
from gateway.context import RequestContext
from gateway.entries import Embedding, Vector
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, VectorIndex

MODULE = "gateway.features.screen.screen"

WouldHit = Callable[[str, str, str, str, Embedding, float], Awaitable[bool]]
"""Arguments: route, owner, scope, question, its embedding, wall clock. Tells whether an older entry would be served."""


@dataclass(frozen=True, slots=True)
class Screening:
    """How near a question is to all that is stored in its scope."""

    similarity: float  # of its static vector and the nearest real one, in [0, 1]
    threshold: float

    @property
    def is_far(self) -> bool:
        """Whether nothing stored resembles the question, so that it needs no lookup."""
        return self.similarity < self.threshold

    def __str__(self) -> str:
        best = f"the static vector's best similarity is {self.similarity:.2f}"
        if self.is_far:
            return f"{best}, below {self.threshold:.2f}: nothing stored resembles the question, so there is no lookup"
        return f"{best}, not below {self.threshold:.2f}: there is a lookup"


@dataclass(frozen=True, slots=True)
class ScreenedRoute:
    """The parts that the screen of a route needs."""

    late: LateVectors
    would_hit: WouldHit
    links: Links
    clock: Clock
    telemetry: Telemetry


class RouteScreen(Protocol):
    """The screen of one route."""

    def read(self, request: RequestContext, question: str) -> Embedding | None:
        """Return the question's static vector, or None if the request needs the embedding itself."""

    def look(self, route: str, scope: str, vector: Vector) -> Screening | Awaitable[Screening | None] | None:
        """Search the nearest stored question by a static vector. Return None if the index failed, and the lookup
        reports it."""

    async def screening(self, request: RequestContext, question: str) -> Screening | None:
        """Return the decision on a question, for an explanation. Return None if the request is not screened."""

    def let_go(self, request: RequestContext, question: str, vector: Vector) -> None:
        """Record the decision, and have the question embedded later."""

    def observe(self, route: str, screening: Screening) -> None:
        """Follow a served hit."""


class Screen(Protocol):
    """The screen of all routes of a space."""

    def of_route(self, parts: ScreenedRoute) -> RouteScreen: ...


def open_screen(section: EmbeddingModel, index: VectorIndex) -> Screen | None:
    """Open the screen of a space: it reads files. Return None if the model has no static vectors, or the index is on a
    server, where a search takes as long as an embedding."""
    if section.adapter != "onnx" or index.shared:
        return None
    screen: Screen | None = import_module(MODULE).open_screen(section, index)
    return screen
