"""One upstream with what is known of how it fares: what it takes, and whether it fails."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from functools import partial

from gateway.bodies import Guarded, with_end
from gateway.errors import BackendError, BackendFull, StreamBroken
from gateway.messages import Call, Event, EventStream, Request, Response, Whole
from gateway.ports import Backend, Clock
from gateway.routing.breaker import Breaker
from gateway.routing.latency import Asked, LatencyBook, Prediction
from gateway.telemetry import Telemetry

FAILURES, COOLDOWN_S = 5, 5.0
CHARACTERS_PER_TOKEN = 4  # of English, by the usual rule of thumb
# Nothing recent is known, and a call is on its way that will tell: more of them would be asked in the dark.
UNTOLD = Prediction(math.inf, math.inf, math.inf)


def asked_of(call: Call | None, route: str) -> Asked | None:
    """What is known of a call before it is sent; None where its latency says nothing of others'."""
    if call is None or call.operation == "embeddings":
        return None
    return Asked(call.stream, len(call.prompt) / CHARACTERS_PER_TOKEN, call.max_tokens, route)


@dataclass(slots=True)
class _Sent:
    """A call on its way."""

    asked: Asked | None
    load: int  # calls ahead of it
    at: float  # monotonic clock
    first: float | None = None  # when its first byte came
    told: bool = False  # whether the book knows what came of it, or need not


class Lane:
    """All routes share it: what one of them learns of an upstream holds for the others."""

    def __init__(self, backend: Backend, clock: Clock, telemetry: Telemetry) -> None:
        self.backend = backend
        self.latency = LatencyBook()
        self.breaker = Breaker(FAILURES, COOLDOWN_S)
        self.load = 0  # calls that are not over: on their way, or waiting for a place at the gate
        self._clock = clock
        self._telemetry = telemetry

    def predict(self, asked: Asked, now: float, confidence: float) -> Prediction | None:
        """What it would take now. None while nothing recent is known, `UNTOLD` while somebody is finding out."""
        known = self.latency.predict(asked, load=self.load, now=now, confidence=confidence)
        return UNTOLD if known is None and self.load > 0 else known

    async def call(self, request: Request) -> Response:
        """Sends the call and keeps the books. Raises `BackendError` where it fails before its first byte."""
        sent = _Sent(asked_of(request.call, request.route), self.load, self._clock.monotonic())
        self.load += 1
        try:
            response = await self._first_byte(request, sent)
        except BaseException as error:
            late = isinstance(error, BackendError) and error.status == 504
            sent.told = not (late or isinstance(error, asyncio.CancelledError))
            self._over(sent)
            raise
        return with_end(response, partial(self._over, sent))

    async def _first_byte(self, request: Request, sent: _Sent) -> Response:
        name, telemetry = self.backend.name, self._telemetry
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
        sent.first = now = self._clock.monotonic()
        telemetry.backend_ttft_seconds.observe(now - sent.at, name)
        telemetry.backend_requests.add(name, str(response.status))
        if response.status >= 500:
            self.breaker.failed(now)
        else:
            self.breaker.succeeded()
        if isinstance(response.body, EventStream):
            timed = Guarded(self._timed(response.body, sent, now), source=response.body.events)
            return replace(response, body=EventStream(timed))
        if isinstance(response.body, Whole):
            self._complete(sent, now, now, pieces=0, ok=response.status == 200)
        sent.told = True
        return response

    async def _timed(self, body: EventStream, sent: _Sent, first: float) -> AsyncGenerator[Event, None]:
        pieces = 0
        try:
            async for event in body.events:
                pieces += 1
                yield event
        except StreamBroken:
            sent.told = True  # that says nothing of how long it would have taken
            raise
        self._complete(sent, first, self._clock.monotonic(), pieces=pieces, ok=True)

    def _complete(self, sent: _Sent, first: float, now: float, *, pieces: int, ok: bool) -> None:
        """`pieces`: events of a stream; models send a token in each, or nearly."""
        self._telemetry.backend_seconds.observe(now - sent.at, self.backend.name)
        sent.told = True
        if not ok or sent.asked is None:
            return
        self.latency.observe(
            replace(sent.asked, stream=pieces > 0),
            load=sent.load,
            ttft_s=first - sent.at,
            total_s=now - sent.at,
            output_tokens=pieces,
            now=now,
        )

    def _over(self, sent: _Sent) -> None:
        """However it ended. What was given up before its end, by its client or by a timeout, took longer than that."""
        self.load -= 1
        if sent.told or sent.asked is None:
            return
        now = self._clock.monotonic()
        first = None if sent.first is None else sent.first - sent.at
        self.latency.outlasted(sent.asked, load=sent.load, seconds=now - sent.at, now=now, ttft_s=first)
