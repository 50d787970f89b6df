"""The traffic log: the recorder is imported when a policy comes into force of which a route has `record`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from importlib import import_module
from typing import Protocol

from gateway.cache.embedding_spaces import Spaces
from gateway.cache.erasure import ErasureTarget, ErasureTraces
from gateway.cache.stored_parts import TRAFFIC
from gateway.config import Config
from gateway.config.policy.model import Policy, Route
from gateway.context import RequestContext
from gateway.messages import Provenance
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, Judgement
from gateway.routing.tier_learning import TierLearning
from gateway.scores import TrafficFacts

MODULE = "gateway.features.recorder.recorder"


class TrafficLog(Protocol):
    """The recorder (`gateway.features.recorder.recorder.Recorder`)."""

    def apply(self, policy: Policy) -> None:
        """Apply a new policy, or a change of the embedding model."""

    def facts(self, request: RequestContext, route: Route) -> TrafficFacts | None:
        """Return the facts of a request, before any decision, or None if it is not recorded."""

    def on_end(
        self, facts: TrafficFacts, request: RequestContext, provenance: Provenance, *, status: int, seconds: float
    ) -> None:
        """Record a request after its last byte was sent."""

    def label(self, route: str, judged: Judgement, label: str) -> None:
        """Record a label that tells whether a neighbour was right."""

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        """Remove the requests of the target, and return their number. Raise `OSError`."""

    async def flush(self) -> None:
        """Write everything that was recorded so far."""


@dataclass(frozen=True, slots=True)
class RecordedState:
    """The state that recorded traffic depends on."""

    spaces: Spaces
    escalations: TierLearning


@dataclass(frozen=True, slots=True)
class RecorderCore:
    """The parts of the gateway that the recorder builds on. `stack` closes it. `state` is called once it records."""

    config: Config
    clock: Clock
    telemetry: Telemetry
    stack: AsyncExitStack
    state: Callable[[], RecordedState]


class Recording:
    """`Recording` hands requests and labels to the recorder, if a route records."""

    part = TRAFFIC

    def __init__(self, config: Config, clock: Clock, telemetry: Telemetry, stack: AsyncExitStack) -> None:
        """`stack` closes the recorder, once nothing is recorded any more."""
        self.state: RecordedState | None = None  # set later: the spaces report labels to this object
        self._core = RecorderCore(config, clock, telemetry, AsyncExitStack(), self._state)
        self._log: TrafficLog | None = None
        stack.push_async_exit(self._core.stack)

    def apply(self, policy: Policy) -> None:
        """Apply a new policy, or a change of the embedding model."""
        if self._log is not None or any(route.record is not None for route in policy.routes):
            self._open().apply(policy)

    def facts(self, request: RequestContext, route: Route) -> TrafficFacts | None:
        """Return the facts of a request, before any decision, or None if it is not recorded."""
        return None if self._log is None else self._log.facts(request, route)

    def on_end(
        self, facts: TrafficFacts, request: RequestContext, provenance: Provenance, *, status: int, seconds: float
    ) -> None:
        """Record a request after its last byte was sent."""
        if self._log is not None:
            self._log.on_end(facts, request, provenance, status=status, seconds=seconds)

    def label(self, route: str, judged: Judgement, label: str) -> None:
        """Record a label that tells whether a neighbour was right."""
        if self._log is not None:
            self._log.label(route, judged, label)

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        """Remove the requests of the target, and return their number. A former policy may have recorded them. Raise
        `OSError`."""
        await asyncio.to_thread(import_module, MODULE)  # the event loop goes on during the import
        return await self._open().erase(target, traces, dry_run=dry_run)

    async def flush(self) -> None:
        """Write everything that was recorded so far."""
        if self._log is not None:
            await self._log.flush()

    def _open(self) -> TrafficLog:
        if self._log is None:
            log: TrafficLog = import_module(MODULE).open_recorder(self._core)
            self._log = log
        return self._log

    def _state(self) -> RecordedState:
        assert self.state is not None  # nothing is recorded before the gateway serves
        return self.state
