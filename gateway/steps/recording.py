"""The port of the traffic log: the feature `record` puts its recorder there when the first route uses it."""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Protocol

from gateway.cache.embedding_spaces import Spaces
from gateway.config import Config
from gateway.config.policy.model import Route
from gateway.context import RequestContext
from gateway.messages import Provenance
from gateway.ports import Clock, Judgement
from gateway.request_fields import TrafficNotes
from gateway.routing.tier_learning import TierLearning
from gateway.scores import ComparedAnswer, TrafficFacts


class TrafficLog(Protocol):
    """Records requests, labels and comparisons."""

    def facts(self, request: RequestContext, route: Route) -> TrafficFacts | None:
        """Return the facts of a request, before any decision, or None if it is not recorded."""

    def on_end(
        self, traffic: TrafficNotes, request: RequestContext, provenance: Provenance, *, status: int, seconds: float
    ) -> None:
        """Record a request after its last byte was sent."""

    def label(self, route: str, judged: Judgement, label: str) -> None:
        """Record a label that tells whether a neighbour was right."""

    def compared(
        self, request: RequestContext, source: str, reference: ComparedAnswer, candidate: ComparedAnswer, label: str
    ) -> None:
        """Record that the candidate's answer to a request was compared with the reference. `source` is `audit` or
        `shadow`, and `label` is a `Label`, or `failed` if the candidate gave no answer."""

    async def flush(self) -> None:
        """Write everything that was recorded so far."""


@dataclass(frozen=True, slots=True)
class RecordedState:
    """The state that recorded traffic depends on."""

    spaces: Spaces
    escalations: TierLearning


class Recording:
    """`Recording` hands requests, labels and comparisons to the traffic log, if there is one. It has the parts of the
    gateway that the recorder builds on."""

    def __init__(self, config: Config, clock: Clock, stack: AsyncExitStack) -> None:
        """`stack` closes the recorder, once nothing is recorded any more."""
        self.config = config
        self.clock = clock
        self.stack = AsyncExitStack()
        self.log: TrafficLog | None = None
        self.state: RecordedState | None = None  # set later: the spaces report labels to this object
        stack.push_async_exit(self.stack)

    def on_end(
        self, traffic: TrafficNotes, request: RequestContext, provenance: Provenance, *, status: int, seconds: float
    ) -> None:
        """Record a request after its last byte was sent."""
        if self.log is not None:
            self.log.on_end(traffic, request, provenance, status=status, seconds=seconds)

    def label(self, route: str, judged: Judgement, label: str) -> None:
        """Record a label that tells whether a neighbour was right."""
        if self.log is not None:
            self.log.label(route, judged, label)

    def compared(
        self, request: RequestContext, source: str, reference: ComparedAnswer, candidate: ComparedAnswer, label: str
    ) -> None:
        """Record a comparison of two answers to a request, as the traffic log does."""
        if self.log is not None:
            self.log.compared(request, source, reference, candidate, label)

    async def flush(self) -> None:
        """Write everything that was recorded so far."""
        if self.log is not None:
            await self.log.flush()
