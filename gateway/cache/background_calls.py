"""Calls that no client asked for, made once their client is served: bounded in number, and in what they may cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

from gateway.cache.caps import Caps
from gateway.config.policy.model import Audit
from gateway.ports import Clock
from gateway.tasks import Background

MAX_AT_ONCE = 4  # a backend that is slow for these must stay quick for clients
MAX_WAITING = 16  # behind them


class ExtraCalls:
    """Whoever makes one holds one of `places` for as long as it takes. What is spent is kept by route: a reload of the
    policy forgets nothing."""

    def __init__(self, clock: Clock) -> None:
        self.places = asyncio.Semaphore(MAX_AT_ONCE)
        self._clock = clock
        self._background = Background(MAX_AT_ONCE + MAX_WAITING)
        self._caps: dict[str, Caps] = {}

    def __len__(self) -> int:
        """How many wait or are under way."""
        return len(self._background)

    def begin(
        self, key: str, route: str, rule: Audit, expected: float, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> str | None:
        """Why it has not begun: "skipped-cost", "skipped-busy", or that of this key is still under way; None: it has.
        `expected`: US dollars, set aside."""
        if not self.take(route, rule, expected):
            return "skipped-cost"
        if not self._background.start(key, work()):
            self._caps[route].give_back(expected)
            return "skipped-busy"
        return None

    def take(self, route: str, rule: Audit, expected: float) -> bool:
        """Sets aside one call, to cost `expected` dollars; False where the rule leaves no room for it."""
        return self._caps.setdefault(route, Caps()).take(rule, expected, self._clock.monotonic())

    def settle(self, route: str, expected: float, actual: float) -> None:
        """What a call really cost, once it is known."""
        self._caps[route].settle(expected, actual)

    async def close(self) -> None:
        """Ends what is under way; what it would have told is lost, and nothing else."""
        await self._background.close()
