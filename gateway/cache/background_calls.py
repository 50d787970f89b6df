"""Calls that no client asked for, made once their client is served: bounded in number, and in what they may cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from gateway.config.policy.model import AuditSettings
from gateway.ports import Clock
from gateway.tasks import Background

# What audits may cost: so many an hour, so many dollars a day. Pure: the clock's reading comes in.
HOUR_S, DAY_S = 3600.0, 86400.0


@dataclass(slots=True)
class AuditCaps:
    """What has been spent in the current hour and day, each counted from its first call; anew with each start."""

    hour: float = float("-inf")  # monotonic seconds: when the current hour began
    calls: int = 0
    day: float = float("-inf")
    dollars: float = 0.0

    def reserve(self, rule: AuditSettings, dollars: float, now: float) -> bool:
        """Sets aside one call, to cost `dollars`; False where the rule leaves no room for it."""
        if now - self.hour >= HOUR_S:
            self.hour, self.calls = now, 0
        if now - self.day >= DAY_S:
            self.day, self.dollars = now, 0.0
        if rule.per_hour is not None and self.calls >= rule.per_hour:
            return False
        if rule.cost_per_day is not None and self.dollars + dollars > rule.cost_per_day:
            return False
        self.calls += 1
        self.dollars += dollars
        return True

    def refund(self, dollars: float) -> None:
        """Of a call that is not made after all."""
        self.calls = max(0, self.calls - 1)
        self.settle(dollars, 0.0)

    def settle(self, expected: float, actual: float) -> None:
        """What a call really cost, once it is known."""
        self.dollars = max(0.0, self.dollars + actual - expected)


MAX_AT_ONCE = 4  # a backend that is slow for these must stay quick for clients

MAX_WAITING = 16  # behind them


class BackgroundCalls:
    """Whoever makes one holds one of `limiter` for as long as it takes. What is spent is kept by route: a reload of the
    policy forgets nothing."""

    def __init__(self, clock: Clock) -> None:
        self.limiter = asyncio.Semaphore(MAX_AT_ONCE)
        self._clock = clock
        self._background = Background(MAX_AT_ONCE + MAX_WAITING)
        self._caps: dict[str, AuditCaps] = {}

    def __len__(self) -> int:
        """How many wait or are under way."""
        return len(self._background)

    def start(
        self, key: str, route: str, rule: AuditSettings, expected: float, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> str | None:
        """Why it has not begun: "skipped-cost", "skipped-busy", or that of this key is still under way; None: it has.
        `expected`: US dollars, set aside."""
        if not self.reserve(route, rule, expected):
            return "skipped-cost"
        if not self._background.start(key, work()):
            self._caps[route].refund(expected)
            return "skipped-busy"
        return None

    def reserve(self, route: str, rule: AuditSettings, expected: float) -> bool:
        """Sets aside one call, to cost `expected` dollars; False where the rule leaves no room for it."""
        return self._caps.setdefault(route, AuditCaps()).reserve(rule, expected, self._clock.monotonic())

    def settle(self, route: str, expected: float, actual: float) -> None:
        """What a call really cost, once it is known."""
        self._caps[route].settle(expected, actual)

    async def close(self) -> None:
        """Ends what is under way; what it would have told is lost, and nothing else."""
        await self._background.close()
