"""The places at one backend: how many may be in flight to it, and who waits for one. I/O around
`upstream.adaptive_concurrency`, `upstream.adaptive_concurrency` and `upstream.wait_queue`."""

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
from gateway.upstream.wait_queue import RETAINED_FACTOR, Ticket, WaitQueue

MAX_RETRY_AFTER_S = 60


class ConcurrencyPermit:
    """A place at a gate. `release` it as often as you like: only the first time counts."""

    __slots__ = ("_limiter", "acquired_at", "lasting")

    def __init__(self, limiter: ConcurrencyLimiter, acquired_at: float) -> None:
        self._limiter: ConcurrencyLimiter | None = limiter
        self.acquired_at = acquired_at  # monotonic clock
        self.lasting = False  # held for as long as a connection, which says nothing of how long others hold one

    def on_response(self, request: RequestContext, status: int) -> None:
        """The answer begins. A backend that refuses for load (503; 429 is for an account's limit) says more than its
        latency does, and other errors come sooner than answers: neither counts as one."""
        call, limiter = request.call, self._limiter
        if limiter is None:
            return
        if status == 503:
            limiter.on_overload(self.acquired_at)
        elif status < 400 and call is not None and limiter.adaptive:  # paths that no dialect knows cannot be compared
            limiter.on_response((call.operation, call.stream), self.acquired_at)

    def on_timeout(self) -> None:
        """The answer did not begin in time."""
        if self._limiter is not None:
            self._limiter.on_overload(self.acquired_at)

    def release(self) -> None:
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.on_release(None if self.lasting else self.acquired_at)


class ConcurrencyLimiter:
    """`ceiling`: places at most; `adaptive`: as few of them as keep the backend's latency down. Nobody waits longer
    than `max_wait_s`, nor beyond its own deadline."""

    def __init__(self, backend: str, ceiling: int, max_wait_s: float, clock: Clock, *, adaptive: bool) -> None:
        self._backend = backend
        self.adaptive = adaptive
        self._limit = AdaptiveLimit(ceiling, adaptive=adaptive)
        self._max_wait_s = max_wait_s
        self._clock = clock
        self._queue = WaitQueue()
        self._turnover = SlotTurnover()
        self._record_hold = self._turnover.record_hold
        self._admissions: dict[Ticket, asyncio.Future[float]] = {}  # of all who wait -> when it was given
        self._numbers = count()
        self.inflight = 0

    @property
    def crowd(self) -> Load:
        return Load(self.inflight, self._limit.value, len(self._queue))

    def wait_s(self, priority: Priority) -> float:
        """How long a newcomer would wait for a place, as it looks now."""
        if self._has_room:
            return 0.0
        return self._expected_wait_s(self._queue.ahead(priority))

    @property
    def _has_room(self) -> bool:
        return not self._admissions and self.inflight < self._limit.value

    def acquire_nowait(self) -> ConcurrencyPermit | None:
        """A place at once; None where none is free, or others wait."""
        if self._admissions or self.inflight >= self._limit.value:
            return None
        self.inflight += 1
        return ConcurrencyPermit(self, self._clock.monotonic())

    async def acquire(self, request: RequestContext) -> ConcurrencyPermit:
        """Raises `BackendOverloaded` (another backend may be asked) when there is no place in time."""
        permit = self.acquire_nowait()
        if permit is None:
            with request.timer("queue"):
                await self._wait(request)
            permit = ConcurrencyPermit(self, self._clock.monotonic())
        return permit

    def on_release(self, acquired_at: float | None) -> None:
        """`acquired_at`: None where the time says nothing of others."""
        if acquired_at is not None:
            now = self._clock.monotonic()
            self._record_hold(now - acquired_at, now)
        self.inflight -= 1
        if self._admissions:
            self._admit()

    def on_response(self, kind: Hashable, acquired_at: float) -> None:
        self._limit.on_response(kind, acquired_at, self._clock.monotonic(), self.inflight)
        if self._admissions:
            self._admit()

    def on_overload(self, acquired_at: float) -> None:
        self._limit.on_overload(acquired_at)

    async def _wait(self, request: RequestContext) -> None:
        now = self._clock.monotonic()
        wait_until, deadline = now + self._max_wait_s, request.due
        ticket = Ticket(request.priority, min(wait_until, deadline), next(self._numbers), request.tenant)
        self._enqueue(ticket, deadline, now)
        admission = self._admissions[ticket] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ticket.due - now):
                given = await admission
            now = self._clock.monotonic()
            self._turnover.record_wakeup(now - given, now)
        except TimeoutError:
            if not _is_granted(admission):  # or both happened at once
                raise self._overload_error(
                    ShedReason.DEADLINE if deadline <= wait_until else ShedReason.WAITED
                ) from None
        except asyncio.CancelledError:
            if _is_granted(admission):
                self.inflight -= 1
                self._admit()
            raise
        finally:
            self._admissions.pop(ticket, None)
            self._queue.remove(ticket, self._clock.monotonic())

    def _enqueue(self, ticket: Ticket, deadline: float, now: float) -> None:
        """Raises `BackendOverloaded` where it may not wait."""
        limit, turnover = self._limit, self._turnover
        slot_interval_s, backend_interval_s = (
            turnover.slot_interval_s(limit.value),
            turnover.backend_interval_s(limit.value),
        )
        room = self._queue.room(
            limit.ceiling, now, turnover.hold_s, slot_interval_s, backend_interval_s, is_starting=limit.is_starting
        )
        for shed in self._queue.trim(RETAINED_FACTOR * room, now):
            self._refuse(shed, ShedReason.STANDING)
        if now + self._expected_wait_s(self._queue.ahead(ticket.priority, ticket.due)) >= deadline:
            raise self._overload_error(ShedReason.DEADLINE)
        outcome = self._queue.offer(ticket, room, now)
        if isinstance(outcome, ShedReason):
            raise self._overload_error(outcome)
        if outcome is not None:
            self._refuse(outcome, ShedReason.DISPLACED)

    def _admit(self) -> None:
        now = self._clock.monotonic()
        for late in self._queue.expired(now):
            self._refuse(late, ShedReason.DEADLINE)
        while self.inflight < self._limit.value and (ticket := self._queue.take(now)) is not None:
            admission = self._admissions.pop(ticket, None)
            if admission is not None and not admission.done():
                self.inflight += 1
                self._turnover.given(self._queue.waiting_since, now)
                admission.set_result(now)

    def _refuse(self, ticket: Ticket, reason: ShedReason) -> None:
        admission = self._admissions.pop(ticket, None)
        if admission is not None and not admission.done():
            admission.set_exception(self._overload_error(reason))

    def _expected_wait_s(self, ahead: int) -> float:
        """Seconds until so many have had their turn and the next place is free."""
        return (ahead + 1) * self._turnover.slot_interval_s(self._limit.value)

    def _overload_error(self, reason: ShedReason) -> BackendOverloaded:
        retry_after_s = min(MAX_RETRY_AFTER_S, max(1, ceil(self._expected_wait_s(len(self._queue)))))
        return BackendOverloaded(
            f"backend '{self._backend}' is at its limit of concurrent requests ({_REASONS[reason]})",
            reason,
            retry_after_s,
        )


_REASONS: dict[ShedReason, str] = {
    ShedReason.QUEUE_FULL: "nobody else may wait for a place",
    ShedReason.TENANT_SHARE: "most of those who wait for a place are yours",
    ShedReason.DISPLACED: "others go first",
    ShedReason.STANDING: "too many wait for a place",
    ShedReason.DEADLINE: "there is no place before the answer is due",
    ShedReason.WAITED: "no place became free in time",
}


def _is_granted(admission: asyncio.Future[float]) -> bool:
    return admission.done() and not admission.cancelled() and admission.exception() is None


# A backend that is asked through a gate, and tells who waits there.
class LimitedBackend:
    """The part of a `Backend` that its gate knows."""

    def __init__(self, limiter: ConcurrencyLimiter) -> None:
        self._limiter = limiter

    @property
    def crowd(self) -> Load:
        return self._limiter.crowd

    def wait_s(self, priority: Priority) -> float:
        return self._limiter.wait_s(priority)
