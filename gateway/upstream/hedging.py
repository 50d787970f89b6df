"""Hedge calls: call a second upstream while the first one has not responded, and use the first good response."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gateway.calls import Call
from gateway.circuit_breaker import BreakerState
from gateway.context import Load, RequestContext
from gateway.messages import Response
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.tasks import spawn
from gateway.upstream.refusals import refused
from gateway.upstream.retry import Outcome, RetryTarget, discard_response, retry_target
from gateway.upstream.upstream import Upstream, call_features

# Decide whether and when to send a hedge. The rules are pure.
#
# Dean and Barroso, "The Tail at Scale" (CACM 56(2), 2013): send a second request once the first one has taken longer
# than the 95th percentile of its expected time. That adds some 5 % of load and cuts most of the tail, if a slow
# response is the fault of the upstream and not of the request. The bound follows Finagle (`BackupRequestFilter`) and
# gRPC (proposal A6): each call earns a fraction of a token, and each hedge spends one. So if all upstreams are slow,
# only a small share of the calls is sent twice.

BURST = 5.0  # hedges that can be saved up

MIN_DELAY_S = 0.001  # Finagle's minimum: a shorter timer measures this process rather than an upstream


CLIENT_TOOLS = frozenset({"function", "custom"})  # other tools (web search, MCP, code) run at the provider


class HedgeOutcome(StrEnum):
    """The outcome of a call that outlasted its hedge delay: the label `outcome` of `nearhit_hedges_total`."""

    WON = "won"  # the second upstream's response was served
    LOST = "lost"  # the first upstream's response was served
    FAILED = "failed"  # neither upstream had a good response
    CANCELLED = "cancelled"  # the client left meanwhile
    BUDGET = "budget"  # not sent: the hedge budget is spent
    OVERLOADED = "overloaded"  # not sent: calls already wait for a permit, or no other upstream has room
    ALONE = "alone"  # not sent: no other upstream is in service


@dataclass(frozen=True, slots=True)
class HedgeRules:
    """`HedgeRules` set when a second upstream is called, and how often at most."""

    quantile: float = 0.95  # quantile of the time to the first byte, in (0, 1)
    budget: float = 0.05  # hedges as a share of the calls, in (0, 1]


class HedgeBudget:
    """`HedgeBudget` allows at most `share * n + BURST` hedges in any `n` consecutive calls.

    It hedges at most `share * n` of the first `n` calls. It needs no clock, because a share of the calls does not
    depend on their duration.
    """

    __slots__ = ("_share", "_tokens")

    def __init__(self, share: float) -> None:
        self._share = share
        self._tokens = 0.0

    def record_call(self) -> None:
        """Record a call that could be hedged."""
        self._tokens = min(BURST, self._tokens + self._share)

    def spend(self) -> bool:
        """Spend one token. Return False if there is none."""
        if self._tokens < 1.0 - 1e-9:  # twenty times 0.05 is not quite 1
            return False
        self._tokens = max(0.0, self._tokens - 1.0)
        return True


def is_hedgeable(call: Call | None, *, is_internal: bool) -> bool:
    """Return whether a call may run twice at once. It may not in these cases:

    - No dialect parsed it, or it is stateful, so it may change something. WebSockets are never hedged.
    - Its provider would store the response twice.
    - It has tools that run at the provider, where they may change something.
    - It is one of the gateway's own checks (`is_internal`), for which no client waits.
    """
    if call is None or is_internal or call.stateful:
        return False
    body = call.body
    stored = body.get("store", call.stored) or body.get("background") or body.get("conversation")
    return not stored and not body.get("mcp_servers") and all(map(_runs_on_client, _as_list(body.get("tools"))))


def _as_list(tools: object) -> Sequence[object]:
    return tools if isinstance(tools, list) else ()


def _runs_on_client(tool: object) -> bool:
    """Return whether the client runs the tool, after it has received one response."""
    return isinstance(tool, Mapping) and tool.get("type", "custom") in CLIENT_TOOLS


def delay_s(predicted_s: float | None, remaining_s: float, other_s: float | None) -> float | None:
    """Return the seconds to wait for the first upstream before the hedge is sent, or None to send no hedge.

    `predicted_s` is the quantile of its time to first byte, or None or infinite if it is not known. `remaining_s`
    is the time until the deadline. `other_s` is the expected time of another upstream, if it is known. A hedge that
    could only respond after the deadline is not sent.
    """
    if predicted_s is None or math.isinf(predicted_s):
        return None
    delay = max(MIN_DELAY_S, predicted_s)
    return delay if delay + (other_s or 0.0) < remaining_s else None


def has_room(occupancy: Load) -> bool:
    """Return whether one more call would get a permit at once."""
    return occupancy.queued == 0 and occupancy.inflight < occupancy.limit


def skip_reason(budget: HedgeBudget, all_loads: Sequence[Load], others: Sequence[Load]) -> HedgeOutcome | None:
    """Return why a due hedge is not sent; None if it is sent, and then its token is spent.

    `all_loads` are the loads of all upstreams of the backend; `others` are those of the other upstreams in service. If
    any call waits for a permit, the upstreams are at capacity, and a hedge would slow every call down.
    """
    if not others:
        return HedgeOutcome.ALONE
    if any(occupancy.queued for occupancy in all_loads) or not any(map(has_room, others)):
        return HedgeOutcome.OVERLOADED
    return None if budget.spend() else HedgeOutcome.BUDGET


CANCEL_RETRY_S = 0.05  # a library that is closing a connection can swallow a cancellation, so it is repeated

Send = Callable[[Upstream, RequestContext], Coroutine[Any, Any, Outcome]]

Select = Callable[[Sequence[Upstream]], Upstream]


@dataclass(slots=True)
class HedgeAttempt:
    """An upstream and the outcome of the call to it."""

    endpoint: Upstream
    outcome: Outcome


class Hedging:
    """`Hedging` hedges the calls of one backend with several upstreams."""

    def __init__(self, rules: HedgeRules, endpoints: Sequence[Upstream], clock: Clock, telemetry: Telemetry) -> None:
        self._rules = rules
        self._endpoints = endpoints
        self._clock = clock
        self._telemetry = telemetry
        self._budget = HedgeBudget(rules.budget)
        self._cleanup_tasks: set[asyncio.Task[None]] = set()  # end the races of finished requests

    def delay_s(self, endpoint: Upstream, request: RequestContext) -> float | None:
        """Return the seconds to wait for `endpoint` before the hedge is sent, or None to send no hedge.

        Call it once for each call, before it is sent, because it feeds the budget.
        """
        features = call_features(request.call, request.route)
        if features is None or not is_hedgeable(request.call, is_internal=request.work.internal):
            return None
        self._budget.record_call()
        now, until = self._clock.monotonic(), request.due
        predicted = endpoint.predict(features, now, self._rules.quantile)
        others = (
            ()
            if math.isinf(until)
            else (other.predict(features, now, 0.5) for other in self._endpoints if other != endpoint)
        )
        known = (other.ttft_s for other in others if other is not None and not math.isinf(other.ttft_s))
        return delay_s(None if predicted is None else predicted.ttft_s, until - now, min(known, default=None))

    async def send_hedged(
        self, send: Send, endpoint: Upstream, request: RequestContext, delay: float, choose: Select
    ) -> list[HedgeAttempt]:
        """Call `endpoint`; after `delay` seconds without a response, also call the upstream that `choose` returns.

        Return the attempts. The last one decides; earlier ones failed, and their responses are discarded. Raise
        whatever `send` raises. On return, calls that lost are cancelled and their permits are released. If this task is
        cancelled twice, that happens shortly afterwards.
        """
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
            await asyncio.shield(cleanup)  # a second cancellation does not wait for the cleanup, which continues
            raise
        # The second call records its time in its own request; added here, overlapping time would count twice.
        extra_s = self._clock.monotonic() - started - (request.timings.get("upstream", 0.0) - previous_s)
        if attempts[-1].endpoint is not endpoint and extra_s > 0:
            request.add_time("upstream", extra_s)
        return attempts

    async def _race_against(self, race: _Race, other: Upstream) -> list[HedgeAttempt]:
        race.start(other, own_timings=True)
        outcome = HedgeOutcome.FAILED
        try:
            attempts = await race.first_decisive()
            if race.is_decisive(attempts[-1]):
                outcome = HedgeOutcome.WON if attempts[-1].endpoint is other else HedgeOutcome.LOST
            return attempts
        except asyncio.CancelledError:
            outcome = HedgeOutcome.CANCELLED
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
            and not other.retry_after_s(request, now)
            and not other.refuses(request, now)
        ]
        occupancies = [each.backend.occupancy for each in self._endpoints]
        reason = skip_reason(self._budget, occupancies, [other.backend.occupancy for other in others])
        if reason is not None:
            self._telemetry.hedges.add(reason)
            return None
        return choose([other for other in others if has_room(other.backend.occupancy)])


async def _finish(race: _Race, attempts: Sequence[HedgeAttempt]) -> None:
    """End the race. `attempts` are left over if the client left while the losing call was being cancelled."""
    try:
        for each in attempts:
            await discard_response(each.outcome)
    finally:
        await race.end()


class _Race:
    """Concurrent calls, each in its own task."""

    def __init__(self, send: Send, request: RequestContext) -> None:
        self._send = send
        self._request = request
        self._endpoints: dict[asyncio.Task[Outcome], Upstream] = {}  # in the order in which they were sent

    @property
    def is_open(self) -> bool:
        """Whether no call has responded or failed yet."""
        return not any(task.done() for task in self._endpoints)

    def start(self, endpoint: Upstream, *, own_timings: bool = False) -> None:
        """Send the call. With `own_timings` it is that of a child request with separate timings."""
        request = self._request.child("hedge") if own_timings else self._request
        self._endpoints[asyncio.create_task(self._send(endpoint, request))] = endpoint

    async def pause(self, seconds: float) -> None:
        """Wait for so many seconds, or until a call has responded or failed."""
        await asyncio.wait(self._endpoints, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def is_decisive(self, attempt: HedgeAttempt) -> bool:
        """Return whether waiting for another call is pointless. A refusal of the gateway's own credentials is fast, and
        no reason to give up the other call."""
        outcome = attempt.outcome
        if isinstance(outcome, Response) and attempt.endpoint.upstream.own_account and refused(outcome) is not None:
            return False
        return retry_target(outcome, self._request, waits=False) is RetryTarget.NOBODY

    async def first_decisive(self) -> list[HedgeAttempt]:
        """Collect attempts until one decides or none is left."""
        attempts: list[HedgeAttempt] = []
        while True:
            done, _ = await asyncio.wait(self._endpoints, return_when=asyncio.FIRST_COMPLETED)
            task = next(task for task in self._endpoints if task in done)
            attempts.append(HedgeAttempt(self._endpoints.pop(task), task.result()))
            if not self._endpoints or self.is_decisive(attempts[-1]):
                return attempts
            await discard_response(attempts[-1].outcome)

    async def end(self) -> None:
        """Cancel the remaining calls and wait until they have ended."""
        for task in self._endpoints:
            task.cancel()
        while pending := [task for task in self._endpoints if not task.done()]:
            await asyncio.wait(pending, timeout=CANCEL_RETRY_S)
            for task in pending:
                task.cancel()
        for task in self._endpoints:  # it may have responded just before the cancellation
            if not task.cancelled() and task.exception() is None:
                await discard_response(task.result())
