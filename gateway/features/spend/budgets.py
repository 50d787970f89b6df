"""Budgets of a month: what routes have spent of theirs, and where the month is heading."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

from gateway.features.spend.periods import first_of_month
from gateway.features.spend.rows import HOUR_S, NANOS
from gateway.features.spend.store import SpendStore

RECENT_H = 7 * 24  # hours whose mean the forecast goes on with: a week, as weekends differ

Costs = dict[int, dict[str, int]]
"""Billionths of a dollar by hour and route."""


def end_of_month(now: int) -> int:
    """Return the first hour of the next month (UTC) of a time in seconds."""
    begin = datetime.fromtimestamp(first_of_month(now) * HOUR_S, UTC)
    return int((begin + timedelta(days=32)).replace(day=1).timestamp()) // HOUR_S


def spent_since(costs: Costs, first: int) -> dict[str, int]:
    """Return the costs by route from an hour on."""
    found: dict[str, int] = {}
    for hour, routes in costs.items():
        if hour >= first:
            for route, nanos in routes.items():
                found[route] = found.get(route, 0) + nanos
    return found


def forecast(costs: Mapping[int, int], now: int) -> float | None:
    """Return the dollars of the whole month, or None without costs. Those so far go on with the mean of the last seven
    days, or of the time since the first costs. `costs` are by hour, in billionths of a dollar."""
    if not costs:
        return None
    begin = first_of_month(now)
    since = max(min(costs) * HOUR_S, now - RECENT_H * HOUR_S)
    seconds = max(now - since, HOUR_S)  # the first minutes of a new gateway say little
    recent = sum(nanos for hour, nanos in costs.items() if (hour + 1) * HOUR_S > since)
    so_far = sum(nanos for hour, nanos in costs.items() if hour >= begin)
    return (so_far + recent / seconds * (end_of_month(now) * HOUR_S - now)) / NANOS


class Books:
    """The costs of routes in the month so far and in the last week. Hours that are over are read again once an hour:
    a gateway without the store may book late."""

    def __init__(self, store: SpendStore) -> None:
        self._store = store
        self._hour = -1
        self._over: Costs = {}

    async def costs(self, now: int) -> Costs:
        """Return the costs. Raise `StoreUnavailable`."""
        hour = now // HOUR_S
        if hour != self._hour:
            self._over = await self._read(min(first_of_month(now), hour - RECENT_H), hour)
            self._hour = hour
        return self._over | await self._read(hour, hour + 1)

    async def _read(self, first: int, end: int) -> Costs:
        found: Costs = {}
        async for hour, rows in self._store.read(first, end):
            routes = found[hour] = {}
            for payer, counts in rows:
                routes[payer.route] = routes.get(payer.route, 0) + counts.cost
        return found
