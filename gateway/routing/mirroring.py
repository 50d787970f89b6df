"""Asks another backend what clients have asked, once they have their answers, and compares both: what a new model would
have said is seen before anybody is served it. Nobody is billed for it, and nothing of it is stored."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.cache.answer_comparison import AnswerComparer
from gateway.cache.background_calls import BackgroundCalls
from gateway.cache.threshold.wrong_hits import Label
from gateway.config.policy.model import AuditSettings
from gateway.config.policy.targets import Shadow
from gateway.context import RequestContext
from gateway.errors import BackendOverloaded, GatewayError, UpstreamStreamError
from gateway.messages import Call, Event, EventStream, FullBody, Price, Response
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.priority import Priority
from gateway.streams import StreamObserver, held, tapped
from gateway.upstream.backend import UpstreamPool

LOG = logging.getLogger("nearhit.shadow")
MAX_BYTES = 1024 * 1024  # of each of the two answers; what is longer is not compared
OUTCOMES = {Label.RIGHT: "same", Label.WRONG: "different", Label.UNDECIDED: "undecided"}


@dataclass(frozen=True, slots=True)
class _Copy:
    request: RequestContext
    call: Call
    rule: Shadow
    comparisons: AnswerComparer


class Mirroring:
    """`draw`: numbers in [0, 1)."""

    def __init__(
        self,
        pools: Mapping[str, UpstreamPool],
        prices: Mapping[str, Price],
        telemetry: Telemetry,
        clock: Clock,
        draw: Callable[[], float],
    ) -> None:
        self._pools = pools
        self._prices = prices
        self._telemetry = telemetry
        self._clock = clock
        self._draw = draw
        self._calls = BackgroundCalls(clock)

    def __len__(self) -> int:
        """How many wait or are under way."""
        return len(self._calls)

    def watched(
        self, request: RequestContext, response: Response, rule: Shadow, comparisons: AnswerComparer
    ) -> Response:
        """The same answer, copied by chance as it goes by. Nothing is sent on behalf of a client that wants nothing
        stored, nor of the gateway itself."""
        call, body = request.call, response.body
        if call is None or call.operation == "embeddings" or response.status != 200:
            return response
        if call.stateful or request.internal or request.directives.no_store or self._draw() >= rule.share:
            return response
        copy = _Copy(request, call, rule, comparisons)
        if isinstance(body, FullBody) and len(body.data) <= MAX_BYTES:
            self._begin(copy, (body.data,), streamed=False)
        elif isinstance(body, EventStream):
            return replace(response, body=EventStream(tapped(body.events, self._copying(copy))))
        return response

    async def close(self) -> None:
        await self._calls.close()

    def _copying(self, copy: _Copy) -> StreamObserver[Event]:
        payload: list[bytes] = []
        size = 0

        def saw(events: Sequence[Event]) -> Sequence[Event]:
            nonlocal size
            for event in events:
                size += len(event.data)
                if size <= MAX_BYTES:
                    payload.append(event.data)
            return events

        def ended() -> None:  # a client that leaves before has no copy
            if size <= MAX_BYTES:
                self._begin(copy, tuple(payload), streamed=True)

        return StreamObserver(saw, ended)

    def _begin(self, copy: _Copy, payload: tuple[bytes, ...], *, streamed: bool) -> None:
        request, call, rule = copy.request, copy.call, copy.rule

        def asked() -> Coroutine[Any, Any, None]:  # reads the answer only where there is room to compare it
            return self._asked(copy, call.dialect.answer_text(call, payload, streamed))

        if (
            self._calls.begin(request.id, request.route, AuditSettings(rule.share, rule.per_hour), 0.0, asked)
            is not None
        ):
            self._telemetry.shadow.add(request.route, "dropped")

    async def _asked(self, copy: _Copy, served: str | None) -> None:
        async with self._calls.places:
            outcome = await self._outcome(copy, served)
        self._telemetry.shadow.add(copy.request.route, outcome)

    async def _outcome(self, copy: _Copy, served: str | None) -> str:
        """`served`: what the client was told; None: not text alone."""
        request, call, pool = copy.request, copy.call, self._pools[copy.rule.backend]
        if not pool.allow(self._clock.monotonic()):
            return "dropped"
        again = request.own_call("shadow")
        again.priority = Priority.LOW
        try:
            answer = await held(await pool.call(again), MAX_BYTES)
        except BackendOverloaded:
            return "dropped"
        except (GatewayError, UpstreamStreamError) as error:
            LOG.warning("a shadow failed", extra={"fields": {**request.log_fields, "error": str(error)}})
            return "error"
        if answer is None:
            return "error"
        seen = call.dialect.inspect(call, answer.payload, answer.streamed)
        cost = self._prices[copy.rule.backend].of(seen.input_tokens, seen.output_tokens)
        self._telemetry.shadow_cost.add(request.route, amount=cost)
        told = call.dialect.answer_text(call, answer.payload, answer.streamed)
        if told is None or served is None:
            return OUTCOMES[Label.UNDECIDED]
        return OUTCOMES[await copy.comparisons.alike(served, told)]
