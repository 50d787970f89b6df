"""Budgets: what is left of them, where the month is heading, alerts that are sent once, and metrics by tenant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.adapters.system import json_webhook
from gateway.config.errors import ConfigInvalid
from gateway.config.policy.load import policy_from_text
from gateway.features.spend import alerts
from gateway.features.spend.alerts import alert_of
from gateway.features.spend.budgets import Books, end_of_month, forecast
from gateway.features.spend.ledger import Ledger
from gateway.features.spend.metrics import MAX_TENANTS, OTHERS, SpendMetrics
from gateway.features.spend.rows import HOUR_S, NANOS, Counts, Party, Payer
from gateway.features.spend.rule import SpendRule
from gateway.features.spend.store import SpendStore
from tests.features.spend.test_spend import DOLLARS, NOW, booked, policy, spend, spend_once
from tests.fixtures.gateways import Served, config_of
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream, listening

ATTEMPTS = 1 + len(json_webhook.PAUSES_S)
PRICE = {"input_per_million": 1000.0, "output_per_million": 2000.0}


@dataclass
class Receiver:
    """Receives alerts, and answers with the statuses one after the other, and then with 204."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    got: list[dict[str, Any]] = field(default_factory=list)

    async def answer(self, request: web.Request) -> web.StreamResponse:
        self.got.append(await request.json())
        return web.Response(status=self.statuses.pop(0) if self.statuses else 204)


@pytest.fixture
async def receiver(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Receiver]:
    monkeypatch.setattr(json_webhook, "PAUSES_S", (0.0, 0.0))
    found = Receiver()
    async with listening(found.answer) as url:
        found.url = url
        yield found


def ledger_of(served: Served) -> Ledger:
    found = served.gateway.features._open["spend"]
    assert isinstance(found, Ledger)
    return found


@asynccontextmanager
async def watched(
    upstream: Upstream, folder: Path, receiver: Receiver, budget: float, **more: Any
) -> AsyncIterator[Served]:
    async with booked(
        upstream, folder, f"{{budget: {budget}, webhook: '{receiver.url}/hook'}}", PRICE, **more
    ) as served:
        yield served


async def budgets(served: Served) -> dict[str, Any]:
    async with served.session.get(served.admin_url + "/admin/budgets") as response:
        assert response.status == 200, await response.text()
        found: dict[str, Any] = await response.json()
        return found


# Alerts


async def test_each_part_of_a_budget_is_told_once_for_all_gateways(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path, receiver: Receiver
) -> None:
    store = {"url": outside_store.url}
    async with (
        watched(upstream, tmp_path / "one", receiver, 2 * DOLLARS, store=store) as one,
        watched(upstream, tmp_path / "two", receiver, 2 * DOLLARS, store=store) as two,
    ):
        for question in ("a", "b"):
            await one.chat(question)
            await spend_once(two, 1 if question == "a" else 2)
            for served in (one, two, one):
                await ledger_of(served)._alerts.check()
        assert [each["data"]["percent"] for each in receiver.got] == [50, 100]
        first = receiver.got[0]
        assert first["type"] == "spend.budget"
        assert first["data"] == {
            "route": "default", "month": datetime.now(UTC).strftime("%Y-%m"), "percent": 50,
            "budget": 2 * DOLLARS, "spent": pytest.approx(DOLLARS),
        }  # fmt: skip
        assert first["text"].startswith("nearhit: route default has spent $0.0170 of its budget of $0.0340 in ")


async def test_an_alert_that_is_refused_is_tried_a_few_times_and_later_again(
    upstream: Upstream, tmp_path: Path, receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver.statuses = [500] * ATTEMPTS
    monkeypatch.setattr(alerts, "CLAIM_S", 1)
    async with watched(upstream, tmp_path, receiver, 0.001) as served:
        await served.chat("q")
        await spend_once(served, 1)
        checks = ledger_of(served)._alerts
        await checks.check()
        assert len(receiver.got) == ATTEMPTS
        while len(receiver.got) == ATTEMPTS:
            await checks.check()
        await checks.check()
        assert len(receiver.got) == ATTEMPTS + 1
        counted = ledger_of(served)._metrics.alerts.values
        assert counted == {("default", "failed"): ATTEMPTS, ("default", "sent"): 1}


async def test_another_budget_has_alerts_of_its_own(upstream: Upstream, tmp_path: Path, receiver: Receiver) -> None:
    async with watched(upstream, tmp_path, receiver, DOLLARS) as served:
        await served.chat("q")
        await spend_once(served, 1)
        checks = ledger_of(served)._alerts
        for budget in (DOLLARS, 4 * DOLLARS, 2 * DOLLARS, DOLLARS):
            checks.follow({"default": SpendRule(budget=budget, webhook=receiver.url)})
            await checks.check()
        assert [each["data"]["percent"] for each in receiver.got] == [100, 50]


async def test_tenants_and_keys_have_budgets_of_their_own(
    upstream: Upstream, tmp_path: Path, receiver: Receiver
) -> None:
    rule = f"{{tenant_budgets: {{acme: 1, b: 9}}, key_budgets: {{ci: 2}}, webhook: '{receiver.url}/hook'}}"
    async with booked(upstream, tmp_path, rule, PRICE) as served:
        ledger = ledger_of(served)
        calls = {Payer("acme", "ci"): 6, Payer("acme"): 3, Payer("other", "ci"): 5, Payer("other"): 50}
        rows = {who._replace(route="default"): Counts(calls=1, cost=n * NANOS // 10) for who, n in calls.items()}
        elsewhere = {Payer("acme", "ci", route="elsewhere"): Counts(calls=1, cost=NANOS)}
        await ledger._store.add("test", 1, NOW, {**rows, **elsewhere})
        told = await budgets(served)
        (route,) = told["routes"]
        assert (route["budget"], route["left"], route["spent"]) == (None, None, pytest.approx(6.4))
        parties = [(each.get("tenant"), each.get("key"), each["spent"], each["left"]) for each in told["parties"]]
        assert parties == [
            ("acme", None, pytest.approx(0.9), pytest.approx(0.1)),
            ("b", None, 0.0, 9.0),
            (None, "ci", pytest.approx(1.1), pytest.approx(0.9)),
        ]
        assert told["spent"] == pytest.approx(7.4), "of all routes"
        for _ in range(2):
            await ledger._alerts.check()
    data = {each["data"].get("tenant") or each["data"]["key"]: each for each in receiver.got}
    assert len(receiver.got) == 2
    assert data["acme"]["data"]["percent"] == 80 and data["ci"]["data"]["percent"] == 50
    assert data["ci"]["data"]["route"] == "default"
    assert data["acme"]["text"].startswith(
        "nearhit: tenant acme has, on route default, spent $0.9000 of its budget of $1"
    )


async def test_a_webhook_that_hangs_keeps_no_other_message_back(
    upstream: Upstream, tmp_path: Path, receiver: Receiver
) -> None:
    asked, told = asyncio.Event(), asyncio.Event()

    async def hang(_: web.Request) -> web.StreamResponse:
        asked.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def note(request: web.Request) -> web.StreamResponse:
        assert (await request.json())["data"]["route"] == "second"
        told.set()
        return web.Response(status=204)

    async with listening(hang) as hanging, listening(note) as other, booked(upstream, tmp_path) as served:
        ledger = ledger_of(served)
        rows = {Payer(route=route): Counts(calls=1, cost=NANOS) for route in ("first", "second")}
        await ledger._store.add("test", 1, NOW, rows)
        ledger._alerts.follow(
            {"first": SpendRule(budget=1, webhook=hanging), "second": SpendRule(budget=1, webhook=other)}
        )
        check = asyncio.create_task(ledger._alerts.check())
        await asked.wait()
        await told.wait()
        assert not check.done()
        check.cancel()


async def test_a_webhook_that_nobody_answers_fails_no_check(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_webhook, "PAUSES_S", (0.0, 0.0))
    outcomes: list[str] = []
    assert not await json_webhook.deliver("http://127.0.0.1:1/hook", {"type": "spend.budget"}, outcomes.append)
    assert outcomes == ["failed"] * ATTEMPTS


@pytest.mark.parametrize(
    ("spent", "percent"), [(0.0, None), (49.99, None), (50.0, 50), (79.0, 50), (80.0, 80), (100.0, 100), (900.0, 100)]
)
def test_the_highest_part_that_is_reached_is_told(spent: float, percent: int | None) -> None:
    found = alert_of(Party("r"), 100.0, round(spent * NANOS), "2026-11")
    assert (None if found is None else found.percent) == percent


@pytest.mark.parametrize(
    ("rule", "says"),
    [
        ("{webhook: 'https://hooks.example/x'}", "expected budget"),
        ("{budget: 5, webhook: 'ftp://hooks.example'}", "expected a URL"),
        ("{budget: 5, webhook: 'https://[x'}", "expected a URL"),
        ("{budget: 5, webhook: 'https://h:99999999/x'}", "expected a URL"),
        ("{budget: 0}", "more than 0"),
        ("{budget: much}", "budget"),
        ("{tenant_budgets: {acme: 0}}", "more than 0"),
        ("{key_budgets: [ci]}", "key_budgets"),
    ],
)
def test_a_budget_that_means_nothing_is_a_fault(rule: str, says: str, tmp_path: Path) -> None:
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": "http://127.0.0.1:1/v1"}})
    with pytest.raises(ConfigInvalid) as caught:
        policy_from_text(policy(rule), "policy.yaml", config)
    assert says in str(caught.value)


# What is left


async def test_what_is_left_of_a_budget_and_the_forecast_agree_with_the_books(
    upstream: Upstream, tmp_path: Path
) -> None:
    async with booked(upstream, tmp_path, "{budget: 0.01}", PRICE) as served:
        await served.chat("q")
        found = await spend_once(served, 1)
        told = await budgets(served)
        (route,) = told["routes"]
        assert (route["route"], route["budget"], route["spent"]) == ("default", 0.01, pytest.approx(DOLLARS))
        assert route["left"] == pytest.approx(0.01 - found["total"]["cost"])
        assert told["spent"] == pytest.approx(DOLLARS)
        assert route["forecast"] == told["forecast"] >= DOLLARS


async def test_hours_that_are_over_are_read_again_once_an_hour(upstream: Upstream, tmp_path: Path) -> None:
    async with booked(upstream, tmp_path) as served:
        store = SpendStore(served.gateway.stores.redis)
        books, now = Books(store), NOW * HOUR_S
        await store.add("g", 1, NOW - 1, {Payer(route="r"): Counts(cost=5)})
        await store.add("g", 2, NOW, {Payer(route="r"): Counts(cost=7)})
        r = Party("r")
        assert await books.costs(now) == {NOW - 1: {r: 5}, NOW: {r: 7}}
        await store.add("g", 3, NOW - 1, {Payer(route="r"): Counts(cost=10)})
        await store.add("g", 4, NOW, {Payer("t", route="r"): Counts(cost=10)})
        assert await books.costs(now) == {NOW - 1: {r: 5}, NOW: {r: 17}}
        assert (await books.costs(now + HOUR_S))[NOW - 1] == {r: 15}


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def test_a_forecast_goes_on_like_the_last_week() -> None:
    now = at("2026-11-15T00:00")
    steady = {now // HOUR_S - i: NANOS for i in range(1, 14 * 24 + 1)}  # a dollar an hour
    assert forecast(steady, now) == pytest.approx(30 * 24)
    begun = {now // HOUR_S - i: NANOS for i in range(1, 25)}  # since yesterday
    assert forecast(begun, now) == pytest.approx(24 + 16 * 24)
    first = {now // HOUR_S: NANOS}  # a dollar in the first minute counts as one of an hour
    assert forecast(first, now + 60) == pytest.approx(1 + 16 * 24, rel=1e-3)
    former = {at("2026-10-31T23:00") // HOUR_S: NANOS}
    assert forecast(former, at("2026-11-01T00:00")) == pytest.approx(30 * 24)
    assert forecast({}, now) is None


@pytest.mark.parametrize(("now", "end"), [("2026-12-31T23:59", "2027-01-01"), ("2028-02-29T12:00", "2028-03-01")])
def test_a_month_ends_with_the_next_one(now: str, end: str) -> None:
    assert end_of_month(at(now)) * HOUR_S == at(end)


# Periods, and metrics


async def test_a_report_has_rows_by_day_and_hour(upstream: Upstream, tmp_path: Path) -> None:
    async with booked(upstream, tmp_path) as served:
        store, day = SpendStore(served.gateway.stores.redis), NOW // 24 * 24 - 24
        for number, hour in enumerate((day, day + 1, day - 1), start=1):
            await store.add("g", number, hour, {Payer("t"): Counts(requests=number, cost=number)})
        found = await spend(served, "by=day&since=4d")
        days = {row["day"]: row["requests"] for row in found["rows"]}
        names = [datetime.fromtimestamp(hour * HOUR_S, UTC) for hour in (day - 1, day, day + 1)]
        assert days == {names[0].strftime("%Y-%m-%d"): 3, names[1].strftime("%Y-%m-%d"): 3}
        hours = {row["hour"]: row["requests"] for row in (await spend(served, "by=hour,tenant&since=4d"))["rows"]}
        assert hours[names[2].strftime("%Y-%m-%dT%H:00Z")] == 2


async def test_tenants_are_in_the_metrics_only_if_the_policy_says_so(upstream: Upstream, tmp_path: Path) -> None:
    async with booked(upstream, tmp_path / "on", "{metrics: on}", PRICE) as served:
        for _ in range(2):
            await served.chat("q")
        await spend_once(served, 2)
        tenant = (await spend(served, "by=tenant"))["rows"][0]["tenant"]
        metrics = ledger_of(served)._metrics
        assert metrics.cost.values == {("default", tenant): pytest.approx(DOLLARS)}
        assert metrics.saved.values == {("default", tenant): pytest.approx(DOLLARS)}
        assert metrics.requests.values == {("default", tenant, "no"): 1, ("default", tenant, "yes"): 1}
        async with served.session.get(served.admin_url + "/metrics") as response:
            assert f'nearhit_tenant_cost_dollars_total{{route="default",tenant="{tenant}"}}' in await response.text()
    async with booked(upstream, tmp_path / "off", "on", PRICE) as served:
        await served.chat("q")
        assert not ledger_of(served)._metrics.requests.values


def test_tenants_in_the_metrics_are_bounded() -> None:
    metrics = SpendMetrics()
    labels = [metrics.label(f"t{i}") for i in range(MAX_TENANTS + 10)]
    assert (labels[MAX_TENANTS:], metrics.label("t1")) == ([OTHERS] * 10, "t1")
