"""Alerts: a webhook gets a message when the costs of a route, a tenant or a key reach a part of the budget."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime

from gateway.adapters.system.json_webhook import deliver
from gateway.errors import StoreUnavailable
from gateway.features.spend.budgets import Books, named_in, spent_since
from gateway.features.spend.metrics import SpendMetrics
from gateway.features.spend.periods import first_of_month
from gateway.features.spend.rows import NANOS, Party
from gateway.features.spend.rule import SpendRule
from gateway.features.spend.savings import money
from gateway.features.spend.store import SpendStore
from gateway.ports import Clock

LOG = logging.getLogger("nearhit.spend")

PERCENTS = (100, 80, 50)  # of a budget
CHECK_S = 30.0  # between two looks at the books
MAX_SENDS = 8  # messages at once: many budgets may end together, and chats limit their webhooks
CLAIM_S = 120  # a gateway that dies while it sends leaves the message to the others after that time
SENT_S = 40 * 86_400  # longer than a month


@dataclass(frozen=True, slots=True)
class Alert:
    """A budget that is used up to a part. `month` is such as 2026-11, and dollars are those of the month so far."""

    owner: Party
    month: str
    percent: int
    budget: float
    spent: float

    @property
    def route(self) -> str:
        return self.owner.route

    def payload(self) -> dict[str, object]:
        """Return the message. Chats show its `text`."""
        route, kind, name = self.owner
        who = f"{kind} {name} has, on route {route}," if kind else f"route {route} has"
        text = (
            f"nearhit: {who} spent {money(self.spent)} of its budget of {money(self.budget)} in "
            f"{self.month}: {self.percent} % are reached"
        )
        data = {
            "route": route,
            **({kind: name} if kind else {}),
            "month": self.month,
            "percent": self.percent,
            "budget": self.budget,
            "spent": self.spent,
        }
        return {"type": "spend.budget", "text": text, "data": data}


def alert_of(owner: Party, budget: float, spent: int, month: str) -> Alert | None:
    """Return the alert of the highest part that is reached, if any. `spent` is in billionths of a dollar."""
    dollars = spent / NANOS
    reached = next((percent for percent in PERCENTS if 100 * dollars >= percent * budget), None)
    return None if reached is None else Alert(owner, month, reached, budget, dollars)


class Alerts:
    """`Alerts` looks at the books of all gateways, and sends each message once for all of them. No request waits."""

    def __init__(self, store: SpendStore, clock: Clock, metrics: SpendMetrics) -> None:
        self._store = store
        self._clock = clock
        self._metrics = metrics
        self._books = Books(store)
        self._rules: Mapping[str, SpendRule] = {}
        self._done: set[str] = set()
        self._sends = asyncio.Semaphore(MAX_SENDS)

    def follow(self, rules: Mapping[str, SpendRule]) -> None:
        """Watch the budgets of these routes from now on."""
        self._rules = {route: rule for route, rule in rules.items() if rule.webhook is not None}

    async def run(self) -> None:
        """Look at the books until cancelled."""
        while True:
            await asyncio.sleep(CHECK_S)
            await self.check()

    async def check(self) -> None:
        """Send what is due. Without the store nothing is: the next look will."""
        if not self._rules:
            return
        now = int(self._clock.wall())
        month = datetime.fromtimestamp(now, UTC).strftime("%Y-%m")
        self._done = {done for done in self._done if done.startswith(month)}
        try:
            costs = await self._books.costs(now, named_in(self._rules))
        except StoreUnavailable:
            return
        spent = spent_since(costs, first_of_month(now))
        alerts = [
            (alert_of(owner, budget, spent.get(owner, 0), month), rule.webhook)
            for route, rule in self._rules.items()
            for owner, budget in rule.budgets(route).items()
        ]
        # At once: a webhook that hangs keeps no other message back.
        await asyncio.gather(*(self._send_once(alert, url) for alert, url in alerts if alert is not None and url))

    async def _send_once(self, alert: Alert, url: str) -> None:
        async with self._sends:
            with suppress(StoreUnavailable):
                await self._claim_and_send(alert, url)

    async def _claim_and_send(self, alert: Alert, url: str) -> None:
        owner = ":".join(filter(None, alert.owner))
        name = f"{alert.month}:{alert.percent}:{alert.budget:g}:{owner}"  # another budget has alerts of its own
        if name in self._done:
            return
        if not await self._store.claim(name, CLAIM_S):
            return  # another gateway sends it, or has sent it
        if await deliver(url, alert.payload(), lambda outcome: self._metrics.alerts.add(alert.route, outcome)):
            self._done.add(name)  # first: if the store fails now, it is not sent again
            await self._store.keep_claim(name, SENT_S)
            return
        LOG.warning("an alert was not delivered", extra={"fields": {"route": alert.route, "percent": alert.percent}})
