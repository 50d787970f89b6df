"""What audits may cost: so many an hour, so many dollars a day. Pure: the clock's reading comes in."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.config.policy.model import Audit

HOUR_S, DAY_S = 3600.0, 86400.0


@dataclass(slots=True)
class Caps:
    """What has been spent in the current hour and day, each counted from its first call; anew with each start."""

    hour: float = float("-inf")  # monotonic seconds: when the current hour began
    calls: int = 0
    day: float = float("-inf")
    dollars: float = 0.0

    def take(self, rule: Audit, dollars: float, now: float) -> bool:
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

    def give_back(self, dollars: float) -> None:
        """Of a call that is not made after all."""
        self.calls = max(0, self.calls - 1)
        self.settle(dollars, 0.0)

    def settle(self, expected: float, actual: float) -> None:
        """What a call really cost, once it is known."""
        self.dollars = max(0.0, self.dollars + actual - expected)
