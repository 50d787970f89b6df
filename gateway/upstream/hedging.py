"""A second upstream is asked while the first one has not answered: the race of two calls. I/O around
`upstream.hedging`."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gateway.circuit_breaker import BreakerState
from gateway.context import Load, RequestContext
from gateway.messages import Call
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.tasks import spawn
from gateway.upstream.retry import Outcome, RetryTarget, discard_response, retry_target
from gateway.upstream.upstream import Upstream, call_features

# Whether, when and within what a call is sent to a second upstream while the first one has not answered. Pure.
#
# Dean and Barroso, "The Tail at Scale" (CACM 56(2), 2013): a second request that waits for the 95th percentile of what
# the first one is expected to take adds some 5 % of load and cuts most of the tail, as long as a slow answer is the
# fault of the one upstream and not of the request. The bound is Finagle's (`BackupRequestFilter`) and gRPC's (proposal
# A6): tokens that calls bring in, so that upstreams which are slow all together are not asked twice for everything.

BURST = 5.0  # hedges that a quiet time may save up

MIN_DELAY_S = 0.001  # Finagle's minimum: below it a timer tells more of this process than of an upstream

STORED_BY_DEFAULT = frozenset({"responses"})  # operations whose answers OpenAI keeps unless `store` is false

CLIENT_TOOLS = frozenset({"function", "custom"})  # others (web search, MCP, code) run at the host


class Hedged(StrEnum):
    """What came of a call that had outlasted its delay; the label `outcome` of `nearhit_hedges_total`."""

    WON = "won"  # the second upstream's answer was served
    LOST = "lost"  # the first one's was, after all
    FAILED = "failed"  # neither of the two had one
    CANCELLED = "cancelled"  # the client left meanwhile
    BUDGET = "budget"  # not sent: too many were, for the calls that there are
    OVERLOADED = "overloaded"  # not sent: there is not room for all calls as it is
    ALONE = "alone"  # not sent: no other upstream is in service


@dataclass(frozen=True, slots=True)
class HedgeRules:
    """When a second upstream is asked, and how often at most."""

    quantile: float = 0.95  # quantile of the time to the first byte, in (0, 1)
    budget: float = 0.05  # of the calls, in (0, 1]


class HedgeBudget:
    """Of any `n` calls in a row at most `share * n + BURST` are hedged, of the first `n` at most `share * n`. No clock:
    a share of the calls is one whatever time they take."""

    __slots__ = ("_share", "_tokens")

    def __init__(self, share: float) -> None:
        self._share = share
        self._tokens = 0.0

    def asked(self) -> None:
        """A call came that could be hedged."""
        self._tokens = min(BURST, self._tokens + self._share)

    def spend(self) -> bool:
        """Takes a hedge's token. False: there is none."""
        if self._tokens < 1.0 - 1e-9:  # twenty times 0.05 is not quite 1
            return False
        self._tokens = max(0.0, self._tokens - 1.0)
        return True


def is_hedgeable(call: Call | None, *, is_internal: bool) -> bool:
    """Calls that may run twice at once. What passes through unread may change something, and a WebSocket is no call;
    what is kept at its host would be kept twice; tools that its host runs may change something there; and nobody waits
    for the gateway's own checks (`is_internal`)."""
    if call is None or is_internal or call.stateful:
        return False
    body = call.body
    stored = (
        body.get("store", call.operation in STORED_BY_DEFAULT) or body.get("background") or body.get("conversation")
    )
    return not stored and not body.get("mcp_servers") and all(map(_runs_on_client, _as_list(body.get("tools"))))


def _as_list(tools: object) -> Sequence[object]:
    return tools if isinstance(tools, list) else ()


def _runs_on_client(tool: object) -> bool:
    """Whether the client runs it, once it has one answer."""
    return isinstance(tool, Mapping) and tool.get("type", "custom") in CLIENT_TOOLS


def delay_s(predicted_s: float | None, remaining_s: float, other_s: float | None) -> float | None:
    """How long the first upstream is waited for before a second one is asked. None: none is, however long it takes.

    `predicted_s`: the quantile of its time to the first byte; None or infinite where nothing is known. `remaining_s`:
    until the answer is due. `other_s`: what another upstream is expected to take; None where nothing is known. A hedge
    that could only answer when it is too late would be for nothing."""
    if predicted_s is None or math.isinf(predicted_s):
        return None
    delay = max(MIN_DELAY_S, predicted_s)
    return delay if delay + (other_s or 0.0) < remaining_s else None


def has_room(crowd: Load) -> bool:
    """Whether one more call would find a place there at once."""
    return crowd.queued == 0 and crowd.inflight < crowd.limit


def skip_reason(budget: HedgeBudget, all_loads: Sequence[Load], others: Sequence[Load]) -> Hedged | None:
    """Why the hedge that is due is not sent; None where it is, and its token taken. `all_loads`: all upstreams of the
    backend; `others`: those in service but the one that is waited for. Where anybody waits for a place, calls are more
    than the upstreams bear, and more of them would make everybody's slower."""
    if not others:
        return Hedged.ALONE
    if any(crowd.queued for crowd in all_loads) or not any(map(has_room, others)):
        return Hedged.OVERLOADED
    return None if budget.spend() else Hedged.BUDGET


CANCEL_RETRY_S = 0.05  # a library in the middle of a connection's end can lose a cancellation: it is said again

Send = Callable[[Upstream, RequestContext], Coroutine[Any, Any, Outcome]]

Select = Callable[[Sequence[Upstream]], Upstream]


@dataclass(slots=True)
class HedgeAttempt:
    """An upstream, and what came of it."""

    endpoint: Upstream
    outcome: Outcome


class Hedging:
    """Of one backend with several upstreams."""

    def __init__(self, rules: HedgeRules, endpoints: Sequence[Upstream], clock: Clock, telemetry: Telemetry) -> None:
        self._rules = rules
        self._endpoints = endpoints
        self._clock = clock
        self._telemetry = telemetry
        self._budget = HedgeBudget(rules.budget)
        self._cleanup_tasks: set[asyncio.Task[None]] = set()  # races whose request is over, and whose calls are not yet

    def delay_s(self, endpoint: Upstream, request: RequestContext) -> float | None:
        """How long `endpoint` is waited for before another one is asked; None: however long it takes. To be asked once
        for each call, before it is sent: the budget grows by it."""
        asked = call_features(request.call, request.route)
        if asked is None or not is_hedgeable(request.call, is_internal=request.internal):
            return None
        self._budget.asked()
        now, until = self._clock.monotonic(), request.due
        predicted = endpoint.predict(asked, now, self._rules.quantile)
        others = (
            ()
            if math.isinf(until)
            else (other.predict(asked, now, 0.5) for other in self._endpoints if other != endpoint)
        )
        known = (other.ttft_s for other in others if other is not None and not math.isinf(other.ttft_s))
        return delay_s(None if predicted is None else predicted.ttft_s, until - now, min(known, default=None))

    async def asked(
        self, send: Send, endpoint: Upstream, request: RequestContext, delay: float, choose: Select
    ) -> list[HedgeAttempt]:
        """Asks `endpoint`, and after `delay` seconds without an answer another one that `choose` names. -> what came of
        it: the last one decides, one before it has failed and is let go. Raises what `send` raises. Who was not heard
        to the end has then been cancelled, and its place is free; where this is cancelled twice, soon after."""
        started, previous_s = self._clock.monotonic(), request.timings.get("upstream", 0.0)
        race, attempts = _Race(send, request), list[HedgeAttempt]()
        try:
            race.start(endpoint)
            await race.pause(delay)
            other = self._pick_other(endpoint, request, choose) if race.is_open else None
            attempts = await (race.first_decisive() if other is None else self._race_against(race, other))
            await race.end()
        except BaseException:
            cleanup = spawn(self._cleanup_tasks, _finish(race, attempts))
            await asyncio.shield(cleanup)  # who is cancelled once more does not wait for it, and it goes on
            raise
        # The second call's time is in a request of its own: here it would count twice what both took at once.
        extra_s = self._clock.monotonic() - started - (request.timings.get("upstream", 0.0) - previous_s)
        if attempts[-1].endpoint is not endpoint and extra_s > 0:
            request.add_time("upstream", extra_s)
        return attempts

    async def _race_against(self, race: _Race, other: Upstream) -> list[HedgeAttempt]:
        race.start(other, own_timings=True)
        outcome = Hedged.FAILED
        try:
            attempts = await race.first_decisive()
            if race.is_decisive(attempts[-1].outcome):
                outcome = Hedged.WON if attempts[-1].endpoint is other else Hedged.LOST
            return attempts
        except asyncio.CancelledError:
            outcome = Hedged.CANCELLED
            raise
        finally:
            self._telemetry.hedges.add(outcome)

    def _pick_other(self, endpoint: Upstream, request: RequestContext, choose: Select) -> Upstream | None:
        now = self._clock.monotonic()
        others = [
            other
            for other in self._endpoints
            if other is not endpoint
            and other.breaker.state(now) is BreakerState.CLOSED
            and not other.retry_after_s(request.tenant, now)
        ]
        crowds = [each.backend.crowd for each in self._endpoints]
        reason = skip_reason(self._budget, crowds, [other.backend.crowd for other in others])
        if reason is not None:
            self._telemetry.hedges.add(reason)
            return None
        return choose([other for other in others if has_room(other.backend.crowd)])


async def _finish(race: _Race, attempts: Sequence[HedgeAttempt]) -> None:
    """`attempts`: where its client has left while who had lost was ended."""
    try:
        for each in attempts:
            await discard_response(each.outcome)
    finally:
        await race.end()


class _Race:
    """Calls on their way at once, each in a task of its own."""

    def __init__(self, send: Send, request: RequestContext) -> None:
        self._send = send
        self._request = request
        self._endpoints: dict[asyncio.Task[Outcome], Upstream] = {}  # in the order in which they were asked

    @property
    def is_open(self) -> bool:
        """Whether nobody has answered or failed yet."""
        return not any(task.done() for task in self._endpoints)

    def start(self, endpoint: Upstream, *, own_timings: bool = False) -> None:
        """`own_timings`: with timings of its own."""
        request = self._request.child("hedge") if own_timings else self._request
        self._endpoints[asyncio.create_task(self._send(endpoint, request))] = endpoint

    async def pause(self, seconds: float) -> None:
        """Until then, or until somebody has answered or failed."""
        await asyncio.wait(self._endpoints, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def is_decisive(self, outcome: Outcome) -> bool:
        """Whether there is no use in waiting for another one."""
        return retry_target(outcome, self._request, waits=False) is RetryTarget.NOBODY

    async def first_decisive(self) -> list[HedgeAttempt]:
        """What came, until one of them decides or nobody is left."""
        attempts: list[HedgeAttempt] = []
        while True:
            done, _ = await asyncio.wait(self._endpoints, return_when=asyncio.FIRST_COMPLETED)
            task = next(task for task in self._endpoints if task in done)
            outcome = task.result()
            attempts.append(HedgeAttempt(self._endpoints.pop(task), outcome))
            if not self._endpoints or self.is_decisive(outcome):
                return attempts
            await discard_response(outcome)

    async def end(self) -> None:
        """Cancels who is still on its way, and returns when it has ended."""
        for task in self._endpoints:
            task.cancel()
        while pending := [task for task in self._endpoints if not task.done()]:
            await asyncio.wait(pending, timeout=CANCEL_RETRY_S)
            for task in pending:
                task.cancel()
        for task in self._endpoints:  # it may have answered in the same moment
            if not task.cancelled() and task.exception() is None:
                await discard_response(task.result())
