"""Budgets of a month: what routes, tenants and keys have spent of theirs, and where the month is heading."""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import UTC, datetime, timedelta

from gateway.features.spend.periods import first_of_month
from gateway.features.spend.rows import HOUR_S, NANOS, Party
from gateway.features.spend.rule import SpendRule
from gateway.features.spend.store import SpendStore

RECENT_H = 7 * 24  # hours whose mean the forecast goes on with: a week, as weekends differ

Costs = dict[int, dict[Party, int]]
"""Billionths of a dollar by hour and owner of a budget."""


def end_of_month(now: int) -> int:
    """Return the first hour of the next month (UTC) of a time in seconds."""
    begin = datetime.fromtimestamp(first_of_month(now) * HOUR_S, UTC)
    return int((begin + timedelta(days=32)).replace(day=1).timestamp()) // HOUR_S


def named_in(rules: Mapping[str, SpendRule]) -> Set[Party]:
    """Return the tenants and keys with a budget, by the rules of routes."""
    return frozenset(party for route, rule in rules.items() for party in rule.budgets(route) if party.kind)


def spent_since(costs: Costs, first: int) -> dict[Party, int]:
    """Return the costs by owner from an hour on."""
    found: dict[Party, int] = {}
    for hour, parties in costs.items():
        if hour >= first:
            for party, nanos in parties.items():
                found[party] = found.get(party, 0) + nanos
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
    """The costs of routes, and of single tenants and keys, in the month so far and in the last week. Hours that are
    over are read again once an hour: a gateway without the store may book late."""

    def __init__(self, store: SpendStore) -> None:
        self._store = store
        self._hour = -1
        self._over: Costs = {}
        self._named: Set[Party] = frozenset()

    async def costs(self, now: int, named: Set[Party] = frozenset()) -> Costs:
        """Return the costs of all routes, and of the `named` tenants and keys. Raise `StoreUnavailable`."""
        hour = now // HOUR_S
        if hour != self._hour or not named <= self._named:
            self._over = await self._read(min(first_of_month(now), hour - RECENT_H), hour, named)
            self._hour, self._named = hour, named
        return self._over | await self._read(hour, hour + 1, named)

    async def _read(self, first: int, end: int, named: Set[Party]) -> Costs:
        found: Costs = {}
        async for hour, rows in self._store.read(first, end):
            parties = found[hour] = {}
            for payer, counts in rows:
                route = payer.route
                owners = (Party(route), Party(route, "tenant", payer.tenant), Party(route, "key", payer.key))
                for party in owners[:1] if not named else (owners[0], *(each for each in owners if each in named)):
                    parties[party] = parties.get(party, 0) + counts.cost
        return found
