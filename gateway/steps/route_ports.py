"""The ports of a route: the decisions that its features make inside steps of the core."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.cache.placement import Placement
from gateway.routing.conversations import Conversations


@dataclass(frozen=True, slots=True)
class RoutePorts:
    """The implementations of the ports. None: the core decides alone."""

    placement: Placement | None = None  # where answers are stored, if their keys are known only with them
    conversations: Conversations | None = None  # what earlier requests mean for the choice of a backend
