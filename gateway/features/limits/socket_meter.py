"""Meters WebSockets: by the usage that their messages report, or by the minutes that they are open."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from gateway.dialects.usage import NOTHING, AnswerUsage, message_usage
from gateway.errors import LimitReached
from gateway.features.limits.metering import Spent
from gateway.messages import Closing, Duplex, Frame
from gateway.streams import ClosingDuplex
from gateway.tasks import cancel_and_wait

POLICY_VIOLATION = 1008  # RFC 6455, section 7.4.1
MAX_REASON = 123  # bytes of a reason for closing
TICK_S = 60.0  # the time that is reserved and settled at once

Renew = Callable[[Spent], Awaitable[None]]
"""Settles what was used, and reserves as much again. Raises `LimitReached`."""


class MeteredSocket(ClosingDuplex):
    """`MeteredSocket` is a WebSocket that is closed with 1008 once a limit is reached.

    `spent` returns the cost of a usage, or of some seconds. `renew` settles, and reserves more; `end` settles the rest,
    once.
    """

    def __init__(
        self, inner: Duplex, spent: Callable[[AnswerUsage, float], Spent], renew: Renew, end: Callable[[Spent], None]
    ) -> None:
        super().__init__(inner, self._finish)
        self._spent = spent
        self._renew = renew
        self._end = end
        self._is_over = False
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()  # from when on no time is settled
        self._settling = asyncio.Lock()
        self._refused: asyncio.Future[Closing] = self._loop.create_future()
        self._reading: asyncio.Task[Frame | Closing] | None = None
        self._timer = asyncio.create_task(self._settle_minutes())

    async def receive(self) -> Frame | Closing:
        if self._reading is None:
            self._reading = asyncio.create_task(self._read())
        either: tuple[asyncio.Future[Any], ...] = (self._reading, self._refused)
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if self._reading.done():
            reading, self._reading = self._reading, None
            return reading.result()
        return self._refused.result()

    async def close(self, closing: Closing) -> None:
        try:
            await super().close(closing)
        finally:
            await cancel_and_wait(self._timer)

    def _finish(self) -> None:
        self._is_over = True
        self._end(self._spent(NOTHING, self._loop.time() - self._since))
        if self._reading is not None:
            self._reading.cancel()

    async def _read(self) -> Frame | Closing:
        frame = await self._inner.receive()
        if not isinstance(frame, Closing) and (usage := message_usage(frame)) != NOTHING:
            await self._settle(usage)
        return frame

    async def _settle_minutes(self) -> None:
        while not self._refused.done():
            await asyncio.sleep(TICK_S)
            await self._settle(NOTHING)

    async def _settle(self, usage: AnswerUsage) -> None:
        """Settle a usage and the time so far. A socket that is closed already has settled them."""
        async with self._settling:
            if self._is_over or self._refused.done():
                return
            now = self._loop.time()
            spent, self._since = self._spent(usage, now - self._since), now
            with suppress(asyncio.InvalidStateError):
                try:
                    await self._renew(spent)
                except LimitReached as error:
                    reason = str(error).encode()[:MAX_REASON].decode("utf-8", "ignore")
                    self._refused.set_result(Closing(POLICY_VIOLATION, reason))
