"""The leases of this gateway on a store that others share: renewed while their flights are in the air, given back when
they end; and the watch over those that others hold. One operation a turn for all of them, however many there are."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable

from gateway.errors import StoreUnavailable
from gateway.observability.telemetry import Telemetry
from gateway.ports import Claim, Leases

LOG = logging.getLogger("nearhit.leases")
# A holder that dies, or is stopped, is replaced after so long. Three renewals may be late before that.
TTL_S = 3.0
RENEW_S = 0.75
# How often the store is asked about leases that others hold, give or take a quarter: what has landed is noticed after
# 25 ms on average, beside the seconds that an answer takes. An operation a turn: 0.2 % of a core.
POLL_S = 0.05
MAX_WATCHED = 1_000  # fingerprints; who comes beyond does not wait


class ClusterLeases:
    """To be used from one event loop. `rng` gives numbers in [0, 1)."""

    def __init__(self, leases: Leases, telemetry: Telemetry, rng: Callable[[], float] = random.random) -> None:
        self._leases = leases
        self._telemetry = telemetry
        self._rng = rng
        self._active: dict[str, int] = {}
        self._to_release: dict[str, int] = {}  # to be given back
        self._waiters_by_name: dict[str, list[_Waiter]] = {}
        self._release_event, self._watch_event = asyncio.Event(), asyncio.Event()

    @property
    def active(self) -> int:
        """How many flights of this gateway are in the air with a lease."""
        return len(self._active)

    @property
    def waiting(self) -> int:
        """How many flights of this gateway wait for another's."""
        return sum(map(len, self._waiters_by_name.values()))

    async def claim(self, fingerprint: str, since: int | None) -> Claim:
        """As `Leases.acquire`; what was given is renewed until `on_stored` or `release`. Raises `StoreUnavailable`."""
        claim = await self._leases.acquire(fingerprint, since)
        if claim.token:
            self._active[fingerprint] = claim.token
        return claim

    def is_held(self, fingerprint: str, token: int) -> bool:
        """Whether this gateway holds it."""
        return self._active.get(fingerprint) == token

    def on_stored(self, fingerprint: str, token: int) -> None:
        """An answer has been stored, and the lease has ended with it."""
        if self.is_held(fingerprint, token):
            del self._active[fingerprint]

    def release(self, fingerprint: str, token: int) -> None:
        """Ends a lease without an answer, soon. One that cannot be given back expires."""
        if self.is_held(fingerprint, token):
            self._to_release[fingerprint] = self._active.pop(fingerprint)
            self._release_event.set()

    async def over(self, fingerprint: str, holder: int, seconds: float) -> bool:
        """Waits until the lease of that fingerprint is no longer `holder`'s. False where that is not known within
        `seconds`: it takes longer, the store cannot be asked, or too many wait already."""
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
        """Renews, gives back and watches, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for loop in (self._renew, self._release_ended, self._watch):
                group.create_task(_run_forever(loop))

    async def close(self) -> None:
        """Gives back what is left, once no flight is in the air any more."""
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
            LOG.warning("the leases could not be looked after", extra={"fields": {"error": str(error)}})
            await asyncio.sleep(POLL_S)
