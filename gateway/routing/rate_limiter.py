"""The limits of this gateway: asked of the store that all gateways share, and of its own part where that is silent.

What is put right afterwards (real tokens, places that are left) goes to the store in batches that no client waits for.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import count

from gateway.bounded_cache import BoundedCache
from gateway.context import RequestContext
from gateway.credentials import key_of
from gateway.errors import LimitReached, StoreUnavailable
from gateway.limits import MICROS, Cost, Demand, Limits, Meters, Per, Return, Slot, TakeResult, left, window_of
from gateway.observability.telemetry import Telemetry
from gateway.ports import Clock, QuotaStore
from gateway.routing.limit_evaluation import (
    ALL_ROUTES,
    MAX_CLIENT_RETRY_S,
    LimitRequest,
    rate_limit_headers,
    refused,
    subjects,
)

LOG = logging.getLogger("nearhit.limits")

HEARTBEAT_S = 10.0  # a third of what a place lasts in the store

RETRY_S = 1.0  # as the store's breaker probes

BATCH = 256  # returns an operation

# So long returns are gathered for one operation; who would be refused for want of them has them told at once.
FLUSH_DELAY_S = 0.005

MAX_PENDING = 10_000  # returns that wait for the store; beyond it the oldest are lost, which errs against the tenant

MAX_SEEN = 1_000  # of those that are shown


@dataclass(frozen=True, slots=True)
class Grant:
    taken: TakeResult
    local: bool  # decided here, since the store did not answer


@dataclass(frozen=True, slots=True)
class LimitUsage:
    """What was left of a limit when it was last asked."""

    route: str
    per: str
    subject: str
    limit: str
    said: str
    left: float  # in the limit's own units; of caps dollars; of large_share: the share of large ones
    refused: int
    at: float  # wall clock, seconds


class RateLimiter:
    """To be used from one event loop; `run` beside it. One gateway: `gateways` stays 1 until the store says more."""

    def __init__(self, store: QuotaStore, clock: Clock, telemetry: Telemetry) -> None:
        self._store = store
        self._clock = clock
        self._telemetry = telemetry
        self._name = secrets.token_hex(8)
        self._numbers = count()
        self._meters = Meters()
        self._pending: deque[Return] = deque()
        self._unsettled: Counter[str] = Counter()  # returns by key that the store has not heard of
        self._flush_lock = asyncio.Lock()
        self._usage: BoundedCache[str, LimitUsage] = BoundedCache(MAX_SEEN)
        self._wakeup = asyncio.Event()
        self._used = False
        self.gateways = 1  # alive on the store, as it said last

    @property
    def waiting(self) -> int:
        """Returns that the store has not heard of yet."""
        return self._unsettled.total()

    def member(self) -> str:
        """A name for one call, unique among all gateways."""
        return f"{self._name}-{next(self._numbers)}"

    async def take(self, demands: Sequence[Demand]) -> Grant:
        """Never fails: where the store is silent, this gateway's own part decides."""
        if not self._used:
            self._used = True
            self._wakeup.set()
        try:
            unsettled = self._has_unsettled(demands)  # the store may hear of it right after it has refused
            taken = await self._store.take(demands)
            if not taken.granted and (unsettled or self._has_unsettled(demands)):
                await self.flush()  # what has just been given back may be what is missing
                taken = await self._store.take(demands)
        except StoreUnavailable as error:
            self._release_slots(demands)
            LOG.debug("limits are held locally", extra={"fields": {"error": str(error)}})
            now, wall = self._now()
            return Grant(self._meters.take(demands, now, wall, self.gateways), local=True)
        except BaseException:  # the client has left; whether the store heard, nobody knows
            self._release_slots(demands)
            raise
        if taken.granted:
            now, _ = self._now()
            for demand, observed in zip(demands, taken.observed, strict=True):
                self._meters.saw(demand, observed, now, taken.at_us)
        return Grant(taken, local=False)

    def settle(self, grant: Grant, demands: Sequence[Demand], returns: Sequence[Return]) -> None:
        """Puts right what was granted, soon."""
        now, _ = self._now()
        self._meters.settle(returns, now)
        if grant.local:
            returns = _local_spend(demands, grant.taken, returns)
        self._add(returns)

    def refund(self, grant: Grant, returns: Sequence[Return]) -> None:
        """What was not used of a grant that is still to be settled."""
        self._meters.settle(returns, self._now()[0])
        if not grant.local:
            self._add(returns)

    def record(self, route: str, asked: Sequence[LimitRequest], taken: TakeResult) -> None:
        """Keeps what is shown to operators."""
        wall = self._clock.wall()
        for a, observed in zip(asked, taken.observed, strict=True):
            previous = self._usage.peek(a.demand.key)
            refused = (previous.refused if previous else 0) + (not observed.ok)
            remaining = (
                observed.level / MICROS if a.limit == "large_share" else left(a.demand, observed, taken=taken.granted)
            )
            if a.limit == "cost":
                remaining /= MICROS
            scope = ALL_ROUTES if a.is_global else route
            usage = LimitUsage(scope, a.per, a.subject, a.limit, a.said, remaining, refused, wall)
            self._usage.put(a.demand.key, usage)

    def usage(self, limit: int) -> list[LimitUsage]:
        """Those that were refused most, then the latest."""
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
        """Says what it can to the store; what that does not hear expires."""
        await self.flush()

    async def flush(self) -> bool:
        """Says to the store what waits. False where it did not answer: what was to be given back is lost then, what is
        owed and the places that are left are said again."""
        async with self._flush_lock:
            while self._pending:
                batch = [self._pending.popleft() for _ in range(min(BATCH, len(self._pending)))]
                delivered = False
                try:
                    await self._store.settle(batch)
                    delivered = True
                except StoreUnavailable:
                    return False
                finally:  # also where the client that waited for this has left
                    for item in batch:
                        self._mark_settled(item)
                    if not delivered:
                        self._add([r for r in batch if _must_settle(r)], wake=False)
            return True

    async def _beat(self) -> bool:
        try:
            self.gateways = max(1, await self._store.beat(self._name, self._meters.places()))
        except StoreUnavailable:
            return False  # the last known number stands
        return True

    def _has_unsettled(self, demands: Sequence[Demand]) -> bool:
        return any(demand.key in self._unsettled for demand in demands)

    def _mark_settled(self, item: Return) -> None:
        """Of that one return. Without a look at all others: while the store is away each new one makes one room."""
        self._unsettled[item.key] -= 1
        if self._unsettled[item.key] <= 0:
            del self._unsettled[item.key]

    def _add(self, returns: Sequence[Return], *, wake: bool = True) -> None:
        for item in returns:
            if len(self._pending) >= MAX_PENDING:
                self._mark_settled(self._pending.popleft())
            self._pending.append(item)
            self._unsettled[item.key] += 1
        if returns and wake:
            self._wakeup.set()

    def _release_slots(self, demands: Sequence[Demand]) -> None:
        """A place that the store may have given, and that nobody will leave."""
        self._add([Return("place", d.key, of=d.member) for d in demands if isinstance(d, Slot)])

    def _now(self) -> tuple[int, int]:
        return int(self._clock.monotonic() * MICROS), int(self._clock.wall() * MICROS)


def _must_settle(item: Return) -> bool:
    return item.kind == "place" or (item.kind == "spend" and item.amount > 0)


def _local_spend(demands: Sequence[Demand], taken: TakeResult, returns: Sequence[Return]) -> list[Return]:
    """What was granted here, as the store has to hear of it: what was spent, whole. Rates have moved on by then."""
    changes: Mapping[str, float] = {item.key: item.amount for item in returns if item.kind == "spend"}
    return [
        Return("spend", d.key, d.amount + changes.get(d.key, 0.0), window_of(d.window, taken.at_us))
        for d in demands
        if isinstance(d, Cost)
    ]


# What a request takes of the limits that hold for it, and for whom it counts.
def limit_subjects(request: RequestContext) -> Mapping[Per, str]:
    permit = request.permit
    # A key has one id before and after a rotation.
    key = permit.id if permit is not None and permit.id else key_of(request.headers)
    return subjects(request.tenant, None if request.call is None else request.call.user, key)


def key_limits(request: RequestContext) -> tuple[tuple[Limits, ...], Mapping[Per, str]]:
    """The limits of its API key, and whom they count for."""
    permit = request.permit
    return ((), {}) if permit is None or request.internal else (permit.limits, {"key": permit.id})


def limit_asker(request: RequestContext) -> str:
    """For whom a limit was reached: another asker may have more left."""
    return "\n".join(limit_subjects(request).values())


async def take_limits(
    request: RequestContext, route: str, asked: Sequence[LimitRequest], quotas: RateLimiter, telemetry: Telemetry
) -> Grant:
    """Raises `LimitReached`."""
    with request.timer("limits"):
        grant = await quotas.take([a.demand for a in asked])
    if grant.local:
        telemetry.limits_local.add(route)
    quotas.record(route, asked, grant.taken)
    if grant.taken.granted:
        return grant
    limit, sentence, seconds = refused(route, asked, grant.taken)
    telemetry.limited.add(route, limit.limit)
    headers = rate_limit_headers(asked, grant.taken)
    if seconds > MAX_CLIENT_RETRY_S:
        headers += (("x-should-retry", "false"),)  # OpenAI's clients heed it
    raise LimitReached(sentence, retry_after_s=seconds, asker=limit_asker(request), headers=headers)
