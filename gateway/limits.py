"""The limits of a route or of an API key, as a policy or a key states them. `gateway.features.limits` enforces them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

PERIODS_S = {"s": 1, "min": 60, "h": 3600, "day": 86_400}

Per = Literal["tenant", "key", "user", "route"]


@dataclass(frozen=True, slots=True)
class Pace:
    """A rate and its burst."""

    amount: int  # units per period
    period: str  # a key of PERIODS_S
    burst: int  # units; in any span t at most burst + amount * t / period

    @property
    def period_s(self) -> int:
        return PERIODS_S[self.period]

    def __str__(self) -> str:
        return f"{self.amount}/{self.period}"


@dataclass(frozen=True, slots=True)
class Cap:
    """The maximum spending in a UTC day or month."""

    window: Literal["day", "month"]
    micros: int  # millionths of a dollar
    light: bool  # whether the lightest model still answers beyond the cap


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of each party of a kind (`per`). Empty or None: no bound."""

    per: Per = "tenant"
    requests: tuple[Pace, ...] = ()
    tokens: tuple[Pace, ...] = ()
    concurrency: int | None = None  # calls in flight
    large_share: float | None = None  # maximum share of the calls, in (0, 1]
    caps: tuple[Cap, ...] = ()
    count_hits: bool = False  # whether `requests` also counts cache hits


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """The limits of a route, in the order of its policy."""

    rules: tuple[Limits, ...] = ()
