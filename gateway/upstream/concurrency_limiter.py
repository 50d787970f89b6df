"""Limit the calls in flight to one backend, and queue the calls that wait.

It is the I/O around `upstream.adaptive_concurrency` and `upstream.wait_queue`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Hashable
from itertools import count
from math import ceil

from gateway.config.backends import BackendSection
from gateway.context import Load, RequestContext
from gateway.errors import BackendOverloaded
from gateway.ports import Clock
from gateway.priority import Priority, ShedReason
from gateway.statuses import is_overload
from gateway.upstream.adaptive_concurrency import AdaptiveLimit, SlotTurnover
from gateway.upstream.client_paced import ClientPacedCalls
from gateway.upstream.wait_queue import RETAINED_FACTOR, Ticket, WaitQueue

MAX_RETRY_AFTER_S = 60
MAX_WAIT_S = 60.0  # for a permit: a model may think for ten minutes, but a queue that stands still helps nobody


class ConcurrencyPermit:
    """`ConcurrencyPermit` is the right to have one call in flight. Only the first `release` has an effect."""

    __slots__ = ("_limiter", "acquired_at", "client_paced", "tenant")

    def __init__(self, limiter: ConcurrencyLimiter, tenant: str, acquired_at: float) -> None:
        self._limiter: ConcurrencyLimiter | None = limiter
        self.acquired_at = acquired_at  # monotonic
        self.tenant = tenant
        self.client_paced = False  # its client decides how long it is held, which says nothing about other calls

    def on_response(self, request: RequestContext, status: int) -> None:
        """Record that the response begins.

        A 503 or 529 means overload, which says more than the latency does. (A 429 is about an account's limit.) Other
        errors come faster than normal responses, so their latency does not count.
        """
        call, limiter = request.call, self._limiter
        if limiter is None:
            return
        if is_overload(status):
            limiter.on_overload(self.acquired_at)
        elif status < 400 and call is not None and limiter.adaptive:  # calls of unknown paths cannot be compared
            limiter.on_response((call.operation, call.stream), self.acquired_at)

    def on_timeout(self) -> None:
        """Record that the response did not begin in time."""
        if self._limiter is not None:
            self._limiter.on_overload(self.acquired_at)

    def release(self) -> None:
        limiter, self._limiter = self._limiter, None
        if limiter is not None:
            limiter.on_release(self.tenant, None if self.client_paced else self.acquired_at)
            if self.client_paced:
                limiter.client_paced.leave(self.tenant)


class ConcurrencyLimiter:
    """`ConcurrencyLimiter` grants at most `ceiling` permits at once.

    If it is `adaptive`, it grants fewer permits: as many as keep the backend's latency low. A tenant with
    `tenant_share` of the permits gets no further one while calls of others wait. A call waits at most `max_wait_s`, and
    not beyond its own deadline or `timeouts.total`, and never longer than `MAX_WAIT_S`.
    """

    def __init__(
        self, backend: str, ceiling: int, max_wait_s: float, clock: Clock, *, adaptive: bool, tenant_share: float = 0.5
    ) -> None:
        self._backend = backend
        self.adaptive = adaptive
        self._limit = AdaptiveLimit(ceiling, adaptive=adaptive)
        self._max_wait_s = min(max_wait_s, MAX_WAIT_S)
        self._clock = clock
        self._queue = WaitQueue()
        self._turnover = SlotTurnover()
        self._record_hold = self._turnover.record_hold
        self._admissions: dict[Ticket, asyncio.Future[float]] = {}  # each waiting call -> the time of its grant
        self._numbers = count()
        self.inflight = 0
        self._tenant_share = tenant_share
        self._held: dict[str, int] = {}  # permits of each tenant that has some
        self.client_paced = ClientPacedCalls(lambda: self.tenant_limit)

    @property
    def tenant_limit(self) -> int:
        """The permits that one tenant may hold while calls of others wait, at least one."""
        return max(1, int(self._limit.value * self._tenant_share))

    @property
    def occupancy(self) -> Load:
        return Load(self.inflight, self._limit.value, len(self._queue))

    def wait_s(self, priority: Priority) -> float:
        """Return the seconds that a new call would now wait for a permit."""
        if self._has_room:
            return 0.0
        return self._expected_wait_s(self._queue.calls_ahead(priority))

    @property
    def _has_room(self) -> bool:
        return not self._admissions and self.inflight < self._limit.value

    def acquire_nowait(self, request: RequestContext) -> ConcurrencyPermit | None:
        """Return a permit at once; None if no permit is free or other calls wait."""
        if self._admissions or self.inflight >= self._limit.value:
            return None
        self.inflight += 1
        permits, tenant = self._held, request.client.account
        permits[tenant] = permits.get(tenant, 0) + 1
        return ConcurrencyPermit(self, tenant, self._clock.monotonic())

    async def acquire(self, request: RequestContext) -> ConcurrencyPermit:
        """Return a permit, after a wait if needed. Raise `BackendOverloaded` if there is none in time.

        After that error, another backend may be tried.
        """
        permit = self.acquire_nowait(request)
        if permit is None:
            with request.timer("queue"):
                await self._wait(request)
            permit = ConcurrencyPermit(self, request.client.account, self._clock.monotonic())
        return permit

    async def acquire_client_paced(self, request: RequestContext) -> ConcurrencyPermit:
        """Return a permit for a call whose client decides how long it holds it. Raise `BackendOverloaded`.

        A tenant never holds more of these than its share, because nobody can tell when it gives them back.
        """
        with request.timer("queue"):
            try:
                await self.client_paced.enter(request.client.account, min(self._max_wait_s, request.upstream_left_s))
            except TimeoutError:
                raise self._overload_error(ShedReason.TENANT_SHARE) from None
        try:
            permit = await self.acquire(request)
        except BaseException:
            self.client_paced.leave(request.client.account)
            raise
        permit.client_paced = True
        return permit

    def on_release(self, tenant: str, acquired_at: float | None) -> None:
        """Take back a permit. `acquired_at` is None if the hold time says nothing about other calls."""
        if acquired_at is not None:
            now = self._clock.monotonic()
            self._record_hold(now - acquired_at, now)
        self.inflight -= 1
        permits = self._held
        if permits[tenant] > 1:
            permits[tenant] -= 1
        else:
            del permits[tenant]
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
        wait_until, deadline = now + self._max_wait_s, min(request.due, request.calls.due)
        ticket = Ticket(request.priority, min(wait_until, deadline), next(self._numbers), request.client.account)
        self._enqueue(ticket, deadline, now)
        admission = self._admissions[ticket] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(ticket.due - now):
                given = await admission
            now = self._clock.monotonic()
            self._turnover.record_wakeup(now - given, now)
        except TimeoutError:
            if not _is_granted(admission):  # the grant and the timeout can coincide
                raise self._overload_error(
                    ShedReason.DEADLINE if deadline <= wait_until else ShedReason.WAITED
                ) from None
        except asyncio.CancelledError:
            if _is_granted(admission):
                self.on_release(request.client.account, None)
            raise
        finally:
            self._admissions.pop(ticket, None)
            self._queue.remove(ticket, self._clock.monotonic())

    def _enqueue(self, ticket: Ticket, deadline: float, now: float) -> None:
        """Put the ticket into the queue. Raise `BackendOverloaded` if it may not wait."""
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
        if now + self._expected_wait_s(self._queue.calls_ahead(ticket.priority, ticket.due)) >= deadline:
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
        while (
            self.inflight < self._limit.value
            and (ticket := self._queue.take(now, self._saturated_tenants())) is not None
        ):
            admission = self._admissions.pop(ticket, None)
            if admission is not None and not admission.done():
                self.inflight += 1
                self._held[ticket.tenant] = self._held.get(ticket.tenant, 0) + 1
                self._turnover.on_grant(self._queue.waiting_since, now)
                admission.set_result(now)

    def _saturated_tenants(self) -> set[str]:
        """Return the tenants that hold their share of the permits."""
        most = self.tenant_limit
        return {tenant for tenant, permits in self._held.items() if permits >= most}

    def _refuse(self, ticket: Ticket, reason: ShedReason) -> None:
        admission = self._admissions.pop(ticket, None)
        if admission is not None and not admission.done():
            admission.set_exception(self._overload_error(reason))

    def _expected_wait_s(self, ahead: int) -> float:
        """Return the seconds until `calls_ahead` calls have had their turn and the next permit is free."""
        return (ahead + 1) * self._turnover.slot_interval_s(self._limit.value)

    def _overload_error(self, reason: ShedReason) -> BackendOverloaded:
        waiting = len(self._queue)
        wait_s = self._expected_wait_s(waiting)
        retry_after_s = min(MAX_RETRY_AFTER_S, max(1, ceil(wait_s)))
        reason_text = _REASONS[reason]
        if reason is ShedReason.QUEUE_FULL:
            reason_text = (
                f"{reason_text}: {waiting} requests wait, which the backend serves in {wait_s:.2g} s, "
                f"and {self.inflight} are in flight; see max_concurrency and adaptive"
            )
        return BackendOverloaded(
            f"backend '{self._backend}' is at its concurrency limit ({reason_text})",
            reason,
            retry_after_s,
        )


_REASONS: dict[ShedReason, str] = {
    ShedReason.QUEUE_FULL: "the wait queue is full",
    ShedReason.TENANT_SHARE: "most of the waiting requests, or your share of the permits, are yours; see tenant_share",
    ShedReason.DISPLACED: "another request took its place in the wait queue",
    ShedReason.STANDING: "the wait queue is too long for the backend's current speed",
    ShedReason.DEADLINE: "no permit would be free before the request's deadline",
    ShedReason.WAITED: "no permit became free within the maximum wait",
}


def _is_granted(admission: asyncio.Future[float]) -> bool:
    return admission.done() and not admission.cancelled() and admission.exception() is None


class LimitedBackend:
    """`LimitedBackend` is the part of a `Backend` that reports the load of its concurrency limiter."""

    def __init__(self, name: str, section: BackendSection, clock: Clock) -> None:
        self.name = name
        self._limiter = ConcurrencyLimiter(
            name,
            section.max_concurrency,
            section.timeouts.first_byte,
            clock,
            adaptive=section.adaptive,
            tenant_share=section.tenant_share,
        )

    @property
    def occupancy(self) -> Load:
        return self._limiter.occupancy

    def wait_s(self, priority: Priority) -> float:
        return self._limiter.wait_s(priority)
