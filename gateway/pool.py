"""A backend as the routes see it: by its name, whatever upstreams are behind it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gateway.lane import Lane
from gateway.messages import Request, Response
from gateway.ports import Backend, Clock, Crowd
from gateway.routing.breaker import State
from gateway.routing.latency import CONFIDENCE, Asked, Prediction
from gateway.telemetry import Telemetry


class Pool:
    """`name` is the backend's in the configuration."""

    def __init__(self, name: str, lane: Lane) -> None:
        self.name = name
        self.lane = lane

    @property
    def http(self) -> bool:
        """Whether paths that no dialect knows can be passed through to it."""
        return self.lane.backend.http

    @property
    def inflight(self) -> int:
        return self.crowd.inflight

    @property
    def crowd(self) -> Crowd:
        return self.lane.backend.crowd

    def wait_s(self, request: Request) -> float:
        """How long it would wait for a place, as it looks now."""
        return self.lane.backend.wait_s(request.priority)

    def state(self, now: float) -> State:
        """`now`: monotonic clock."""
        return self.lane.breaker.state(now)

    @property
    def load(self) -> int:
        """Calls that are not over: on their way, or waiting for a place."""
        return self.lane.load

    def predict(self, asked: Asked, now: float, confidence: float = CONFIDENCE) -> Prediction | None:
        """What it would take to answer, kept with `confidence`. None while nothing recent is known, `lane.UNTOLD` while
        a call is on its way that will tell."""
        return self.lane.predict(asked, now, confidence)

    def allow(self, now: float) -> bool:
        """Whether it may be asked now. A yes to a backend that has failed is the one probe: ask it then."""
        return self.lane.breaker.allow(now)

    async def call(self, request: Request) -> Response:
        """Raises `BackendError` where it fails before its first byte."""
        return await self.lane.call(request)

    async def models(self, request: Request) -> list[dict[str, Any]]:
        """The models it offers, as OpenAI model objects. Raises `BackendError`."""
        return await self.lane.backend.models(request)


def pools_of(backends: Mapping[str, Backend], clock: Clock, telemetry: Telemetry) -> dict[str, Pool]:
    return {name: Pool(name, Lane(backend, clock, telemetry)) for name, backend in backends.items()}
