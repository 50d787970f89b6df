"""Spend: each call is booked with its payer, gateways on one store agree with the endpoint, and names can be erased."""

from __future__ import annotations

import asyncio
import csv
import io
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gateway.circuit_breaker import BreakerState
from gateway.features.spend.admin import ReportRequest, as_csv
from gateway.features.spend.ledger import FLUSH_S, MAX_PAYERS
from gateway.features.spend.rows import HOUR_S, MAX_NAME, MAX_USER, NANOS, OTHERS, Counts, Payer
from gateway.features.spend.store import MAX_ROWS, SpendStore
from tests.features.erasure.test_erasure import erase
from tests.fixtures.gateways import Served, config_of, fast_path, gateway_of
from tests.fixtures.processes import served_by_process, write_config
from tests.fixtures.stores import OutsideServer, frozen
from tests.fixtures.upstream import Upstream, completion
from tests.fixtures.waiting import until

PRICE = {"input_per_million": 1000.0, "output_per_million": 2000.0}
USAGE = {
    "prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12,
    "prompt_tokens_details": {"cached_tokens": 3}, "completion_tokens_details": {"reasoning_tokens": 2},
}  # fmt: skip
NOW = int(time.time()) // HOUR_S
DOLLARS = 0.017  # of a call with that usage


def policy(spend: str = "on", cache: str = "cache: {exact: {ttl: 1h}}") -> str:
    return (
        f"version: 1\nroutes:\n  - name: default\n    match: {{}}\n    {cache}\n"
        f"    route: {{backend: main}}\n    spend: {spend}\n"
    )


@pytest.fixture
def counting(upstream: Upstream) -> Upstream:
    """An endpoint whose answers have a usage with details."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({**completion(call, "done"), "usage": USAGE})

    upstream.answer = answer
    return upstream


@asynccontextmanager
async def booked(
    upstream: Upstream, folder: Path, spend: str = "on", price: Any = PRICE, **more: Any
) -> AsyncIterator[Served]:
    backend = {"adapter": "openai", "url": upstream.url, **({"price": price} if price else {})}
    store = more.pop("store", {})
    config = config_of(folder, {"main": backend}, **({"store": store} if store else {}))
    async with gateway_of(config, policy(spend), **more) as served:
        yield served


async def spend(served: Served, query: str = "by=tenant,model") -> dict[str, Any]:
    async with served.session.get(f"{served.admin_url}/admin/spend?{query}") as response:
        assert response.status == 200, await response.text()
        found: dict[str, Any] = await response.json()
        return found


async def spend_once(served: Served, requests: int, query: str = "by=tenant,model") -> dict[str, Any]:
    """Return the report once it has that many requests."""
    async with asyncio.timeout(60):
        while (found := await spend(served, query))["total"]["requests"] < requests:
            await asyncio.sleep(0.02)
    return found


async def test_a_report_says_who_spent_what_and_what_hits_saved(counting: Upstream, tmp_path: Path) -> None:
    async with booked(counting, tmp_path) as served:
        for tenant, question in (("a", "q1"), ("a", "q2"), ("a", "q2"), ("b", "q1")):
            await served.chat(question, headers={"Authorization": f"Bearer {tenant}"}, model="m-1")
        found = await spend_once(served, 4)
        row = {"model": "m-1", "requests": 3, "hits": 1, "tokens": 24, "cost": 0.034, "saved": DOLLARS}
        assert [{**each, "tenant": ""} for each in found["rows"]] == [
            {**row, "tenant": ""},
            {**row, "tenant": "", "requests": 1, "hits": 0, "tokens": 12, "cost": DOLLARS, "saved": 0.0},
        ]
        assert len({each["tenant"] for each in found["rows"]}) == 2
        assert found["total"] == {"requests": 4, "hits": 1, "tokens": 36, "cost": 0.051, "saved": DOLLARS}
        assert len(counting.chats) == 3


async def test_hits_of_the_shortest_path_are_booked_with_their_model(counting: Upstream, tmp_path: Path) -> None:
    async with booked(counting, tmp_path) as served:
        for _ in range(6):
            assert (await served.chat("q", model="m-1")).status == 200
        assert fast_path(served)._hits  # the later ones took it
        found = await spend_once(served, 6, "by=model,backend")
        assert found["rows"] == [
            {"model": "m-1", "backend": "main", "requests": 6, "hits": 5, "tokens": 12, "cost": DOLLARS,
             "saved": 0.085},
        ]  # fmt: skip


async def test_streams_and_calls_that_no_dialect_reads_are_booked(upstream: Upstream, tmp_path: Path) -> None:
    async with booked(upstream, tmp_path) as served:
        await served.chat("q", stream=True)
        await served.post("/v1/rerank", {"model": "r", "query": "a", "documents": ["b"]})
        rows = (await spend_once(served, 2, "by=model"))["rows"]
        assert [row["tokens"] > 0 for row in rows] == [True, True]
        assert rows[0]["cost"] == pytest.approx(DOLLARS)


async def test_end_users_are_booked_only_if_the_policy_says_so(counting: Upstream, tmp_path: Path) -> None:
    async with booked(counting, tmp_path / "off") as served:
        await served.chat("q", user="alice")
        assert [row["user"] for row in (await spend_once(served, 1, "by=user"))["rows"]] == [""]
    async with booked(counting, tmp_path / "on", "{users: on}") as served:
        for user in ("alice", "bob", "bob", "bob", "bob"):
            await served.chat("q", user=user)
        rows = (await spend_once(served, 5, "by=user"))["rows"]
        assert {row["user"]: row["requests"] for row in rows} == {"alice": 1, "bob": 4}


async def test_a_model_without_a_price_costs_null_and_not_zero(counting: Upstream, tmp_path: Path) -> None:
    async with booked(counting, tmp_path, price={"catalogue": "openai"}) as served:
        await served.chat("q", model="gpt-4o")
        await served.chat("q", model="made-up")
        found = await spend_once(served, 2, "by=model")
        costs = {row["model"]: row["cost"] for row in found["rows"]}
        dollars = (4 * 2.5 + 3 * 1.25 + 5 * 10) / 1e6
        assert costs == {"gpt-4o": pytest.approx(dollars, abs=1e-9), "made-up": None}
        assert found["total"]["cost"] == costs["gpt-4o"]
        assert found["total"]["not_priced"] == 1


async def test_the_csv_has_the_columns_of_focus(counting: Upstream, tmp_path: Path) -> None:
    async with booked(counting, tmp_path) as served:
        await served.chat("q", model="=cmd|x")
        await served.chat("q", model="=cmd|x")
        await spend_once(served, 2)
        async with served.session.get(served.admin_url + "/admin/spend?by=model&format=csv") as response:
            assert response.content_type == "text/csv"
            (row,) = csv.DictReader(io.StringIO(await response.text()))
        month = datetime.now(UTC).strftime("%Y-%m-01T00:00:00Z")
        assert (row["ChargePeriodStart"], row["SkuId"], row["BillingCurrency"]) == (month, "'=cmd|x", "USD")
        assert (row["BilledCost"], row["x_SavedCost"]) == ("0.017000000", "0.017000000")
        names = ("x_Requests", "x_Hits", "x_InputTokens", "x_CachedInputTokens", "x_OutputTokens", "x_ReasoningTokens")
        assert [row[name] for name in names] == ["2", "1", "7", "3", "5", "2"]


def test_names_of_clients_break_no_csv() -> None:
    names = ("gpt, four", 'a "quoted" one', "two\r\nlines", "=1+1", "\n=1+1", "\uff1d1+1", "@sum", "-1", "m=1", "")
    wanted = ReportRequest(["model", "tenant"], 0, 1, None)
    text = as_csv({(name, "t"): Counts(requests=1, cost=NANOS) for name in names}, wanted)
    read = [*csv.DictReader(io.StringIO(text, newline=""), strict=True)]
    assert [row["SkuId"].removeprefix("'") for row in read] == [*names]
    assert [row["SkuId"].startswith("'") for row in read] == [False] * 3 + [True] * 5 + [False] * 2
    assert {(row["SubAccountId"], row["BilledCost"], row["x_Requests"]) for row in read} == {("t", "1.000000000", "1")}
    (head,) = as_csv({}, wanted).splitlines()
    assert head == text.partition("\r\n")[0], "a report without rows has its columns"


@pytest.mark.parametrize(
    ("query", "says"),
    [("by=team", "by: expected"), ("from=soon", "from: expected"), ("format=xml", "format: expected")],
)
async def test_a_query_that_means_nothing_is_refused(upstream: Upstream, tmp_path: Path, query: str, says: str) -> None:
    async with (
        booked(upstream, tmp_path) as served,
        served.session.get(f"{served.admin_url}/admin/spend?{query}") as response,
    ):
        assert (response.status, says in await response.text()) == (400, True)


async def test_a_report_has_the_hours_that_it_is_asked_for(counting: Upstream, tmp_path: Path) -> None:
    async with booked(counting, tmp_path) as served:
        await served.chat("q")
        await spend_once(served, 1)
        assert (await spend(served, "from=2020-01-01&to=2020-02-01"))["rows"] == []
        assert (await spend(served, "tenant=nobody"))["rows"] == []
        assert (await spend(served, "from=2020-01-01"))["total"]["requests"] == 1  # 13 months are read


async def test_gateways_on_one_store_agree_with_what_the_endpoint_saw(
    counting: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    """Two gateways go on, and one is killed. It loses at most what it has booked in the last second."""
    folders = [tmp_path / name for name in ("one", "two", "three")]
    for folder in folders:
        folder.mkdir()
    url = {"store": {"url": outside_store.url}}
    killed_config = write_config(
        folders[2], {"main": {"adapter": "openai", "url": counting.url, "price": PRICE}}, policy(), **url
    )
    async with (
        booked(counting, folders[0], **url) as one,
        booked(counting, folders[1], **url) as two,
        served_by_process(killed_config) as three,
    ):
        await asyncio.gather(*(gateway.chat(f"q{i}") for i, gateway in enumerate([one, two, three] * 10)))
        assert (await spend_once(one, 30))["total"]["cost"] == pytest.approx(len(counting.chats) * DOLLARS, abs=1e-9)
        seen = len(counting.chats)
        await asyncio.gather(*(three.chat(f"last{i}") for i in range(5)))
        await three.kill()
        lost = len(counting.chats) - seen
        await asyncio.gather(*(gateway.chat(f"then{i}") for i, gateway in enumerate([one, two] * 10)))
        total = (await spend_once(two, 50))["total"]
        least, most = (len(counting.chats) - lost) * DOLLARS, len(counting.chats) * DOLLARS
        assert least - 1e-9 <= total["cost"] <= most + 1e-9
        assert lost <= 5


async def test_bookings_wait_for_a_store_that_is_away(
    counting: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    async with booked(counting, tmp_path, store={"url": outside_store.url}) as served:
        with frozen(outside_store.process.pid):
            for i in range(3):
                assert (await served.chat(f"q{i}")).status == 200
        await until(lambda: served.gateway.stores.redis.breaker is BreakerState.CLOSED)
        found = await spend_once(served, 3)
        assert found["total"]["cost"] == pytest.approx(3 * DOLLARS, abs=1e-9)


async def test_a_batch_that_is_sent_twice_counts_once(counting: Upstream, tmp_path: Path) -> None:
    async with booked(counting, tmp_path) as served:
        store, rows = SpendStore(served.gateway.stores.redis), {Payer("t"): Counts(requests=1, cost=2**52)}
        for number in (1, 1, 2):
            await store.add("g", number, NOW, rows)
        assert [found async for found in store.read(NOW, NOW + 1)] == [
            (NOW, [(Payer("t"), Counts(requests=2, cost=2**53))])
        ]


async def test_rows_of_an_hour_are_bounded_and_nothing_is_lost(counting: Upstream, tmp_path: Path) -> None:
    async with booked(counting, tmp_path) as served:
        store = SpendStore(served.gateway.stores.redis)
        for number in range(1, 3):
            await store.add("g", number, NOW, {Payer(f"t{i}"): Counts(requests=1) for i in range(MAX_ROWS + 50)})
        ((_, rows),) = [found async for found in store.read(NOW, NOW + 1)]
        assert len(rows) == MAX_ROWS + 1
        assert (dict(rows)[OTHERS].requests, sum(counts.requests for _, counts in rows)) == (100, 2 * (MAX_ROWS + 50))


async def test_names_that_are_equal_once_they_are_cut_are_one_row(counting: Upstream, tmp_path: Path) -> None:
    async with booked(counting, tmp_path) as served:
        for number in range(3):
            await served.chat(f"q{number}", model="m" * MAX_NAME + str(number))
        (row,) = (await spend_once(served, 3, "by=model"))["rows"]
        assert (row["model"], row["requests"], row["cost"]) == ("m" * MAX_NAME, 3, pytest.approx(3 * DOLLARS))


async def test_a_long_user_can_be_erased_and_a_longer_one_is_not_kept(counting: Upstream, tmp_path: Path) -> None:
    """A user id of Claude Code has some 200 characters, and those of two sessions begin alike."""
    users = ["a" * MAX_NAME + "1", "a" * MAX_NAME + "2", "b" * (MAX_USER + 1)]
    async with booked(counting, tmp_path, "{users: on}") as served:
        for user in users:
            await served.chat("q", user=user)
        found = await spend_once(served, 3, "by=user")
        assert {row["user"] for row in found["rows"]} == {*users[:2], "others"}
        await erase(served, f"user:{users[0]}")
        found = await spend(served, "by=user")
        assert {row["user"]: row["requests"] for row in found["rows"]} == {users[1]: 1, "others": 1, "erased": 1}


async def test_payers_in_memory_are_bounded(counting: Upstream, tmp_path: Path) -> None:
    async with booked(counting, tmp_path) as served:
        ledger: Any = served.gateway.features._open["spend"]
        for i in range(MAX_PAYERS + 10):
            ledger._row(Payer(f"t{i}")).requests += 1
        (rows,) = ledger._hours.values()
        assert (len(rows), rows[OTHERS].requests) == (MAX_PAYERS + 1, 10)


async def test_an_erasure_takes_the_name_and_leaves_the_sum(counting: Upstream, tmp_path: Path) -> None:
    async with booked(counting, tmp_path, "{users: on}") as served:
        for user in ("alice", "bob"):
            await served.chat(f"q of {user}", user=user)
        await spend_once(served, 2, "by=user")
        before = await spend(served, "by=user")
        report = await erase(served, "user:alice")
        assert report["report"]["counts"]["spend"] == 1
        found = await spend(served, "by=user")
        assert sorted(row["user"] for row in found["rows"]) == ["bob", "erased"]
        assert found["total"] == before["total"]


async def test_a_route_without_spend_books_nothing(upstream: Upstream, tmp_path: Path) -> None:
    async with booked(upstream, tmp_path, "off") as served:
        await served.chat("q")
        assert not served.gateway.features.ends
        assert (await spend(served))["total"]["requests"] == 0


def test_the_bound_on_what_a_killed_gateway_loses_is_in_the_docs() -> None:
    text = Path("docs/spend.md").read_text()
    assert f"last {FLUSH_S:g} s" in text
    assert f"{MAX_ROWS} rows" in text
    assert HOUR_S == 3_600


async def test_a_usage_that_cannot_be_true_leaves_the_books_readable(upstream: Upstream, tmp_path: Path) -> None:
    """A count near 64 bits made every later report fail, for the 13 months that the row stays."""
    counts = iter((2**63 - 1, -5, 7))

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        count = next(counts)
        return web.json_response(
            {**completion(call, "done"), "usage": {"prompt_tokens": count, "completion_tokens": count}}
        )

    upstream.answer = answer
    async with booked(upstream, tmp_path) as served:
        for question in ("huge", "negative", "plain"):
            await served.chat(question)
        found = await spend_once(served, 3, "by=tenant")
        assert 14 < found["total"]["tokens"] < 1_000
        assert 0.021 < found["total"]["cost"] < 1.0
