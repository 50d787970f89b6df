"""Follow a log from a position, in order. Each change is applied once, or again after a failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from gateway.errors import StoreUnavailable
from gateway.ports import ChangeLog, Clock, EntryPage, StoreChange

LOG = logging.getLogger("nearhit.replication")
# Seconds between two reads while changes come: they gather into one read, which costs as much as one of them. On
# average this adds half of it to the lag.
BATCH_DELAY_S = 0.02
RETRY_S, FAULT_S = 0.5, 5.0


@dataclass(frozen=True, slots=True)
class Lag:
    """The distance to the log's end: 0 entries and 0 seconds if all is applied."""

    entries: int
    seconds: float  # age of the oldest change that may be unknown


class StreamConsumer:
    """`StreamConsumer` reads a log and applies its changes.

    `apply` gets changes in order, and gets them again after it raised `StoreUnavailable`. `missed` is called if changes
    were lost, before later ones are read. `on_lag` gets the current lag.
    """

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
        self._caught_up_at = clock.monotonic()  # the last time when all changes were applied
        self._applied_count: int | None = None  # of all changes ever made; None: not known yet
        self.position: str | None = None  # all changes up to here are applied; None: not started

    async def start_from_end(self) -> None:
        """Start at the end, as earlier changes are known by other means. Raise `StoreUnavailable`."""
        self.position = await self._log.end()
        self._started.set()

    async def start_from_oldest(self) -> None:
        """Start before the oldest change that is still in the log. Raise `StoreUnavailable`."""
        self.position = await self._log.oldest()
        self._started.set()

    async def resume(self, position: str | None) -> bool:
        """Start at a position if no later change was lost, and return at the log's end. Raise `StoreUnavailable`."""
        if position is None:
            return False
        page = await self._log.read(position)
        if page.missed or page.added == 0:  # an empty log may be new or have lost everything
            return False
        self.position = position
        while (await self.step()).more:
            pass
        self._started.set()
        return True

    async def run(self) -> None:
        """Wait for a start, then follow the log until cancelled."""
        await self._started.wait()
        while True:
            try:
                page = await self.step()
                if page.changes or page.missed:
                    await asyncio.sleep(0 if page.more else BATCH_DELAY_S)
                else:
                    await self._log.wait(page.position)
            except StoreUnavailable as error:
                LOG.debug("the log of changes could not be read", extra={"fields": {"error": str(error)}})
                await self._back_off(RETRY_S)
            except Exception:  # any other error: later changes must not be missed silently
                LOG.exception("changes could not be applied")
                await self._back_off(FAULT_S)

    async def _back_off(self, seconds: float) -> None:
        self._on_lag(Lag(0, self._clock.monotonic() - self._caught_up_at))
        await asyncio.sleep(seconds)

    async def step(self) -> EntryPage:
        """Apply the next changes. Raise `StoreUnavailable`; the next call then repeats them."""
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
