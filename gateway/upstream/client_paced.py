"""Bound the calls of one tenant whose client decides how long they hold a permit: streamed uploads and WebSockets.

A backend gives the other permits back at its own speed, so calls that wait get their turn. These come back when the
client wants.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable


class ClientPacedCalls:
    """`ClientPacedCalls` admits at most `most()` such calls of a tenant at once. Further ones wait in order."""

    def __init__(self, most: Callable[[], int]) -> None:
        self._most = most
        self._tenants: dict[str, _TenantCalls] = {}  # those with calls

    async def enter(self, tenant: str, timeout_s: float) -> None:
        """Return once the call is admitted. Raise `TimeoutError`. `leave` follows exactly once, unless this raises."""
        calls = self._tenants.setdefault(tenant, _TenantCalls())
        if calls.admitted < self._most() and not calls.waiting:
            calls.admitted += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        calls.waiting.append(turn)
        try:
            async with asyncio.timeout(timeout_s):
                await turn
        except BaseException:
            if turn.done() and not turn.cancelled():  # the turn and the timeout can coincide
                self.leave(tenant)
            elif turn in calls.waiting:
                calls.waiting.remove(turn)
            raise

    def leave(self, tenant: str) -> None:
        calls = self._tenants[tenant]
        calls.admitted -= 1
        most = self._most()
        for turn in tuple(calls.waiting):
            if calls.admitted >= most:
                return
            calls.waiting.remove(turn)
            if not turn.done():
                calls.admitted += 1
                turn.set_result(None)
        if not calls.admitted:
            del self._tenants[tenant]


class _TenantCalls:
    __slots__ = ("admitted", "waiting")

    def __init__(self) -> None:
        self.admitted = 0
        self.waiting: deque[asyncio.Future[None]] = deque()
