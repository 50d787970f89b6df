"""The places at one backend: how many may be in flight to it, and who waits for one. I/O around `routing.limit`,
`routing.turnover` and `routing.waiting`."""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from itertools import count
from math import ceil

from gateway.context import Load, RequestContext
from gateway.errors import BackendOverloaded
from gateway.ports import Clock
from gateway.priority import Priority, ShedReason
from gateway.upstream.adaptive_concurrency import AdaptiveLimit, SlotTurnover
from gateway.upstream.wait_queue import KEPT, Ticket, WaitQueue

# The places at one backend: how many may be in flight to it, and who waits for one. I/O around `routing.limit`,
# `routing.turnover` and `routing.waiting`.
MAX_RETRY_AFTER_S = 60


class ConcurrencyPermit:
    """A place at a gate. `leave` it as often as you like: only the first time counts."""

    __slots__ = ("_gate", "asked", "lasting")

    def __init__(self, gate: ConcurrencyLimiter, asked: float) -> None:
        self._gate: ConcurrencyLimiter | None = gate
        self.asked = asked  # monotonic clock
        self.lasting = False  # held for as long as a connection, which says nothing of how long others hold one

    def answered(self, request: RequestContext, status: int) -> None:
        """The answer begins. A backend that refuses for load (503; 429 is for an account's limit) says more than its
        latency does, and other errors come sooner than answers: neither counts as one."""
        call, gate = request.call, self._gate
        if gate is None:
            return
        if status == 503:
            gate.dropped(self.asked)
        elif status < 400 and call is not None and gate.adaptive:  # paths that no dialect knows cannot be compared
            gate.answered((call.operation, call.stream), self.asked)

    def overdue(self) -> None:
        """The answer did not begin in time."""
        if self._gate is not None:
            self._gate.dropped(self.asked)

    def leave(self) -> None:
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.left(None if self.lasting else self.asked)


class ConcurrencyLimiter:
    """`ceiling`: places at most; `adaptive`: as few of them as keep the backend's latency down. Nobody waits longer
    than `max_wait_s`, nor beyond its own deadline."""

    def __init__(self, backend: str, ceiling: int, max_wait_s: float, clock: Clock, *, adaptive: bool) -> None:
        self._backend = backend
        self.adaptive = adaptive
        self._limit = AdaptiveLimit(ceiling, adaptive=adaptive)
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._waiting = WaitQueue()
        self._turnover = SlotTurnover()
        self._held = self._turnover.held
        self._turns: dict[Ticket, asyncio.Future[float]] = {}  # of all who wait -> when it was given
        self._numbers = count()
        self.inflight = 0

    @property
    def crowd(self) -> Load:
        return Load(self.inflight, self._limit.value, len(self._waiting))

    def wait_s(self, priority: Priority) -> float:
        """How long a newcomer would wait for a place, as it looks now."""
        if self._free:
            return 0.0
        return self._after(self._waiting.ahead(priority))

    @property
    def _free(self) -> bool:
        return not self._turns and self.inflight < self._limit.value

    def try_enter(self) -> ConcurrencyPermit | None:
        """A place at once; None where none is free, or others wait."""
        if self._turns or self.inflight >= self._limit.value:
            return None
        self.inflight += 1
        return ConcurrencyPermit(self, self._clock.monotonic())

    async def enter(self, request: RequestContext) -> ConcurrencyPermit:
        """Raises `BackendOverloaded` (another backend may be asked) when there is no place in time."""
        place = self.try_enter()
        if place is None:
            with request.timed("queue"):
                await self._wait(request)
            place = ConcurrencyPermit(self, self._clock.monotonic())
        return place

    def left(self, asked: float | None) -> None:
        """`asked`: None where the time says nothing of others."""
        if asked is not None:
            now = self._clock.monotonic()
            self._held(now - asked, now)
        self.inflight -= 1
        if self._turns:
            self._admit()

    def answered(self, kind: Hashable, asked: float) -> None:
        self._limit.answered(kind, asked, self._clock.monotonic(), self.inflight)
        if self._turns:
            self._admit()

    def dropped(self, asked: float) -> None:
        self._limit.dropped(asked)

    async def _wait(self, request: RequestContext) -> None:
        now = self._clock.monotonic()
        patience, deadline = now + self._max_wait_s, request.due
        ticket = Ticket(request.priority, min(patience, deadline), next(self._numbers), request.tenant)
        self._join(ticket, deadline, now)
        turn = self._turns[ticket] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ticket.due - now):
                given = await turn
            now = self._clock.monotonic()
            self._turnover.woke(now - given, now)
        except TimeoutError:
            if not _given(turn):  # or both happened at once
                raise self._full(ShedReason.DEADLINE if deadline <= patience else ShedReason.WAITED) from None
        except asyncio.CancelledError:
            if _given(turn):
                self.inflight -= 1
                self._admit()
            raise
        finally:
            self._turns.pop(ticket, None)
            self._waiting.remove(ticket, self._clock.monotonic())

    def _join(self, ticket: Ticket, deadline: float, now: float) -> None:
        """Raises `BackendOverloaded` where it may not wait."""
        limit, turnover = self._limit, self._turnover
        each_s, backends_s = turnover.each_s(limit.value), turnover.backends_s(limit.value)
        room = self._waiting.room(limit.ceiling, now, turnover.hold_s, each_s, backends_s, starting=limit.starting)
        for gone in self._waiting.cut(KEPT * room, now):
            self._refuse(gone, ShedReason.STANDING)
        if now + self._after(self._waiting.ahead(ticket.priority, ticket.due)) >= deadline:
            raise self._full(ShedReason.DEADLINE)
        outcome = self._waiting.offer(ticket, room, now)
        if isinstance(outcome, ShedReason):
            raise self._full(outcome)
        if outcome is not None:
            self._refuse(outcome, ShedReason.DISPLACED)

    def _admit(self) -> None:
        now = self._clock.monotonic()
        for late in self._waiting.expired(now):
            self._refuse(late, ShedReason.DEADLINE)
        while self.inflight < self._limit.value and (ticket := self._waiting.take(now)) is not None:
            turn = self._turns.pop(ticket, None)
            if turn is not None and not turn.done():
                self.inflight += 1
                self._turnover.given(self._waiting.since, now)
                turn.set_result(now)

    def _refuse(self, ticket: Ticket, reason: ShedReason) -> None:
        turn = self._turns.pop(ticket, None)
        if turn is not None and not turn.done():
            turn.set_exception(self._full(reason))

    def _after(self, ahead: int) -> float:
        """Seconds until so many have had their turn and the next place is free."""
        return (ahead + 1) * self._turnover.each_s(self._limit.value)

    def _full(self, reason: ShedReason) -> BackendOverloaded:
        drained = min(MAX_RETRY_AFTER_S, max(1, ceil(self._after(len(self._waiting)))))
        return BackendOverloaded(
            f"backend '{self._backend}' is at its limit of concurrent requests ({_SAID[reason]})", reason, drained
        )


_SAID: dict[ShedReason, str] = {
    ShedReason.QUEUE_FULL: "nobody else may wait for a place",
    ShedReason.TENANT_SHARE: "most of those who wait for a place are yours",
    ShedReason.DISPLACED: "others go first",
    ShedReason.STANDING: "too many wait for a place",
    ShedReason.DEADLINE: "there is no place before the answer is due",
    ShedReason.WAITED: "no place became free in time",
}


def _given(turn: asyncio.Future[float]) -> bool:
    return turn.done() and not turn.cancelled() and turn.exception() is None


# A backend that is asked through a gate, and tells who waits there.
class LimitedBackend:
    """The part of a `Backend` that its gate knows."""

    def __init__(self, gate: ConcurrencyLimiter) -> None:
        self._gate = gate

    @property
    def crowd(self) -> Load:
        return self._gate.crowd

    def wait_s(self, priority: Priority) -> float:
        return self._gate.wait_s(priority)
