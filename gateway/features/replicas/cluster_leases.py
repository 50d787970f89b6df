"""Manage this gateway's leases on a shared store, and watch the leases of others.

A lease is renewed while its call is in flight and released at the end. Each turn sends one operation for all leases.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from functools import partial

from gateway.entries import Entry
from gateway.errors import StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import Claim, Leases
from gateway.tasks import spawn

LOG = logging.getLogger("nearhit.leases")
# A holder that died or was suspended is replaced after TTL_S. Three renewals may be late before that.
TTL_S = 3.0
RENEW_S = 0.75
# Interval of the queries about other gateways' leases, plus or minus a quarter. A stored answer is noticed after 25 ms
# on average, against the seconds that an answer takes. One operation per turn takes 0.2 % of a core.
POLL_S = 0.05
MAX_WATCHED = 1_000  # fingerprints; requests for more do not wait


class ClusterLeases:
    """The leases and the waiting flights of this gateway. It serves one event loop. `rng` returns numbers in [0, 1)."""

    def __init__(self, leases: Leases, telemetry: Telemetry, rng: Callable[[], float] = random.random) -> None:
        self._leases = leases
        self._telemetry = telemetry
        self._rng = rng
        self._active: dict[str, int] = {}
        self._to_release: dict[str, int] = {}  # to release in the next turn
        self._lookups: set[asyncio.Task[Entry | Claim]] = set()
        self._waiters_by_name: dict[str, list[_Waiter]] = {}
        self._release_event, self._watch_event = asyncio.Event(), asyncio.Event()

    @property
    def active(self) -> int:
        """The number of this gateway's flights that hold a lease."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """The number of this gateway's flights that wait for another gateway's."""
        return sum(map(len, self._waiters_by_name.values()))

    async def claim(self, fingerprint: str, since: int | None) -> Claim:
        """Acquire a lease and renew it until `on_stored` or `release`.

        See `Leases.acquire`. Raise `StoreUnavailable`.
        """
        claim = await self._leases.acquire(fingerprint, since)
        if claim.token:
            self._active[fingerprint] = claim.token
        return claim

    async def look_up(self, fingerprint: str) -> Entry | Claim:
        """Return the entry. If there is none, acquire the lease, as `claim`.

        See `Leases.look_up`. Raise `StoreUnavailable`. If the caller leaves, a lease that is granted to it is released.
        """
        lookup = spawn(self._lookups, self._leases.look_up(fingerprint))
        try:
            reply = await asyncio.shield(lookup)
        except asyncio.CancelledError:
            lookup.add_done_callback(partial(self._return_lease, fingerprint))
            raise
        if isinstance(reply, Claim) and reply.token:
            self._active[fingerprint] = reply.token
        return reply

    def _return_lease(self, fingerprint: str, lookup: asyncio.Task[Entry | Claim]) -> None:
        if lookup.cancelled() or lookup.exception() is not None:
            return
        reply = lookup.result()
        if isinstance(reply, Claim) and reply.token:
            self._to_release[fingerprint] = reply.token
            self._release_event.set()

    def is_held(self, fingerprint: str, token: int) -> bool:
        """Return whether this gateway holds the lease."""
        return self._active.get(fingerprint) == token

    def on_stored(self, fingerprint: str, token: int) -> None:
        """Forget a lease: storing the answer has ended it."""
        if self.is_held(fingerprint, token):
            del self._active[fingerprint]

    def release(self, fingerprint: str, token: int) -> None:
        """Release a lease without an answer, in the next turn. If the store fails, the lease expires."""
        if self.is_held(fingerprint, token):
            self._to_release[fingerprint] = self._active.pop(fingerprint)
            self._release_event.set()

    async def wait_released(self, fingerprint: str, holder: int, seconds: float) -> bool:
        """Wait until `holder` no longer has the lease of a fingerprint.

        Return False if that is not known within `seconds`. The call takes longer, the store fails, or too many wait
        already.
        """
        if fingerprint not in self._waiters_by_name and len(self._waiters_by_name) >= MAX_WATCHED:
            return False
        waiter = _Waiter(holder)
        self._waiters_by_name.setdefault(fingerprint, []).append(waiter)
        self._watch_event.set()
        try:
            async with asyncio.timeout(seconds):
                return await waiter.outcome
        except TimeoutError:
            return False
        finally:
            waiters = self._waiters_by_name[fingerprint]
            waiters.remove(waiter)
            if not waiters:
                del self._waiters_by_name[fingerprint]

    async def run(self) -> None:
        """Renew, release and watch until cancelled."""
        async with asyncio.TaskGroup() as group:
            for loop in (self._renew, self._release_ended, self._watch):
                group.create_task(_run_forever(loop))

    async def close(self) -> None:
        """Release the remaining leases, once no flight is left."""
        self._to_release |= self._active
        self._active.clear()
        if self._to_release:
            await self._release_ended()

    async def _renew(self) -> None:
        await asyncio.sleep(RENEW_S)
        active = dict(self._active)
        if not active:
            return
        for name in await self._leases.renew(active):
            if self._active.get(name) == active[name]:  # it may have ended meanwhile
                del self._active[name]
                self._telemetry.crowds.add("lost")

    async def _release_ended(self) -> None:
        if not self._to_release:
            self._release_event.clear()
            await self._release_event.wait()
        ended, self._to_release = self._to_release, {}
        await self._leases.release(ended)

    async def _watch(self) -> None:
        if not self._waiters_by_name:
            self._watch_event.clear()
            await self._watch_event.wait()
        await asyncio.sleep(POLL_S * (0.75 + 0.5 * self._rng()))
        names = list(self._waiters_by_name)
        if not names:
            return
        try:
            holders = await self._leases.holders(names)
        except StoreUnavailable:
            for name in names:
                self._notify(name, over=False)
            raise
        for name, holder in zip(names, holders, strict=True):
            self._notify(name, over=True, current_holder=holder)

    def _notify(self, fingerprint: str, *, over: bool, current_holder: int = 0) -> None:
        for waiter in self._waiters_by_name.get(fingerprint, ()):
            if waiter.holder != current_holder and not waiter.outcome.done():
                waiter.outcome.set_result(over)


class _Waiter:
    def __init__(self, holder: int) -> None:
        self.holder = holder
        self.outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


async def _run_forever(step: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await step()
        except StoreUnavailable as error:  # leases expire by themselves, and puts are fenced
            LOG.warning("the store did not answer about leases", extra={"fields": {"error": str(error)}})
            await asyncio.sleep(POLL_S)
