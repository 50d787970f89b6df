"""Builds what records traffic."""

from __future__ import annotations

from contextlib import AsyncExitStack

from gateway.cache.embedding_spaces import Spaces
from gateway.config import Config
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.routing.tier_learning import Escalations
from gateway.steps.traffic_log.format import Heading
from gateway.steps.traffic_log.recorder import Recorder
from gateway.steps.traffic_log.segments import FOLDER
from gateway.tasks import run_within


class Standing:
    """What recorded traffic stands on. The recorder is there before it: the spaces tell it of labels."""

    def __init__(self) -> None:
        self._on: tuple[Spaces, Escalations] | None = None

    def stands_on(self, spaces: Spaces, escalations: Escalations) -> None:
        self._on = spaces, escalations

    def heading(self, headers: frozenset[str], started: float) -> Heading:
        assert self._on is not None  # nothing is recorded before the gateway serves
        spaces, escalations = self._on
        space = spaces.serving
        return Heading(
            started=started,
            embedder=space.embedder.fingerprint,
            dimension=space.embedder.dimension,
            verifier=space.verifier.basis,
            floor=space.verifier.floor,
            headers=tuple(sorted(headers)),
            controls={route: control.snapshot(evidence=False) for route, control in space.controls.all()},
            escalations={route: each.snapshot() for route, each in escalations.all()},
            basis=space.complexity.basis,
        )


def recorder_of(
    stack: AsyncExitStack, config: Config, standing: Standing, clock: Clock, telemetry: Telemetry
) -> Recorder:
    """Ended with `stack`, once nothing is recorded any more."""
    recorder = Recorder(
        config.data_dir / FOLDER,
        config.traffic,
        lambda headers: standing.heading(headers, clock.wall()),
        clock,
        telemetry,
    )
    stack.push_async_callback(recorder.close)
    run_within(stack, recorder.run())
    return recorder
