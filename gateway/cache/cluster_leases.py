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
MAX_AWAITED = 1_000  # fingerprints; who comes beyond does not wait


class ClusterLeases:
    """To be used from one event loop. `draw` gives numbers in [0, 1)."""

    def __init__(self, leases: Leases, telemetry: Telemetry, draw: Callable[[], float] = random.random) -> None:
        self._leases = leases
        self._telemetry = telemetry
        self._draw = draw
        self._held: dict[str, int] = {}
        self._ended: dict[str, int] = {}  # to be given back
        self._awaited: dict[str, list[_Waiter]] = {}
        self._ending, self._watching = asyncio.Event(), asyncio.Event()

    @property
    def held(self) -> int:
        """How many flights of this gateway are in the air with a lease."""
        return len(self._held)

    @property
    def awaited(self) -> int:
        """How many flights of this gateway wait for another's."""
        return sum(map(len, self._awaited.values()))

    async def claim(self, fingerprint: str, since: int | None) -> Claim:
        """As `Leases.acquire`; what was given is renewed until `settled` or `give_back`. Raises `StoreUnavailable`."""
        claim = await self._leases.acquire(fingerprint, since)
        if claim.token:
            self._held[fingerprint] = claim.token
        return claim

    def ours(self, fingerprint: str, token: int) -> bool:
        """Whether this gateway holds it."""
        return self._held.get(fingerprint) == token

    def settled(self, fingerprint: str, token: int) -> None:
        """An answer has been stored, and the lease has ended with it."""
        if self.ours(fingerprint, token):
            del self._held[fingerprint]

    def give_back(self, fingerprint: str, token: int) -> None:
        """Ends a lease without an answer, soon. One that cannot be given back expires."""
        if self.ours(fingerprint, token):
            self._ended[fingerprint] = self._held.pop(fingerprint)
            self._ending.set()

    async def over(self, fingerprint: str, holder: int, seconds: float) -> bool:
        """Waits until the lease of that fingerprint is no longer `holder`'s. False where that is not known within
        `seconds`: it takes longer, the store cannot be asked, or too many wait already."""
        if fingerprint not in self._awaited and len(self._awaited) >= MAX_AWAITED:
            return False
        waiter = _Waiter(holder)
        self._awaited.setdefault(fingerprint, []).append(waiter)
        self._watching.set()
        try:
            async with asyncio.timeout(seconds):
                return await waiter.told
        except TimeoutError:
            return False
        finally:
            waiters = self._awaited[fingerprint]
            waiters.remove(waiter)
            if not waiters:
                del self._awaited[fingerprint]

    async def run(self) -> None:
        """Renews, gives back and watches, until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            for loop in (self._renew, self._give_back, self._watch):
                group.create_task(_again_and_again(loop))

    async def close(self) -> None:
        """Gives back what is left, once no flight is in the air any more."""
        self._ended |= self._held
        self._held.clear()
        if self._ended:
            await self._give_back()

    async def _renew(self) -> None:
        await asyncio.sleep(RENEW_S)
        held = dict(self._held)
        if not held:
            return
        for name in await self._leases.renew(held):
            if self._held.get(name) == held[name]:  # it may have ended meanwhile
                del self._held[name]
                self._telemetry.crowds.add("lost")

    async def _give_back(self) -> None:
        if not self._ended:
            self._ending.clear()
            await self._ending.wait()
        ended, self._ended = self._ended, {}
        await self._leases.release(ended)

    async def _watch(self) -> None:
        if not self._awaited:
            self._watching.clear()
            await self._watching.wait()
        await asyncio.sleep(POLL_S * (0.75 + 0.5 * self._draw()))
        names = list(self._awaited)
        if not names:
            return
        try:
            holders = await self._leases.holders(names)
        except StoreUnavailable:
            for name in names:
                self._tell(name, over=False)
            raise
        for name, holder in zip(names, holders, strict=True):
            self._tell(name, over=True, but=holder)

    def _tell(self, fingerprint: str, *, over: bool, but: int = 0) -> None:
        for waiter in self._awaited.get(fingerprint, ()):
            if waiter.holder != but and not waiter.told.done():
                waiter.told.set_result(over)


class _Waiter:
    def __init__(self, holder: int) -> None:
        self.holder = holder
        self.told: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


async def _again_and_again(step: Callable[[], Awaitable[None]]) -> None:
    while True:
        try:
            await step()
        except StoreUnavailable as error:  # leases expire by themselves, and puts are fenced
            LOG.warning("the leases could not be looked after", extra={"fields": {"error": str(error)}})
            await asyncio.sleep(POLL_S)
