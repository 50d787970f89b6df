"""The report on savings: each figure agrees with what the endpoints counted, and costs are told with the savings."""

from __future__ import annotations

import asyncio
import struct
import sys
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from xml.etree import ElementTree

import pytest
from aiohttp import web

from gateway.errors import StartupError
from gateway.features.spend.digest import badge, markdown
from gateway.features.spend.figures import BUCKETS, NAMES, Figures
from gateway.features.spend.picture import png
from gateway.features.spend.rows import HOUR_S, Counts, Payer
from gateway.features.spend.savings import Share, money, routing_sentence, savings
from gateway.features.spend.store import ADD, SpendStore
from tests.cache.test_audits import ASKED, OTHER, STORED, answering, audited, other
from tests.cli.test_json import main
from tests.features.cascade.test_cascade import LOGPROBS, saying, sure
from tests.features.spend.test_spend import DOLLARS, NOW, PRICE, USAGE, booked, spend
from tests.fixtures.gateways import Served, config_of, gateway_of
from tests.fixtures.several import behind, policy_of
from tests.fixtures.stores import OutsideServer
from tests.fixtures.upstream import Upstream, completion, question_of
from tests.fixtures.waiting import until
from tests.routing.test_dispatch import EASY, HARD

CACHED = """
version: 1
routes:
  - name: default
    match: {}
    cache: {exact: {ttl: 1h}, semantic: {ttl: 1h, min_similarity: 0.5, audit: 100%}}
    route: {backend: main}
    spend: on
"""
BOOKED = "    spend: on\n"
EXACT = "cache: {exact: {ttl: 1h}}"


async def report(served: Served, query: str = "since=1h") -> dict[str, Any]:
    async with served.session.get(f"{served.admin_url}/admin/report?{query}") as response:
        assert response.status == 200, await response.text()
        found: dict[str, Any] = await response.json()
        return found


async def report_once(served: Served, **wanted: Any) -> dict[str, Any]:
    """Return the report once its parts have these values: `cache__audited=1`."""
    async with asyncio.timeout(60):
        while True:
            found = await report(served)
            if all(_part(found, name.split("__")) == value for name, value in wanted.items()):
                return found
            await asyncio.sleep(0.02)


def _part(found: Mapping[str, Any], path: list[str]) -> Any:
    value: Any = found
    for name in path:
        value = None if value is None else value[name]
    return value


# Against endpoints that count


async def test_the_savings_of_hits_are_what_the_endpoint_did_not_bill(upstream: Upstream, tmp_path: Path) -> None:
    """What clients cost and what audits cost are together what the endpoint billed."""

    async def answer(request: web.Request, call: dict[str, Any]) -> web.StreamResponse:
        return web.json_response({**completion(call, other(question_of(call))), "usage": USAGE})

    upstream.answer = answer
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url, "price": PRICE}})
    async with gateway_of(config, CACHED) as served:
        for question in (STORED, STORED, STORED, ASKED):
            await served.chat(question)
        await audited(served)
        found = await report_once(served, cache__requests=4, cache__audited=1)
        cache = found["cache"]
        assert (cache["answered"], cache["exact"], cache["semantic"], cache["wrong"]) == (3, 2, 1, 1)
        assert cache["saved"] == pytest.approx(3 * DOLLARS)
        assert cache["saved_tokens"] == 3 * USAGE["total_tokens"]  # type: ignore[operator]
        assert found["spent"] == pytest.approx(DOLLARS)
        assert found["spent"] + found["costs"]["audits"] == pytest.approx(len(upstream.chats) * DOLLARS)
        assert found["net"] == pytest.approx(2 * DOLLARS)
        assert cache["wrong_share"] == {"share": 1.0, "low": pytest.approx(0.2, abs=0.1), "high": 1.0}
        assert cache["p50_hit_ms"] > 0
        assert cache["p50_backend_ms"] > 0
        assert found["sentence"].startswith("3 of 4 requests answered, $0.0510 saved, 1 of 1 audited wrong (95 %: ")
        assert found["routing"] is None
        assert found["routes"] == [
            {"route": "default", "requests": 4, "answered": 3, "saved": cache["saved"], "cost": found["spent"],
             "audited": 1, "wrong": 1, "light": 0},
        ]  # fmt: skip


async def test_the_cost_of_embedding_is_told(upstream: Upstream, tmp_path: Path) -> None:
    upstream.answer = answering(lambda _: OTHER)
    config = config_of(tmp_path, {"main": {"adapter": "openai", "url": upstream.url}})
    async with gateway_of(config, CACHED) as served:
        await served.chat(STORED)
        await report_once(served, cache__requests=1)
        served.gateway.gauges.sample_pools()
        await served.chat(ASKED)
        costs = (await report_once(served, cache__requests=2))["costs"]
        assert costs["cpu_s"] > 0
        assert costs["embedding_s"] > 0


async def test_the_savings_of_the_light_model_are_the_price_of_the_large_one_less_its_own(
    light: Upstream, large: Upstream, tmp_path: Path
) -> None:
    """Audits of the light model are in its costs: all calls together are what both endpoints billed."""
    prices = {"light": 100.0, "large": 1000.0}  # dollars a million tokens
    config = config_of(
        tmp_path,
        {
            each.name: {
                "adapter": "openai", "url": each.url, "model": each.name,
                "price": {"input_per_million": prices[each.name], "output_per_million": prices[each.name]},
            }
            for each in (light, large)
        },
    )  # fmt: skip
    for each in (light, large):
        each.answer = answering(lambda _: "It is in the settings.")
    rule = policy_of("light: light, large: large, escalate_above: 0.5, audit: 100%", more=BOOKED)
    async with gateway_of(config, rule) as served:
        await served.chat(EASY)
        await served.chat(EASY)
        await served.chat(HARD)
        await until(lambda: sum(served.gateway.parts.telemetry.light_audits.values.values()) == 1)
        found = await report_once(served, cache__requests=3, routing__audited=1)
        routing, rows = found["routing"], (await spend(served, "by=backend"))["rows"]
        tokens = {row["backend"]: row["tokens"] for row in rows}
        # The hit has the backend of its answer. It is no choice of a model.
        assert (routing["requests"], routing["light"], routing["not_priced"]) == (2, 1, 0)
        assert routing["saved"] == pytest.approx(tokens["light"] * (prices["large"] - prices["light"]) / 1e6)
        assert (routing["as_good"], routing["undecided"], routing["kept"]["share"]) == (1, 0, 1.0)
        assert 0.1 < routing["kept"]["low"] < 0.5
        audit = tokens["light"] * prices["large"] / 1e6
        assert (len(light.chats), len(large.chats)) == (1, 2)
        assert found["costs"]["audits"] == pytest.approx(audit)
        assert found["spent"] == pytest.approx(sum(tokens[name] * price / 1e6 for name, price in prices.items()))
        assert found["net"] == pytest.approx(found["cache"]["saved"] + routing["saved"] - audit)


async def test_a_light_answer_that_was_rejected_costs_and_saves_nothing(tmp_path: Path) -> None:
    rule = policy_of(f"light: small, large: big, escalate_above: 0.5, cascade: {{{LOGPROBS}}}", more=BOOKED)
    price = {"price": {"input_per_million": 1e6, "output_per_million": 0}}
    async with behind(tmp_path, rule, "small", "big", backends=price) as (served, upstreams):
        upstreams["small"].answer = sure(0.5)
        upstreams["big"].answer = saying("better")
        await served.chat(HARD)
        found = await report_once(served, cache__requests=1, costs__trials_failed=1)
        assert [len(upstreams[name].chats) for name in ("small", "big")] == [1, 1]
        rows = {row["backend"]: row["cost"] for row in (await spend(served, "by=backend"))["rows"]}
        assert found["costs"]["trials"] == pytest.approx(rows["small"])
        assert (found["routing"]["light"], found["routing"]["requests"], found["routing"]["saved"]) == (0, 1, 0.0)
        assert found["net"] == pytest.approx(-rows["small"])


async def test_a_model_without_a_price_saves_an_unknown_sum(light: Upstream, large: Upstream, tmp_path: Path) -> None:
    backends = {each.name: {"adapter": "openai", "url": each.url} for each in (light, large)}
    rule = policy_of("light: light, large: large, escalate_above: 0.5", more=BOOKED)
    async with gateway_of(config_of(tmp_path, backends), rule) as served:
        await served.chat(EASY)
        found = await report_once(served, cache__requests=1, routing__light=1, routing__not_priced=1)
        await served.chat(EASY)
        found = await report_once(served, cache__requests=2, cache__exact=1)
        assert (found["routing"]["saved"], found["spent"], found["net"], found["not_priced"]) == (None, None, None, 1)
        assert found["sentence"].startswith("1 of 2 requests answered, 12 tokens saved, p50 from")
        assert "No call has a price" in markdown(found)
        assert "50 %, 12 tokens saved" in badge(found)
        assert "saved" not in routing_sentence(found["routing"])


async def test_gateways_on_one_store_report_the_same(
    upstream: Upstream, outside_store: OutsideServer, tmp_path: Path
) -> None:
    url = {"url": outside_store.url}
    async with (
        booked(upstream, tmp_path / "one", store=url) as one,
        booked(upstream, tmp_path / "two", store=url) as two,
    ):
        for served in (one, two):
            for _ in range(2):
                await served.chat("q")
        reports = [await report_once(served, cache__requests=4, cache__exact=3) for served in (one, two)]
        assert [each["cache"] for each in reports] == [reports[0]["cache"]] * 2
        assert reports[0]["cache"]["saved"] == pytest.approx(3 * reports[0]["spent"])
        assert len(upstream.chats) == 1
        assert (await report(one, "from=2020-01-01&to=2020-02-01"))["cache"]["requests"] == 0


async def test_times_that_adjoin_have_together_what_the_whole_has(upstream: Upstream, tmp_path: Path) -> None:
    """No hour counts twice, or not at all, whatever the clock of the reader: that of India is half an hour off."""
    async with booked(upstream, tmp_path) as served:
        store = SpendStore(served.gateway.stores.redis)
        for number in range(1, 73):
            await store.add("g", number, NOW - number, {Payer(route="r"): Counts(requests=1)})
            await store.add_figures("g", number, NOW - number, {"r": Figures(exact=1)})
        start = datetime.fromtimestamp((NOW - 60) * HOUR_S, UTC).astimezone(timezone(timedelta(hours=5, minutes=30)))
        times = [(start + timedelta(hours=hours)).isoformat() for hours in (0, 24, 48)]
        queries = [urlencode({"from": first, "to": end}) for first, end in pairwise(times)]
        for part in ("requests", "exact"):
            parts = [(await report(served, query))["cache"][part] for query in queries]
            assert parts == [24, 24]
            assert (await report(served, urlencode({"from": times[0], "to": times[-1]})))["cache"][part] == 48


async def test_a_route_without_spend_is_in_no_report(upstream: Upstream, tmp_path: Path) -> None:
    async with booked(upstream, tmp_path, "off") as served:
        await served.chat("q")
        assert (await report(served))["routes"] == []


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("since=7", "since: "),
        ("since=1d&from=2026-11-01", "not both"),
        ("to=99999-01-01", "to: "),
        ("since=-1d", "since"),
    ],
)
async def test_a_time_that_means_nothing_is_refused(upstream: Upstream, tmp_path: Path, query: str, says: str) -> None:
    async with (
        booked(upstream, tmp_path) as served,
        served.session.get(f"{served.admin_url}/admin/report?{query}") as response,
    ):
        assert (response.status, says in await response.text()) == (400, True)


async def test_the_command_writes_markdown_a_badge_and_a_picture(
    upstream: Upstream, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with booked(upstream, tmp_path / "data") as served:
        await served.chat("q")
        await served.chat("q")
        await report_once(served, cache__requests=2, cache__exact=1)
        files = {"--badge": tmp_path / "saved.svg", "--png": tmp_path / "week.png"}
        given = [str(part) for pair in files.items() for part in pair]
        where = ["--admin", served.admin_url, "--config", str(tmp_path / "none.yaml")]
        assert await asyncio.to_thread(main, ["report", "--since", "7d", *given, *where]) == 0
        assert capsys.readouterr().out.startswith("# What nearhit saved\n")
        assert ElementTree.fromstring(files["--badge"].read_text()).tag.endswith("svg")
        assert files["--png"].read_bytes().startswith(b"\x89PNG")
        refused = [*where, "--badge", str(tmp_path / "no" / "where.svg")]
        assert await asyncio.to_thread(main, ["report", *refused]) == 1
        assert "cannot be written" in capsys.readouterr().err


# What the store has


async def test_figures_that_another_version_wrote_are_added(upstream: Upstream, tmp_path: Path) -> None:
    """An older gateway writes fewer numbers, and a later one more. Both count in the sums of the other."""
    async with booked(upstream, tmp_path) as served:
        redis = served.gateway.stores.redis
        store = SpendStore(redis)
        key, seen = store._figures_key(NOW), redis.names.key("spend:seen:other")
        older = " ".join(["1"] * (2 * BUCKETS + 3))
        await redis.run(ADD, [key, seen], [1, 10, b"others", 2**40, b"r", older], 5.0)
        await store.add_figures("g", 1, NOW, {"r": Figures(exact=2, embed_micros=7)})
        later = " ".join(["1"] * (2 * BUCKETS + len(NAMES) + 4))
        await redis.run(ADD, [key, seen], [2, 10, b"others", 2**40, b"r", later], 5.0)
        ((_, ((route, figures),)),) = [found async for found in store.read_figures(NOW, NOW + 1)]
        assert (route, figures.exact, figures.stale, figures.embed_micros) == ("r", 4, 2, 8)


def test_figures_are_what_they_were_before_they_were_stored() -> None:
    figures = Figures(hit_times=[*range(BUCKETS)], semantic=3, routed_nanos=-5)
    assert Figures.of(figures.packed().encode()) == figures
    assert not Figures()


# Texts


def test_the_interval_of_several_routes_is_no_narrower_than_theirs() -> None:
    figures = {"a": Figures(semantic=30), "b": Figures(semantic=10), "c": Figures(semantic=0)}
    found = savings({}, figures, {"a": Share(0.0, 0.0, 0.1), "b": Share(0.2, 0.1, 0.5)})
    assert found["cache"]["wrong_share"] == pytest.approx({"share": 0.05, "low": 0.025, "high": 0.2})
    unknown = savings({}, figures, {"a": Share(0.0, 0.0, 0.1)})["cache"]["wrong_share"]
    assert unknown == pytest.approx({"share": 0.0, "low": 0.0, "high": 0.325})


def test_an_empty_report_claims_nothing() -> None:
    found = shown({}, {})
    assert found["sentence"] == "0 of 0 requests answered, $0.00 saved"
    assert "no requests" in badge(found)
    assert "| Audits | $0.00 |" in markdown(found)


def test_hits_that_nobody_audited_are_said_to_be_unaudited() -> None:
    found = shown({("r",): Counts(requests=2, hits=1)}, {"r": Figures(semantic=1, light=1)})
    assert found["sentence"] == "1 of 2 requests answered, $0.00 saved, none audited"
    assert "none was audited, so nothing is known of their quality" in markdown(found)


def test_names_of_routes_and_sums_break_no_format() -> None:
    rows = {
        ("a|b",): Counts(requests=3, hits=2, saved=1_500_000_000),
        ("<c>",): Counts(requests=1, calls=1, unpriced=1),
    }
    found = shown(rows, {})
    assert "| a\\|b | 3 | 2 | $1.50 | $0.00 |" in markdown(found)
    assert "| <c> | 1 | 0 | $0.00 | not priced |" in markdown(found)
    assert "1 calls have no price" in markdown(found)
    label = ElementTree.fromstring(badge(found)).attrib["aria-label"]
    assert label == "answered by nearhit: 50 %, $1.50 saved"


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.0, "$0.00"), (1234.5, "$1,234.50"), (0.0123, "$0.0123"), (-2.0, "-$2.00"), (2e-6, "$0.000002")],
)
def test_dollars_have_as_many_digits_as_they_need(amount: float, text: str) -> None:
    assert money(amount) == text


def test_a_picture_has_each_figure_and_needs_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    figures = {"a route": Figures(semantic=10**9, light=10**9, large=10**9, light_as_good=10**9)}
    content = png(shown({("a route",): Counts(requests=10**12, hits=10**11, saved=10**18)}, figures))
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    assert struct.unpack(">II", content[16:24])[0] == 1_000
    monkeypatch.setitem(sys.modules, "PIL.Image", None)
    with pytest.raises(StartupError, match="needs Pillow"):
        png(shown({}, {}))


def shown(rows: Mapping[tuple[str, ...], Counts], figures: Mapping[str, Figures]) -> dict[str, Any]:
    times = {"since": "2026-11-01T00:00:00Z", "until": "2026-11-08T00:00:00Z"}
    return {**savings(rows, figures, {}), **times}
