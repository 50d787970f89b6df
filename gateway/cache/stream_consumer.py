"""Follows a log from a position, for ever: in order, each change once or, after a failure, once more."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gateway.errors import StoreUnavailable
from gateway.ports import ChangeLog, Clock, EntryPage, StoreChange

LOG = logging.getLogger("nearhit.replication")
# Between two readings while changes come: they gather into one, which costs as much as one of them. What it adds to the
# lag is half of it on average.
BATCH_DELAY_S = 0.02
RETRY_S, FAULT_S = 0.5, 5.0


@dataclass(frozen=True, slots=True)
class Lag:
    """How far behind the log's end: 0 of both with all of it applied."""

    entries: int
    seconds: float  # age of the oldest change that may be unknown


class StreamConsumer:
    """`apply` is given changes in order; where it raises `StoreUnavailable` it is given them again. `missed` is told
    that some are gone, before what came after them is read. `on_lag` hears how far it is."""

    def __init__(
        self,
        log: ChangeLog,
        clock: Clock,
        *,
        apply: Callable[[Sequence[StoreChange], float], Awaitable[None]],
        missed: Callable[[], None],
        on_lag: Callable[[Lag], None],
    ) -> None:
        self._log = log
        self._clock = clock
        self._apply = apply
        self._on_gap = missed
        self._on_lag = on_lag
        self._started = asyncio.Event()
        self._step_lock = asyncio.Lock()
        self._caught_up_at = clock.monotonic()  # when all there was had been applied
        self._applied_count: int | None = None  # changes of all that were ever made; None: not known yet
        self.position: str | None = None  # all up to here has been applied; None: it has not begun

    async def start_from_end(self) -> None:
        """What there is by now is known by other means. Raises `StoreUnavailable`."""
        self.position = await self._log.end()
        self._started.set()

    async def start_from_oldest(self) -> None:
        """Behind the oldest change that is still there. Raises `StoreUnavailable`."""
        self.position = await self._log.oldest()
        self._started.set()

    async def resume(self, position: str | None) -> bool:
        """From there on, if nothing after it is gone: returns at the end of the log. Raises `StoreUnavailable`."""
        if position is None:
            return False
        page = await self._log.read(position)
        if page.missed or page.added == 0:  # without a past it does not tell a new store from one that has lost all
            return False
        self.position = position
        while (await self.step()).more:
            pass
        self._started.set()
        return True

    async def run(self) -> None:
        """Waits for its beginning, and goes on until it is cancelled."""
        await self._started.wait()
        while True:
            try:
                page = await self.step()
                if page.changes or page.missed:
                    await asyncio.sleep(0 if page.more else BATCH_DELAY_S)
                else:
                    await self._log.wait(page.position)
            except StoreUnavailable as error:
                LOG.debug("the log of changes is not read", extra={"fields": {"error": str(error)}})
                await self._back_off(RETRY_S)
            except Exception:  # whatever it is, what comes after it must not be missed in silence
                LOG.exception("changes could not be applied")
                await self._back_off(FAULT_S)

    async def _back_off(self, seconds: float) -> None:
        self._on_lag(Lag(0, self._clock.monotonic() - self._caught_up_at))
        await asyncio.sleep(seconds)

    async def step(self) -> EntryPage:
        """Applies what comes next. Raises `StoreUnavailable`; then it comes again."""
        async with self._step_lock:
            return await self._step()

    async def _step(self) -> EntryPage:
        assert self.position is not None
        page = await self._log.read(self.position)
        if page.missed:
            self._applied_count = None
            self._on_gap()
        elif page.changes:
            await self._apply(page.changes, page.now)
        self.position = page.position
        if page.more:
            remaining = (
                page.kept if self._applied_count is None else page.added - self._applied_count - len(page.changes)
            )
            self._applied_count = page.added - remaining
            self._on_lag(Lag(remaining, max(0.0, page.now - page.changes[-1].at)))
        else:
            self._applied_count = page.added
            self._caught_up_at = self._clock.monotonic()
            self._on_lag(Lag(0, 0.0))
        return page
