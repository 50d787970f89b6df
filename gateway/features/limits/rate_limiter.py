"""Enforce limits on the shared store, or locally on this gateway's own share while the store does not answer.

Corrections after a call (actual tokens, released slots) go to the store in batches, and no client waits for them.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Protocol

from gateway.bounded_cache import BoundedCache
from gateway.context import RequestContext
from gateway.errors import LimitReached, StoreUnavailable
from gateway.features.limits.demands import (
    MICROS,
    Cost,
    Demand,
    Meters,
    PacedLimit,
    Return,
    Slot,
    TakeResult,
    left,
    window_of,
)
from gateway.features.limits.evaluation import (
    ALL_ROUTES,
    MAX_CLIENT_RETRY_S,
    LimitRequest,
    rate_limit_headers,
    refused,
    waitable,
)
from gateway.limits import Limits, Per
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock
from gateway.steps.metering import limit_asker

LOG = logging.getLogger("nearhit.limits")

HEARTBEAT_S = 10.0  # seconds; a third of a slot's lifetime in the store

RETRY_S = 1.0  # seconds; the interval at which the store's breaker probes

BATCH = 256  # corrections per operation

# Seconds. Corrections are gathered this long. If a request would be refused without them, they are sent at once.
FLUSH_DELAY_S = 0.005

# Corrections that wait for the store. Beyond it the oldest are lost, to the tenant's disadvantage.
MAX_PENDING = 10_000

MAX_SEEN = 1_000  # limits whose usage is shown to operators

# Seconds for which a call waits until calls in flight are settled, and the calls that wait. Others are refused at once.
MAX_WAIT_S, MAX_QUEUED = 10.0, 1_000

POLL_S = 0.25  # seconds after which the first call that waits tries again: other gateways settle without a word


class QuotaStore(Protocol):
    """The port to the limit counts. It uses its own clock. Every method raises `StoreUnavailable`. Counts expire."""

    async def take(self, demands: Sequence[Demand]) -> TakeResult:
        """Meet all demands at once, or none."""

    async def settle(self, returns: Sequence[Return]) -> None:
        """Correct earlier demands."""

    async def beat(self, gateway: str, places: Sequence[tuple[str, str]]) -> int:
        """Report this gateway as alive, and prolong its places (key, member), which otherwise expire. Return the number
        of gateways alive, including this one."""


class _Queue:
    """The calls that wait for one limit. The first of them holds the turn."""

    __slots__ = ("length", "settled", "turn")

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.settled = asyncio.Event()
        self.length = 0


@dataclass(frozen=True, slots=True)
class Grant:
    taken: TakeResult
    local: bool  # decided by this gateway, as the store did not answer


@dataclass(frozen=True, slots=True)
class LimitUsage:
    """The rest of a limit at its last use."""

    route: str
    per: str
    subject: str
    limit: str
    said: str
    left: float  # in the limit's own units; caps: US dollars; large_share: the share of large calls
    refused: int
    at: float  # wall clock, seconds


class RateLimiter:
    """`RateLimiter` enforces the limits of all routes.

    It serves one event loop and needs its task `run`. `gateways` stays 1 until the store reports more.
    """

    def __init__(self, store: QuotaStore, clock: Clock, telemetry: Telemetry) -> None:
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._name = secrets.token_hex(8)
        self._numbers = count()
        self._meters = Meters()
        self._pending: deque[Return] = deque()
        self._unsettled: Counter[str] = Counter()  # corrections by key that are not in the store yet
        self._owed: Counter[str] = Counter()  # of these, those of calls that cost more than was reserved
        self._queues: dict[str, _Queue] = {}
        self._queued = 0
        self._flush_lock = asyncio.Lock()
        self._usage: BoundedCache[str, LimitUsage] = BoundedCache(MAX_SEEN)
        self._wakeup = asyncio.Event()
        self._used = False
        self.gateways = 1  # gateways on the store, by its last report

    @property
    def waiting(self) -> int:
        """The number of corrections that are not in the store yet."""
        return self._unsettled.total()

    def member(self) -> str:
        """Return a name for one call, unique among all gateways."""
        return f"{self._name}-{next(self._numbers)}"

    async def take(self, demands: Sequence[Demand]) -> Grant:
        """Take demands. Never fail: without the store, this gateway's own share decides."""
        if not self._used:
            self._used = True
            self._wakeup.set()
        try:
            if any(demand.key in self._owed for demand in demands):
                await self.flush()
            unsettled = self._has_unsettled(demands)  # the store may receive them right after it has refused
            taken = await self._store.take(demands)
            if not taken.granted and (unsettled or self._has_unsettled(demands)):
                await self.flush()  # a pending correction may be the missing part
                taken = await self._store.take(demands)
        except StoreUnavailable as error:
            LOG.debug("the store did not answer, limits are enforced locally", extra={"fields": {"error": str(error)}})
            return self._take_locally(demands)
        except Exception as error:
            self._telemetry.failures.record("RateLimit", error)
            return self._take_locally(demands)
        except BaseException:  # the client has left, and the store may or may not have granted the slots
            self._release_slots(demands)
            raise
        if taken.granted:
            now, _ = self._now()
            for demand, observed in zip(demands, taken.observed, strict=True):
                self._meters.observe(demand, observed, now, taken.at_us)
        return Grant(taken, local=False)

    def _take_locally(self, demands: Sequence[Demand]) -> Grant:
        self._release_slots(demands)
        now, wall = self._now()
        return Grant(self._meters.take(demands, now, wall, self.gateways), local=True)

    def settle(self, grant: Grant, demands: Sequence[Demand], returns: Sequence[Return]) -> None:
        """Queue the corrections of a grant."""
        now, _ = self._now()
        self._meters.settle(returns, now)
        for item in returns if self._queues else ():
            if (queue := self._queues.get(item.key)) is not None:
                queue.settled.set()
        if grant.local:
            returns = _local_spend(demands, grant.taken, returns)
        self._add(returns)

    def refund(self, grant: Grant, returns: Sequence[Return]) -> None:
        """Queue the unused part of a grant that is settled later."""
        self._meters.settle(returns, self._now()[0])
        if not grant.local:
            self._add(returns)

    def has_queue(self, requests: Sequence[LimitRequest]) -> str | None:
        """Return the key of a limit for which calls wait already, among those of a call."""
        return next((a.demand.key for a in requests if a.demand.key in self._queues), None) if self._queues else None

    async def take_in_turn(
        self, key: str, ask: Callable[[], Sequence[LimitRequest]], until: float
    ) -> tuple[Sequence[LimitRequest], Grant]:
        """Take demands once calls in flight leave enough of the limit `key`, the first to come first. `ask` returns the
        demands, which may become smaller as answers are seen. `until` is by the clock of the event loop. Return the
        last attempt."""
        queue = self._queues.setdefault(key, _Queue())
        queue.length, self._queued = queue.length + 1, self._queued + 1
        try:
            if self._queued <= MAX_QUEUED and await _acquired(queue.turn, until):
                try:
                    return await self._retry(queue, ask, until)
                finally:
                    queue.turn.release()
            requests = ask()
            return requests, await self.take([a.demand for a in requests])
        finally:
            queue.length, self._queued = queue.length - 1, self._queued - 1
            if not queue.length:
                del self._queues[key]

    async def _retry(
        self, queue: _Queue, ask: Callable[[], Sequence[LimitRequest]], until: float
    ) -> tuple[Sequence[LimitRequest], Grant]:
        loop = asyncio.get_running_loop()
        while True:
            queue.settled.clear()
            requests = ask()
            grant = await self.take([a.demand for a in requests])
            if grant.taken.granted or waitable(requests, grant.taken) is None or loop.time() >= until:
                return requests, grant
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, loop.time() + POLL_S)):
                    await queue.settled.wait()

    def record(self, route: str, requests: Sequence[LimitRequest], taken: TakeResult) -> None:
        """Keep the usage for operators."""
        wall = self._clock.wall()
        for a, observed in zip(requests, taken.observed, strict=True):
            previous = self._usage.peek(a.demand.key)
            refused = (previous.refused if previous else 0) + (not observed.ok)
            remaining = (
                observed.level / MICROS if a.limit == "large_share" else left(a.demand, observed, taken=taken.granted)
            )
            if a.limit == "cost":
                remaining /= MICROS
            scope = ALL_ROUTES if a.is_global else route
            usage = LimitUsage(scope, a.per, a.subject, a.limit, a.rule_text, remaining, refused, wall)
            self._usage.put(a.demand.key, usage)

    def usage(self, limit: int) -> list[LimitUsage]:
        """Return the limits with the most refusals first, then the most recent ones."""
        return sorted(self._usage.values(), key=lambda s: (-s.refused, -s.at))[:limit]

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        beat_at, wait_s = loop.time(), None
        while True:
            try:
                async with asyncio.timeout(wait_s):
                    await self._wakeup.wait()
            except TimeoutError:
                pass
            await asyncio.sleep(FLUSH_DELAY_S)
            self._wakeup.clear()
            delivered = await self.flush()
            if loop.time() >= beat_at:
                delivered = await self._beat() and delivered
                beat_at = loop.time() + (HEARTBEAT_S if delivered else RETRY_S)
            if not delivered:
                await asyncio.sleep(RETRY_S)
            wait_s = max(0.0, beat_at - loop.time())

    async def close(self) -> None:
        """Send the pending corrections once more. The rest expires in the store."""
        await self.flush()

    async def flush(self) -> bool:
        """Send pending corrections. Return False where the store did not answer.

        Then spending and released slots are sent again later. Other corrections are lost.
        """
        async with self._flush_lock:
            while self._pending:
                batch = [self._pending.popleft() for _ in range(min(BATCH, len(self._pending)))]
                delivered = False
                try:
                    await self._store.settle(batch)
                    delivered = True
                except StoreUnavailable:
                    return False
                finally:  # also if the client that waited for this has left
                    for item in batch:
                        self._mark_settled(item)
                    if not delivered:
                        self._add([r for r in batch if _must_settle(r)], wake=False)
            return True

    async def _beat(self) -> bool:
        try:
            self.gateways = max(1, await self._store.beat(self._name, self._meters.places()))
        except StoreUnavailable:
            return False  # keep the last known number
        return True

    def _has_unsettled(self, demands: Sequence[Demand]) -> bool:
        return any(demand.key in self._unsettled for demand in demands)

    def _mark_settled(self, item: Return) -> None:
        """Remove one correction from the count. O(1), as every new one drops an old one while the store is down."""
        if item.amount > item.reserved and item.kind != "place":
            self._owed[item.key] -= 1
            if self._owed[item.key] <= 0:
                del self._owed[item.key]
        self._unsettled[item.key] -= 1
        if self._unsettled[item.key] <= 0:
            del self._unsettled[item.key]

    def _add(self, returns: Sequence[Return], *, wake: bool = True) -> None:
        for item in returns:
            if len(self._pending) >= MAX_PENDING:
                self._mark_settled(self._pending.popleft())
            self._pending.append(item)
            self._unsettled[item.key] += 1
            if item.amount > item.reserved and item.kind != "place":
                self._owed[item.key] += 1
        if returns and wake:
            self._wakeup.set()

    def _release_slots(self, demands: Sequence[Demand]) -> None:
        """Release slots and reservations that the store may have granted and that no call will use."""
        self._add([Return("place", d.key, of=d.member) for d in demands if isinstance(d, Slot)])
        _, wall = self._now()
        for d in demands:
            if isinstance(d, PacedLimit) and d.member:
                self._add([Return("pace", d.key, reservation=d.reservation)])
            elif isinstance(d, Cost) and d.member:
                self._add([Return("spend", d.key, 0.0, window_of(d.window, wall), d.reservation)])

    def _now(self) -> tuple[int, int]:
        return int(self._clock.monotonic() * MICROS), int(self._clock.wall() * MICROS)


async def _acquired(turn: asyncio.Lock, until: float) -> bool:
    """Return whether the turn has come by `until`, which is event-loop time."""
    try:
        async with asyncio.timeout_at(until):
            return await turn.acquire()
    except TimeoutError:
        return False


def _must_settle(item: Return) -> bool:
    """Return whether a correction is sent again. A reservation of a rate ends by itself."""
    return item.kind == "place" or (item.kind == "spend" and (item.amount > 0 or bool(item.reservation)))


def _local_spend(demands: Sequence[Demand], taken: TakeResult, returns: Sequence[Return]) -> list[Return]:
    """Return the corrections for a local grant: its whole cost. Rates have refilled by then."""
    changes: Mapping[str, float] = {item.key: item.amount - item.reserved for item in returns if item.kind == "spend"}
    return [
        Return("spend", d.key, d.amount + changes.get(d.key, 0.0), window_of(d.window, taken.at_us))
        for d in demands
        if isinstance(d, Cost)
    ]


def key_limits(request: RequestContext) -> tuple[tuple[Limits, ...], Mapping[Per, str]]:
    """Return the limits of the request's API key, and their subject."""
    permit = request.client.permit
    return ((), {}) if permit is None or request.work.internal else (permit.limits, {"key": permit.id})


async def take_limits(
    request: RequestContext,
    route: str,
    ask: Callable[[], Sequence[LimitRequest]],
    quotas: RateLimiter,
    telemetry: Telemetry,
) -> tuple[Sequence[LimitRequest], Grant]:
    """Take limits for a request. `ask` returns its demands. A call that does not fit next to what calls in flight have
    reserved waits until they are settled, at most `MAX_WAIT_S`. Raise `LimitReached`."""
    with request.timer("limits"):
        requests = ask()
        key = quotas.has_queue(requests)
        if key is None:
            grant = await quotas.take([a.demand for a in requests])
            key = None if grant.taken.granted else waitable(requests, grant.taken)
        if key is not None:
            wait_s = min(MAX_WAIT_S, max(0.0, request.due - request.clock.monotonic()))
            requests, grant = await quotas.take_in_turn(key, ask, asyncio.get_running_loop().time() + wait_s)
    if grant.local:
        telemetry.limits_local.add(route)
    try:
        quotas.record(route, requests, grant.taken)
    except Exception as error:  # only operators see it
        telemetry.failures.record("RateLimit", error)
    if grant.taken.granted:
        return requests, grant
    limit, sentence, seconds = refused(route, requests, grant.taken)
    telemetry.limited.add(route, limit.limit)
    headers = rate_limit_headers(requests, grant.taken)
    if seconds > MAX_CLIENT_RETRY_S:
        headers += (("x-should-retry", "false"),)  # OpenAI's clients obey it
    raise LimitReached(sentence, retry_after_s=seconds, asker=limit_asker(request), headers=headers)
