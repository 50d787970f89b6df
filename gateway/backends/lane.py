"""One upstream with what is known of how it fares: what it takes, and whether it fails."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import partial

from gateway.backends.noted import noted, outcome_of
from gateway.backends.outcomes import failed
from gateway.errors import BackendError, GivenUp, ModelDown, StreamBroken
from gateway.flow import Tap, tapped, with_end
from gateway.messages import Call, Event, EventStream, Request, Response, Whole
from gateway.observing.telemetry import Telemetry
from gateway.observing.traced import UpstreamCall
from gateway.ports import Backend, Clock, HostedModels
from gateway.routing.balance import PeakEwma
from gateway.routing.breaker import Breaker, State
from gateway.routing.latency import Asked, Prediction
from gateway.routing.naming import ModelNames
from gateway.routing.outliers import Record
from gateway.routing.unread import UnreadBook
from gateway.routing.waits import Waits, limits_in, wait_s

FAILURES, COOLDOWN_S, LONGEST_COOLDOWN_S = 5, 5.0, 60.0
CHARACTERS_PER_TOKEN = 4  # of English, by the usual rule of thumb
# Nothing recent is known, and a call is on its way that will tell: more of them would be asked in the dark.
UNTOLD = Prediction(math.inf, math.inf, math.inf)


def asked_of(call: Call | None, route: str) -> Asked | None:
    """What is known of a call before it is sent; None where its latency says nothing of others'."""
    if call is None or call.operation == "embeddings":
        return None
    return Asked(call.stream, len(call.prompt) / CHARACTERS_PER_TOKEN, call.max_tokens, route)


class UpstreamState(IntEnum):
    """The value is that of the metric `nearhit_upstream_state`; the first three are those of its breaker."""

    CLOSED = 0
    HALF_OPEN = 1
    OPEN = 2
    WAITS = 3  # it said when it wants to be asked again


@dataclass(frozen=True, slots=True)
class Upstream:
    """One address of a backend."""

    backend: Backend
    address: str
    weight: float = 1.0  # its part of the calls, against the others'
    hosted: HostedModels | None = None  # where it says how its models are
    provider: str = ""  # the backend's `adapter`
    models: ModelNames | None = None  # under which names it is asked; None: as the client said them
    own_account: bool = True  # it is shown the gateway's credentials, or none: its limits are for all clients together


@dataclass(slots=True)
class _Sent:
    """A call on its way."""

    asked: Asked | None
    pace: PeakEwma | None
    load: int  # calls ahead of it
    at: float  # monotonic clock
    first: float | None = None  # when its first byte came
    told: bool = False  # whether the book knows what came of it, or need not
    noted: UpstreamCall | None = None  # where its request is traced


class Lane:
    """All routes share it: what one of them learns of an upstream holds for the others."""

    def __init__(self, upstream: Upstream, clock: Clock, telemetry: Telemetry) -> None:
        self.upstream = upstream
        self.backend = upstream.backend
        self.latency = UnreadBook()
        self.breaker = Breaker(FAILURES, COOLDOWN_S, LONGEST_COOLDOWN_S)
        self.record = Record()
        self.load = 0  # calls that are not over: on their way, or waiting for a place at the gate
        self._telling = 0  # those of them from which latencies are learnt
        self.waits = Waits()
        self.opened: Callable[[], None] = lambda: None  # told when the breaker opens
        self._paces: dict[tuple[str, bool], PeakEwma] = {}  # by what calls have in common: embeddings are no chats
        self._clock = clock
        self._telemetry = telemetry

    def pace_of(self, call: Call | None) -> PeakEwma | None:
        """Of calls like this one; None where they cannot be compared. Dialects have a handful of operations."""
        return None if call is None else self.pace_of_kind((call.operation, call.stream))

    def pace_of_kind(self, kind: tuple[str, bool]) -> PeakEwma:
        pace = self._paces.get(kind)
        if pace is None:
            pace = self._paces[kind] = PeakEwma()
        return pace

    def slowest_s(self) -> float | None:
        """What the slowest kind of call takes. None: nothing is known yet."""
        return max((s for pace in self._paces.values() if (s := pace.seconds) is not None), default=None)

    def told_to_wait_s(self, tenant: str | None, now: float) -> float:
        """For how long the upstream wants to be left alone, with this tenant's credentials; 0: it may be asked. None:
        whoever asks."""
        return self.waits.left_s("" if tenant is None else tenant, now)

    def state(self, now: float) -> UpstreamState:
        """As far as it is the same for all who ask."""
        waits = self.told_to_wait_s(None, now) > 0
        return UpstreamState.WAITS if waits else UpstreamState(self.breaker.state(now))

    def predict(self, asked: Asked, now: float, confidence: float) -> Prediction | None:
        """What it would take now. None while nothing recent is known, `UNTOLD` while somebody is finding out."""
        known = self.latency.predict(asked, load=self.load, now=now, confidence=confidence)
        return UNTOLD if known is None and self._telling > 0 else known

    # Calls that are sent without `call`, see `gateway.data_port.straight`.

    def plain(self, tenant: str, now: float) -> bool:
        """Whether nothing speaks against asking it, nor did of late."""
        return not self.breaker.failures and not (self.waits.until and self.told_to_wait_s(tenant, now))

    def sets_out(self, asked: Asked | None) -> int:
        """A call is sent, which ends with `relayed`, or goes on in `call`, after `handed_on`. -> calls ahead of it."""
        ahead = self.load
        self.load += 1
        if asked is not None:
            self._telling += 1
        return ahead

    def handed_on(self, asked: Asked | None) -> None:
        self.load -= 1
        if asked is not None:
            self._telling -= 1

    def relayed(self, asked: Asked | None, pace: PeakEwma | None, load: int, at: float, now: float) -> None:
        """A call that was sent `at` then has its answer, of status 200, whole: as `call` but for metrics."""
        self.load -= 1
        self.record.add(ok=True, now=now)
        if self.breaker.failures:
            self.breaker.succeeded(asked_at=at)
        seconds = now - at
        if pace is not None:
            pace.observe(seconds, now)
        if asked is not None:
            self._telling -= 1
            self.latency.observe(asked, load=load, ttft_s=seconds, total_s=seconds, output_tokens=0, now=now)

    def given_up(self, asked: Asked | None, pace: PeakEwma | None, load: int, at: float, now: float) -> None:
        """A call that was sent `at` is given up before its first byte, so it took longer than that."""
        self.handed_on(asked)
        if pace is not None:
            pace.outlasted(now - at, now)
        if asked is not None:
            self.latency.outlasted(asked, load=load, seconds=now - at, now=now)

    def heed(self, tenant: str, status: int, headers: Sequence[tuple[str, str]], now: float) -> None:
        """What an answer says of the limits of an account: they are of that account. What an upstream cannot do at all
        (503) is the same for all."""
        limits = limits_in(headers)
        seconds = wait_s(status, limits, self._clock.wall()) if limits else 0.0
        if seconds > 0:
            account = "" if self.upstream.own_account or status == 503 else tenant
            self.waits.add(account, now + seconds)

    async def call(self, request: Request, patience_s: float | None = None) -> Response:
        """Sends the call and keeps the books. Raises `BackendError` where it fails before its first byte, `GivenUp`
        where that takes longer than `patience_s`."""
        call, begun = request.call, request.begun
        now = self._clock.monotonic() if begun is None else begun.at
        load = self.load if begun is None else begun.load
        sent = _Sent(asked_of(call, request.route), self.pace_of(call), load, now)
        if request.trace.traced is not None:
            request, sent.noted = noted(request, request.trace.traced, self.upstream, now)
        self.sets_out(sent.asked)
        try:
            try:
                response = await (self.backend.send(request) if patience_s is None else self._soon(request, patience_s))
            finally:
                request.trace.since("upstream", now)
            return self._began(request, sent, response)
        except BaseException as error:
            self._failed(request, sent, error)
            raise

    def _failed(self, request: Request, sent: _Sent, error: BaseException) -> None:
        """Before the first byte."""
        if isinstance(error, BackendError):
            if failed(error):
                self._fared(sent, self._clock.monotonic(), ok=False)
            if isinstance(error, ModelDown):
                self.breaker.eject(self._clock.monotonic())
            self._telemetry.backend_requests.add(self.backend.name, outcome_of(error))
        late = isinstance(error, BackendError) and error.status == 504
        sent.told = not (late or isinstance(error, asyncio.CancelledError))
        if sent.noted is not None:
            sent.noted.error = outcome_of(error)
        self._over(request, sent)

    def _began(self, request: Request, sent: _Sent, response: Response) -> Response:
        """With the first byte, which of a short answer is the last one too."""
        name, telemetry, body = self.backend.name, self._telemetry, response.body
        sent.first = now = self._clock.monotonic()
        telemetry.backend_ttft_seconds.observe(now - sent.at, name)
        telemetry.backend_requests.add(name, str(response.status))
        self._fared(sent, now, ok=response.status < 500)
        self.heed(request.tenant, response.status, response.headers, now)
        if sent.noted is not None:
            sent.noted.answered(now, response)
        if sent.pace is not None and response.status < 400:
            sent.pace.observe(now - sent.at, now)
        if isinstance(body, Whole):
            self._complete(sent, now, now, pieces=0, ok=response.status == 200)
            self._over(request, sent)
            return response
        if isinstance(body, EventStream):
            response = replace(response, body=EventStream(tapped(body.events, self._timing(sent, now))))
        else:
            sent.told = True
        return with_end(response, partial(self._over, request, sent))

    async def _soon(self, request: Request, patience_s: float) -> Response:
        try:
            async with asyncio.timeout(patience_s):
                return await self.backend.send(request)
        except TimeoutError:
            raise GivenUp(f"backend '{self.backend.name}' took too long for the request's deadline") from None

    def _fared(self, sent: _Sent, now: float, *, ok: bool) -> None:
        self.record.add(ok=ok, now=now)
        if ok:
            self.breaker.succeeded(asked_at=sent.at)
            return
        before = self.breaker.state(now)
        self.breaker.failed(now, asked_at=sent.at)
        if before is State.CLOSED and self.breaker.state(now) is not State.CLOSED:
            self.opened()

    def _timing(self, sent: _Sent, first: float) -> Tap[Event]:
        pieces, noted = 0, sent.noted

        def saw(events: Sequence[Event]) -> Sequence[Event]:
            nonlocal pieces
            pieces += len(events)
            if noted is not None:
                for event in events:
                    noted.saw(event.data)
            return events

        def ended() -> None:
            self._complete(sent, first, self._clock.monotonic(), pieces=pieces, ok=True)

        def broke(error: StreamBroken) -> None:
            sent.told = True  # that says nothing of how long it would have taken
            if noted is not None:
                noted.error = outcome_of(error)

        return Tap(saw, ended, broke)

    def _complete(self, sent: _Sent, first: float, now: float, *, pieces: int, ok: bool) -> None:
        """`pieces`: events of a stream; models send a token in each, or nearly."""
        self._telemetry.backend_seconds.observe(now - sent.at, self.backend.name)
        sent.told = True
        if not ok or sent.asked is None:
            return
        streamed = pieces > 0
        self.latency.observe(
            sent.asked if sent.asked.stream is streamed else sent.asked._replace(stream=streamed),
            load=sent.load,
            ttft_s=first - sent.at,
            total_s=now - sent.at,
            output_tokens=pieces,
            now=now,
        )

    def _over(self, request: Request, sent: _Sent) -> None:
        """However it ended. What was given up before its end, by its client or by a timeout, took longer than that."""
        self.handed_on(sent.asked)
        now = self._clock.monotonic()
        if sent.noted is not None and request.trace.traced is not None:
            sent.noted.over = now
            request.trace.traced.ended(sent.noted)
        if sent.first is None and sent.pace is not None:
            sent.pace.outlasted(now - sent.at, now)
        if sent.told or sent.asked is None:
            return
        first = None if sent.first is None else sent.first - sent.at
        self.latency.outlasted(sent.asked, load=sent.load, seconds=now - sent.at, now=now, ttft_s=first)


def in_service(lanes: Sequence[Lane], now: float) -> Sequence[Lane]:
    """Those whose breaker is closed; where none is, those that may be probed; else all: somebody has to answer."""
    closed = [lane for lane in lanes if lane.breaker.state(now) is State.CLOSED]
    return closed or [lane for lane in lanes if lane.breaker.ready(now)] or lanes
