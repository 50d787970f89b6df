"""Background calls run after the client is served. Their number and their cost are bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from gateway.config.policy.schema import AuditRule
from gateway.ports import Clock
from gateway.tasks import Background

# Seconds: the periods of the caps for audits.
HOUR_S, DAY_S = 3600.0, 86400.0


@dataclass(slots=True)
class AuditCaps:
    """Calls of the current hour and dollars of the current day, each period from its first call.

    A restart resets them.
    """

    hour: float = float("-inf")  # monotonic seconds: start of the current hour
    calls: int = 0
    day: float = float("-inf")
    dollars: float = 0.0

    def reserve(self, rule: AuditRule, dollars: float, now: float) -> bool:
        """Reserve one call that costs `dollars`. Return False where the rule leaves no room for it."""
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
        """Return the reservation of a call that is not made."""
        self.calls = max(0, self.calls - 1)
        self.settle(dollars, 0.0)

    def settle(self, expected: float, actual: float) -> None:
        """Replace a call's expected cost with the actual cost."""
        self.dollars = max(0.0, self.dollars + actual - expected)


MAX_AT_ONCE = 4  # a backend that is slow for these calls must stay fast for clients

MAX_WAITING = 16  # calls that wait for one of these places


class BackgroundCalls:
    """The queue of background calls and their costs. A call holds one permit of `limiter` while it runs.

    Costs are counted by route, so a reload of the policy keeps them.
    """

    def __init__(self, clock: Clock) -> None:
        self.limiter = asyncio.Semaphore(MAX_AT_ONCE)
        self._clock = clock
        self._background = Background(MAX_AT_ONCE + MAX_WAITING)
        self._caps: dict[str, AuditCaps] = {}

    def __len__(self) -> int:
        """Return the number of calls that wait or run."""
        return len(self._background)

    def start(
        self, key: str, route: str, rule: AuditRule, expected: float, work: Callable[[], Coroutine[Any, Any, None]]
    ) -> str | None:
        """Start `work`, or return why not: "skipped-cost", or "skipped-busy", also if a call with this key still runs.

        Reserve `expected` US dollars.
        """
        if not self.reserve(route, rule, expected):
            return "skipped-cost"
        if not self._background.start(key, work()):
            self._caps[route].refund(expected)
            return "skipped-busy"
        return None

    def reserve(self, route: str, rule: AuditRule, expected: float) -> bool:
        """Reserve one call that costs `expected` dollars. Return False where the rule leaves no room for it."""
        return self._caps.setdefault(route, AuditCaps()).reserve(rule, expected, self._clock.monotonic())

    def settle(self, route: str, expected: float, actual: float) -> None:
        """Replace a call's expected cost with the actual cost."""
        self._caps[route].settle(expected, actual)

    async def close(self) -> None:
        """Cancel the running calls. Only their results are lost."""
        await self._background.close()
