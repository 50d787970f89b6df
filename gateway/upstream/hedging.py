"""A second upstream is asked while the first one has not answered: the race of two calls. I/O around
`routing.hedge`."""

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
from gateway.tasks import held
from gateway.upstream.retry import Outcome, RetryTarget, again, let_go
from gateway.upstream.upstream import Upstream, asked_of

# Whether, when and within what a call is sent to a second upstream while the first one has not answered. Pure.
#
# Dean and Barroso, "The Tail at Scale" (CACM 56(2), 2013): a second request that waits for the 95th percentile of what
# the first one is expected to take adds some 5 % of load and cuts most of the tail, as long as a slow answer is the fault
# of the one upstream and not of the request. The bound is Finagle's (`BackupRequestFilter`) and gRPC's (proposal A6):
# tokens that calls bring in, so that upstreams which are slow all together are not asked twice for everything.

BURST = 5.0  # hedges that a quiet time may save up

SHORTEST_S = 0.001  # Finagle's minimum: below it a timer tells more of this process than of an upstream

KEPT_BY_DEFAULT = frozenset({"responses"})  # operations whose answers OpenAI keeps unless `store` is false

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

    after: float = 0.95  # quantile of the time to the first byte, in (0, 1)
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


def hedgeable(call: Call | None, *, unasked: bool) -> bool:
    """Calls that may run twice at once. What passes through unread may change something, and a WebSocket is no call;
    what is kept at its host would be kept twice; tools that its host runs may change something there; and nobody waits
    for the gateway's own checks (`unasked`)."""
    if call is None or unasked or call.stateful:
        return False
    body = call.body
    kept = body.get("store", call.operation in KEPT_BY_DEFAULT) or body.get("background") or body.get("conversation")
    return not kept and not body.get("mcp_servers") and all(map(_of_the_client, _listed(body.get("tools"))))


def _listed(tools: object) -> Sequence[object]:
    return tools if isinstance(tools, list) else ()


def _of_the_client(tool: object) -> bool:
    """Whether the client runs it, once it has one answer."""
    return isinstance(tool, Mapping) and tool.get("type", "custom") in CLIENT_TOOLS


def delay_s(predicted_s: float | None, remaining_s: float, other_s: float | None) -> float | None:
    """How long the first upstream is waited for before a second one is asked. None: none is, however long it takes.

    `predicted_s`: the quantile of its time to the first byte; None or infinite where nothing is known. `remaining_s`:
    until the answer is due. `other_s`: what another upstream is expected to take; None where nothing is known. A hedge
    that could only answer when it is too late would be for nothing."""
    if predicted_s is None or math.isinf(predicted_s):
        return None
    delay = max(SHORTEST_S, predicted_s)
    return delay if delay + (other_s or 0.0) < remaining_s else None


def has_room(crowd: Load) -> bool:
    """Whether one more call would find a place there at once."""
    return crowd.queued == 0 and crowd.inflight < crowd.limit


def held_back(budget: HedgeBudget, everywhere: Sequence[Load], others: Sequence[Load]) -> Hedged | None:
    """Why the hedge that is due is not sent; None where it is, and its token taken. `everywhere`: all upstreams of the
    backend; `others`: those in service but the one that is waited for. Where anybody waits for a place, calls are more
    than the upstreams bear, and more of them would make everybody's slower."""
    if not others:
        return Hedged.ALONE
    if any(crowd.queued for crowd in everywhere) or not any(map(has_room, others)):
        return Hedged.OVERLOADED
    return None if budget.spend() else Hedged.BUDGET


# A second upstream is asked while the first one has not answered: the race of two calls. I/O around
# `routing.hedge`.
RECALL_S = 0.05  # a library in the middle of a connection's end can lose a cancellation: it is said again

Ask = Callable[[Upstream, RequestContext], Coroutine[Any, Any, Outcome]]

Choose = Callable[[Sequence[Upstream]], Upstream]


@dataclass(slots=True)
class HedgeAttempt:
    """An upstream, and what came of it."""

    lane: Upstream
    outcome: Outcome


class Hedging:
    """Of one backend with several upstreams."""

    def __init__(self, rules: HedgeRules, lanes: Sequence[Upstream], clock: Clock, telemetry: Telemetry) -> None:
        self._rules = rules
        self._lanes = lanes
        self._clock = clock
        self._telemetry = telemetry
        self._budget = HedgeBudget(rules.budget)
        self._ending: set[asyncio.Task[None]] = set()  # races whose request is over, and whose calls are not yet

    def delay_s(self, lane: Upstream, request: RequestContext) -> float | None:
        """How long `lane` is waited for before another one is asked; None: however long it takes. To be asked once for
        each call, before it is sent: the budget grows by it."""
        asked = asked_of(request.call, request.route)
        if asked is None or not hedgeable(request.call, unasked=request.internal):
            return None
        self._budget.asked()
        now, until = self._clock.monotonic(), request.due
        predicted = lane.predict(asked, now, self._rules.after)
        others = () if math.isinf(until) else (other.predict(asked, now, 0.5) for other in self._lanes if other != lane)
        known = (other.ttft_s for other in others if other is not None and not math.isinf(other.ttft_s))
        return delay_s(None if predicted is None else predicted.ttft_s, until - now, min(known, default=None))

    async def asked(
        self, ask: Ask, lane: Upstream, request: RequestContext, delay: float, choose: Choose
    ) -> list[HedgeAttempt]:
        """Asks `lane`, and after `delay` seconds without an answer another one that `choose` names. -> what came of it:
        the last one decides, one before it has failed and is let go. Raises what `ask` raises. Who was not heard to the
        end has then been cancelled, and its place is free; where this is cancelled twice, soon after."""
        started, before = self._clock.monotonic(), request.timings.get("upstream", 0.0)
        race, came = _Race(ask, request), list[HedgeAttempt]()
        try:
            race.join(lane)
            await race.pause(delay)
            other = self._another(lane, request, choose) if race.open else None
            came = await (race.decided() if other is None else self._against(race, other))
            await race.end()
        except BaseException:
            ending = held(self._ending, _ended(race, came))
            await asyncio.shield(ending)  # who is cancelled once more does not wait for it, and it goes on
            raise
        # The second call's time is in a request of its own: here it would count twice what both took at once.
        elsewhere = self._clock.monotonic() - started - (request.timings.get("upstream", 0.0) - before)
        if came[-1].lane is not lane and elsewhere > 0:
            request.add_time("upstream", elsewhere)
        return came

    async def _against(self, race: _Race, other: Upstream) -> list[HedgeAttempt]:
        race.join(other, apart=True)
        outcome = Hedged.FAILED
        try:
            came = await race.decided()
            if race.decides(came[-1].outcome):
                outcome = Hedged.WON if came[-1].lane is other else Hedged.LOST
            return came
        except asyncio.CancelledError:
            outcome = Hedged.CANCELLED
            raise
        finally:
            self._telemetry.hedges.add(outcome)

    def _another(self, lane: Upstream, request: RequestContext, choose: Choose) -> Upstream | None:
        now = self._clock.monotonic()
        others = [
            other
            for other in self._lanes
            if other is not lane
            and other.breaker.state(now) is BreakerState.CLOSED
            and not other.told_to_wait_s(request.tenant, now)
        ]
        crowds = [each.backend.crowd for each in self._lanes]
        why_not = held_back(self._budget, crowds, [other.backend.crowd for other in others])
        if why_not is not None:
            self._telemetry.hedges.add(why_not)
            return None
        return choose([other for other in others if has_room(other.backend.crowd)])


async def _ended(race: _Race, came: Sequence[HedgeAttempt]) -> None:
    """`came`: where its client has left while who had lost was ended."""
    try:
        for each in came:
            await let_go(each.outcome)
    finally:
        await race.end()


class _Race:
    """Calls on their way at once, each in a task of its own."""

    def __init__(self, ask: Ask, request: RequestContext) -> None:
        self._ask = ask
        self._request = request
        self._lanes: dict[asyncio.Task[Outcome], Upstream] = {}  # in the order in which they were asked

    @property
    def open(self) -> bool:
        """Whether nobody has answered or failed yet."""
        return not any(task.done() for task in self._lanes)

    def join(self, lane: Upstream, *, apart: bool = False) -> None:
        """`apart`: with timings of its own."""
        request = self._request.child("hedge") if apart else self._request
        self._lanes[asyncio.create_task(self._ask(lane, request))] = lane

    async def pause(self, seconds: float) -> None:
        """Until then, or until somebody has answered or failed."""
        await asyncio.wait(self._lanes, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)

    def decides(self, outcome: Outcome) -> bool:
        """Whether there is no use in waiting for another one."""
        return again(outcome, self._request, waits=False) is RetryTarget.NOBODY

    async def decided(self) -> list[HedgeAttempt]:
        """What came, until one of them decides or nobody is left."""
        came: list[HedgeAttempt] = []
        while True:
            done, _ = await asyncio.wait(self._lanes, return_when=asyncio.FIRST_COMPLETED)
            task = next(task for task in self._lanes if task in done)
            outcome = task.result()
            came.append(HedgeAttempt(self._lanes.pop(task), outcome))
            if not self._lanes or self.decides(outcome):
                return came
            await let_go(outcome)

    async def end(self) -> None:
        """Cancels who is still on its way, and returns when it has ended."""
        for task in self._lanes:
            task.cancel()
        while pending := [task for task in self._lanes if not task.done()]:
            await asyncio.wait(pending, timeout=RECALL_S)
            for task in pending:
                task.cancel()
        for task in self._lanes:  # it may have answered in the same moment
            if not task.cancelled() and task.exception() is None:
                await let_go(task.result())
