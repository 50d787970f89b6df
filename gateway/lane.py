"""One upstream with what is known of how it fares: what it takes, and whether it fails."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace

from gateway.bodies import Guarded
from gateway.errors import BackendError, BackendFull
from gateway.messages import Event, EventStream, Request, Response, Whole
from gateway.ports import Backend, Clock
from gateway.routing.breaker import Breaker
from gateway.routing.latency import LatencyBook
from gateway.telemetry import Telemetry

FAILURES, COOLDOWN_S = 5, 5.0


class Lane:
    """All routes share it: what one of them learns of an upstream holds for the others."""

    def __init__(self, backend: Backend, clock: Clock, telemetry: Telemetry) -> None:
        self.backend = backend
        self.latency = LatencyBook()
        self.breaker = Breaker(FAILURES, COOLDOWN_S)
        self._clock = clock
        self._telemetry = telemetry

    async def call(self, request: Request) -> Response:
        """Sends the call and keeps the books. Raises `BackendError` where it fails before its first byte."""
        name, telemetry = self.backend.name, self._telemetry
        started = self._clock.monotonic()
        try:
            with request.trace.span("upstream"):
                response = await self.backend.send(request)
        except BackendFull:
            telemetry.backend_requests.add(name, "full")
            raise
        except BackendError as error:
            self.breaker.failed(self._clock.monotonic())
            telemetry.backend_requests.add(name, "timeout" if error.status == 504 else "error")
            raise
        now = self._clock.monotonic()
        telemetry.backend_ttft_seconds.observe(now - started, name)
        telemetry.backend_requests.add(name, str(response.status))
        if response.status >= 500:
            self.breaker.failed(now)
        else:
            self.breaker.succeeded()
        if isinstance(response.body, EventStream):
            timed = Guarded(self._timed(request, response.body, started, now), source=response.body.events)
            return replace(response, body=EventStream(timed))
        if isinstance(response.body, Whole):
            self._observe(request, started, now, now, pieces=0, ok=response.status == 200)
        return response

    async def _timed(
        self, request: Request, body: EventStream, started: float, first: float
    ) -> AsyncGenerator[Event, None]:
        pieces = 0
        async for event in body.events:
            pieces += 1
            yield event
        self._observe(request, started, first, self._clock.monotonic(), pieces=pieces, ok=True)

    def _observe(self, request: Request, started: float, first: float, now: float, *, pieces: int, ok: bool) -> None:
        """`pieces`: events of a stream; models send a token in each, or nearly."""
        self._telemetry.backend_seconds.observe(now - started, self.backend.name)
        call = request.call
        if not ok or call is None or call.operation == "embeddings":
            return
        self.latency.observe(
            stream=pieces > 0,
            max_tokens=call.max_tokens,
            ttft_s=first - started,
            total_s=now - started,
            output_tokens=pieces,
            now=now,
        )
