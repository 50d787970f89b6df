"""Mirror requests to another backend after their clients are served, and compare both answers.

So a new model is tested before it serves anyone. The call is billed to no tenant, and its answer is not stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

from gateway.cache.answer_comparer import AnswerComparer, OnCompared
from gateway.cache.background_calls import BackgroundCalls
from gateway.cache.threshold.wrong_hits import Label
from gateway.calls import Call
from gateway.config.policy.model import Route
from gateway.config.policy.schema import AuditRule
from gateway.context import RequestContext
from gateway.errors import BackendOverloaded, GatewayError, UpstreamStreamError
from gateway.feature import Runtime
from gateway.features.mirror.rule import ShadowRule
from gateway.messages import Event, EventStream, FullBody, Response
from gateway.observability.metrics import Counter
from gateway.ports import Clock
from gateway.prices import Tariff
from gateway.priority import Priority
from gateway.scores import ComparedAnswer
from gateway.steps.route_ports import RoutePorts
from gateway.steps.traffic_log.format import FAILED
from gateway.streams import StreamObserver, buffer_response, with_observer
from gateway.upstream.backend import UpstreamPool

LOG = logging.getLogger("nearhit.shadow")
MAX_BYTES = 1024 * 1024  # of each of the two answers; longer ones are not compared
OUTCOMES = {Label.RIGHT: "same", Label.WRONG: "different", Label.UNDECIDED: "undecided"}


@dataclass(frozen=True, slots=True)
class _Copy:
    request: RequestContext
    call: Call
    rule: ShadowRule
    comparisons: AnswerComparer
    backend: str  # that served the client


class _Answer(NamedTuple):
    """An answer as it is compared. Its text is None if it has more than text."""

    text: str | None
    by: ComparedAnswer


class ShadowMetrics:
    """Counts the copies and their cost."""

    def __init__(self) -> None:
        self.outcomes = Counter(
            "nearhit_shadow_total",
            "Misses also sent to the shadow backend, by the comparison of the answers",
            ("route", "outcome"),
        )
        self.cost = Counter("nearhit_shadow_cost_dollars_total", "Dollars spent on shadows", ("route",))


class Mirroring(Runtime):
    """`Mirroring` mirrors a share of the requests. `rng` returns numbers in [0, 1)."""

    def __init__(
        self,
        pools: Mapping[str, UpstreamPool],
        prices: Mapping[str, Tariff],
        metrics: ShadowMetrics,
        clock: Clock,
        rng: Callable[[], float],
        on_compared: OnCompared | None = None,
    ) -> None:
        self._on_compared = on_compared
        self._pools = pools
        self._prices = prices
        self._metrics = metrics
        self._clock = clock
        self._rng = rng
        self._calls = BackgroundCalls(clock)

    def __len__(self) -> int:
        """Return the number of calls that wait or run."""
        return len(self._calls)

    def ports(self, route: Route) -> RoutePorts:
        rule = route.of(ShadowRule)
        return RoutePorts(mirror=None if rule is None else partial(self.observe_response, rule))

    def observe_response(
        self, rule: ShadowRule, request: RequestContext, response: Response, comparisons: AnswerComparer
    ) -> Response:
        """Return the answer unchanged, and mirror a random sample of requests.

        Requests with `no-store` and the gateway's own requests are never mirrored.
        """
        call, body = request.call, response.body
        if call is None or call.embeds or call.passes or response.status != 200:
            return response
        if call.stateful or request.work.internal or request.directives.no_store or self._rng() >= rule.share:
            return response
        copy = _Copy(request, call, rule, comparisons, response.provenance.backend or "")
        if isinstance(body, FullBody) and len(body.data) <= MAX_BYTES:
            self._start(copy, (body.data,), streamed=False)
        elif isinstance(body, EventStream):
            return replace(response, body=EventStream(with_observer(body.events, self._stream_observer(copy))))
        return response

    async def close(self) -> None:
        await self._calls.close()

    def _stream_observer(self, copy: _Copy) -> StreamObserver[Event]:
        payload: list[bytes] = []
        size = 0

        def on_events(events: Sequence[Event]) -> Sequence[Event]:
            nonlocal size
            for event in events:
                size += len(event.data)
                if size <= MAX_BYTES:
                    payload.append(event.data)
            return events

        def on_end() -> None:  # not called if the client leaves early: no copy then
            if size <= MAX_BYTES:
                self._start(copy, tuple(payload), streamed=True)

        return StreamObserver(on_events, on_end)

    def _start(self, copy: _Copy, payload: tuple[bytes, ...], *, streamed: bool) -> None:
        request, call, rule = copy.request, copy.call, copy.rule

        def make_call() -> Coroutine[Any, Any, None]:  # reads the answer only where there is room to compare it
            return self._run(copy, _read(call, copy.backend, payload, streamed=streamed))

        bounds = AuditRule(share=rule.share, per_hour=rule.per_hour)
        if self._calls.start(request.id, request.route, bounds, 0.0, make_call) is not None:
            self._metrics.outcomes.add(request.route, "dropped")

    async def _run(self, copy: _Copy, served: _Answer) -> None:
        async with self._calls.limiter:
            outcome = await self._outcome(copy, served)
        self._metrics.outcomes.add(copy.request.route, outcome)

    async def _outcome(self, copy: _Copy, served: _Answer) -> str:
        """Call the backend and return the outcome."""
        request, call, pool = copy.request, copy.call, self._pools[copy.rule.backend]
        if not pool.allow(self._clock.monotonic()):
            return "dropped"
        shadow_request = request.internal_child("shadow")
        shadow_request.priority = Priority.LOW
        try:
            answer = await buffer_response(await pool.call(shadow_request), MAX_BYTES)
        except BackendOverloaded:
            return "dropped"
        except (GatewayError, UpstreamStreamError) as error:
            LOG.warning("a mirrored call failed", extra={"fields": {**request.log_fields, "error": str(error)}})
            answer = None
        if answer is None:
            self._note(copy, served, ComparedAnswer(copy.rule.backend), FAILED)
            return "error"
        shadow = _read(call, copy.rule.backend, answer.payload, streamed=answer.streamed)
        cost = self._prices[copy.rule.backend].price(call.model).of(*shadow.by.tokens)
        self._metrics.cost.add(request.route, amount=cost)
        label = Label.UNDECIDED
        if shadow.text is not None and served.text is not None:
            label = await copy.comparisons.compare_texts(served.text, shadow.text)
        self._note(copy, served, shadow.by, label)
        return OUTCOMES[label]

    def _note(self, copy: _Copy, served: _Answer, shadow: ComparedAnswer, label: str) -> None:
        if self._on_compared is not None:
            self._on_compared(copy.request, "shadow", served.by, shadow, label)


def _read(call: Call, backend: str, payload: Sequence[bytes], *, streamed: bool) -> _Answer:
    tokens = call.dialect.inspect(call, payload, streamed).tokens
    return _Answer(call.dialect.answer_text(call, payload, streamed), ComparedAnswer(backend, tokens))
