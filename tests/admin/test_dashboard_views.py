"""The dashboard's views of backends, limits, stored answers and live decisions, in a real browser."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from playwright.async_api import Route, expect

from gateway.features.light.state import Change, Rollout, RolloutEvent
from gateway.features.light.store import RolloutStore
from tests.fixtures.dashboard import LOOP, Showing, Shown
from tests.fixtures.gateways import TIERS
from tests.fixtures.waiting import until

pytestmark = LOOP
HOSTILE = "<img src=x onerror=\"document.title='taken'\"><script>document.title='taken'</script> javascript:alert(1)"
OPEN = TIERS.replace("match: {}", "match: {}\n    record: {prompts: on}")
LIMITED = TIERS.replace("match: {}", "match: {}\n    limits: [{per: tenant, requests: 2/h}]")


async def replaced(shown: Shown, path: str, **fields: Any) -> None:
    """What `path` answers has these `fields` from now on."""

    async def answer(route: Route) -> None:
        response = await route.fetch()
        await route.fulfill(response=response, body=json.dumps({**await response.json(), **fields}))

    await shown.page.route(f"**{path}", answer)


async def test_backends_are_shown_with_their_upstreams_and_caches(shown: Shown) -> None:
    await shown.served.chat("How do I reset my password?")
    await replaced(shown, "/admin/stats", embedder_to_come="new/model", migration={"done": 2, "left": 3, "skipped": 0})
    await shown.open("backends")
    backends = await shown.table("#backends")
    assert backends["light"][0] == "closed"
    assert backends["light"][5:] == ["1", "0"]
    upstreams = await shown.table("#upstreams")
    assert upstreams["light"][0] == shown.served.gateway.parts.pools["light"].endpoints[0].upstream.address
    assert (await shown.table("#caches"))["front, in process"][0] == "1"
    await expect(shown.page.locator("#migration")).to_have_text(
        "Lookups go by this model until all is embedded anew for new model: 2 done, 3 left, 0 skipped."
    )
    assert shown.console == []


async def test_limits_say_who_was_refused(showing: Showing) -> None:
    shown = await showing.page(await showing.gateway(LIMITED))
    for number in range(3):
        await shown.served.chat(f"question {number}", headers={"authorization": "Bearer k"})
    await shown.open("tenants")
    row = shown.page.locator("#limits tbody tr")
    await expect(row).to_contain_text("2/h")
    await expect(row.locator("td").nth(5)).to_have_text("1")
    await expect(shown.card("Keys")).to_contain_text("No key is in force")
    wanted = {"name": "ci", "tenant": "acme", "limits": [{"requests": "60/min"}]}
    async with shown.served.session.post(f"{shown.served.admin_url}/admin/keys", json=wanted) as response:
        text = (await response.json())["key"]
    await shown.page.reload()
    await expect(shown.card("Keys").locator("tbody tr")).to_contain_text("requests 60/min")
    assert text not in await shown.page.content()
    await shown.page.get_by_label("Subject").fill("nobody")
    await expect(row).to_have_count(0)


async def test_questions_are_shown_where_the_policy_says_so(showing: Showing) -> None:
    shown = await showing.page(await showing.gateway(OPEN))
    for _ in range(3):
        await shown.served.chat(HOSTILE)
    await shown.open("questions")
    row = shown.page.locator("#questions tbody tr")
    await expect(row.locator("th")).to_have_text(HOSTILE)
    await expect(row.locator("td").nth(2)).to_have_text("2")
    await expect(shown.card("Top questions")).to_contain_text("Questions of these routes may be shown: default.")
    await row.get_by_role("link").click()
    await expect(shown.page.get_by_label("Question", exact=True)).to_have_text(HOSTILE)
    assert await shown.page.locator("main img, main script").count() == 0
    await expect(shown.page).to_have_title("Entries · nearhit")
    assert shown.console == []


async def test_questions_are_hidden_where_it_does_not(shown: Shown) -> None:
    for _ in range(2):
        await shown.served.chat("a secret")
    await shown.open("questions")
    await expect(shown.page.locator("#questions tbody tr")).to_contain_text("hidden by the policy")
    assert "secret" not in await shown.page.locator("main").inner_text()
    async with shown.served.session.get(f"{shown.served.admin_url}/admin/cache/top") as response:
        assert b"secret" not in await response.read()


async def test_an_answer_is_found_looked_at_and_removed_after_a_question(showing: Showing) -> None:
    shown = await showing.page(await showing.gateway(OPEN))
    for tag, question in (("a", "How do I reset my password?"), ("a", HOSTILE), ("b", "What is a scope?")):
        await shown.served.chat(question, headers={"Cache-Tag": tag})
    page = shown.page
    await shown.open("entries?tag=a")
    await expect(page.locator("#found tbody tr")).to_have_count(2)
    await expect(page.locator("#found tbody th", has_text="<img src=x")).to_have_count(1)
    await page.locator("#found tbody tr", has_text="password").get_by_role("button").click()
    inspected = page.locator("#inspected")
    await expect(inspected.get_by_label("Answer")).not_to_be_empty()
    await expect(inspected.locator("h2")).to_be_focused()

    await page.get_by_role("button", name="Count what would go").click()
    await expect(page.locator("#purge-said")).to_have_text("2 answers would go.")
    await page.get_by_role("searchbox", name="Route").fill("defalt")
    await page.get_by_role("button", name="Count what would go").click()
    await expect(page.locator("#purge-said")).to_have_text(
        "Nothing meets all of these. Note: no route of the policy in force is called 'defalt' (there are: default)."
    )
    await page.get_by_role("searchbox", name="Route").fill("")
    await page.get_by_label("Tag").fill("a,")  # other conditions than those that were counted
    await expect(page.get_by_role("button", name="Remove", exact=True)).to_be_disabled()
    await page.get_by_label("Tag").fill("a")
    await page.get_by_role("button", name="Count what would go").click()
    await page.get_by_role("button", name="Remove 2 answers").click()
    await expect(page.get_by_role("dialog")).to_contain_text("tags: a")
    await page.keyboard.press("Escape")
    assert shown.served.gateway.parts.telemetry.purged.total() == 0
    await page.get_by_role("button", name="Remove 2 answers").click()
    await page.get_by_role("button", name="Remove them").click()
    await expect(page.locator("#purge-said")).to_contain_text("2 answers were removed")
    await expect(page.locator("#found")).to_contain_text("No stored answer meets all of these.")
    assert shown.served.gateway.parts.telemetry.purged.total() == 2
    assert (await shown.served.chat("What is a scope?", headers={"Cache-Tag": "b"})).cache_status.startswith(
        "nearhit; hit"
    )
    assert shown.console == []


async def test_a_pair_and_a_request_are_explained(shown: Shown) -> None:
    await shown.open("entries")
    card = shown.card("Explain")
    await card.get_by_label("Stored question").fill("What is a scope?")
    await card.get_by_label("Asked question").fill("what is a scope?")
    await card.get_by_role("button", name="Explain").click()
    await expect(card.locator(".alert.good strong")).to_have_text("Served")
    await card.get_by_role("radio", name="A request").check()
    await card.get_by_role("button", name="Explain").click()
    await expect(card.locator(".alert strong")).to_have_text("To light")
    await card.get_by_label("Request, as a client would send it").fill("{")
    await card.get_by_role("button", name="Explain").click()
    await expect(card.get_by_role("alert")).to_contain_text("The request is not JSON")


async def test_decisions_come_as_they_are_made(shown: Shown) -> None:
    await shown.open("live")
    await until(lambda: shown.served.gateway.dashboard.decisions.is_watched)
    await shown.served.chat("a secret question")
    rows = shown.page.locator("#decisions tbody tr")
    await expect(rows).to_have_count(1)
    await expect(rows.first).to_contain_text("below-threshold")
    await shown.served.chat("a secret question")
    await expect(rows.first).to_contain_text("exact")
    await shown.page.get_by_role("button", name="Pause").click()
    await until(lambda: not shown.served.gateway.dashboard.decisions.is_watched)
    assert "secret" not in await shown.page.locator("main").inner_text()
    assert shown.console == []


async def test_what_a_role_may_not_do_is_said_or_not_offered(shown: Shown) -> None:
    await replaced(shown, "/admin/whoami", name="ops", role="operate")
    await shown.open("policy")
    await expect(shown.page.locator("#who")).to_have_text("ops, operate")
    await expect(shown.page.get_by_text("no faults; as it is in force")).to_be_visible()
    await shown.page.get_by_label("Policy file").fill(TIERS.replace("0.5", "0.4"))
    await expect(shown.page.locator("#editor-verdict")).to_contain_text("not for this role")
    await expect(shown.page.get_by_role("button", name="Apply")).to_be_disabled()
    await shown.page.route(
        "**/admin/limits*", lambda route: route.fulfill(status=403, json={"error": "this takes the role operate"})
    )
    await shown.page.goto(f"{shown.served.admin_url}/dashboard#/tenants")
    await expect(shown.page.get_by_role("alert").filter(has_text="Not for your role")).to_contain_text(
        "this takes the role operate"
    )


async def test_what_failed_is_no_longer_said_once_it_works_again(shown: Shown) -> None:
    paths = ("/admin/cache/top?limit=50", "/admin/keys", "/admin/limits?top=1000")

    async def refuse(route: Route) -> None:
        await route.fulfill(status=503, json={"error": "the store is away"})

    for view, failures in (("questions", 1), ("tenants", 2)):
        for path in paths:
            await shown.page.route(f"**{path}", refuse)
        await shown.open(view)
        alerts = shown.page.get_by_text("the store is away")
        await expect(alerts).to_have_count(failures)
        for path in paths:
            await shown.page.unroute(f"**{path}")
        await expect(alerts).to_have_count(0)  # it looks again every five seconds


async def test_a_long_question_leaves_room_for_the_columns_beside_it(showing: Showing) -> None:
    shown = await showing.page(await showing.gateway(OPEN), viewport={"width": 1000, "height": 900})
    for _ in range(2):
        await shown.served.chat("word " * 60)
    for view in ("entries", "questions"):
        await shown.open(view)
        await expect(shown.page.locator("main tbody th", has_text="word word")).to_have_count(1)
        tables = shown.page.locator("main .table:visible")
        assert await tables.evaluate_all("all => all.map(one => one.scrollWidth - one.clientWidth)") == [0] * (
            await tables.count()
        )


async def test_a_short_view_leaves_a_narrow_window_its_bar(showing: Showing) -> None:
    shown = await showing.page(await showing.gateway(), viewport={"width": 400, "height": 900})
    await shown.open("tenants")
    bar = await shown.page.locator("nav.rail").bounding_box()
    assert bar is not None
    assert bar["height"] < 120


async def test_the_spend_page_shows_who_spent_what_and_the_month(showing: Showing) -> None:
    booked = TIERS.replace("match: {}", "match: {}\n    spend: {budget: 0.001}\n    record: on")
    price = {"input_per_million": 100.0, "output_per_million": 100.0}
    # West of UTC, the day of UTC has begun before that of the reader. Its bar has the date of UTC.
    shown = await showing.page(await showing.gateway(booked, price=price), timezone_id="Pacific/Honolulu")
    for _ in range(3):
        await shown.served.chat("How do I reset my password?", headers={"authorization": "Bearer k"}, model=HOSTILE)
    await shown.open("spend?by=model&span=24h")
    row = shown.page.locator("#payers tbody tr")
    await expect(row).to_contain_text(HOSTILE)
    await expect(row.locator("td").nth(0)).to_have_text("3")
    await expect(row.locator("td").nth(1)).to_have_text("2")
    await expect(shown.page.locator("#saved")).to_contain_text("2 of 3 requests answered, $0.0024 saved, p50 from")
    await expect(shown.page.locator("#routed")).to_contain_text("1 of 1 calls sent to the light model")
    budget = await shown.table("#budgets")
    assert budget["default"][:3] == ["$0.0012", "$0.0010", "$0.0002 over"]
    await expect(shown.page.locator("#budgets")).to_contain_text("at its end if it goes on like the last week")
    await expect(shown.card("Cost and savings")).to_contain_text("$0.0012")
    await shown.page.get_by_role("radio", name="7 days").check()
    await shown.card("Cost and savings").get_by_text("As a table").click()
    latest = shown.card("Cost and savings").locator("tbody tr").first
    await expect(latest).to_contain_text(f"{datetime.now(UTC).day} {datetime.now(UTC):%b} 00:00")
    await shown.page.get_by_role("radio", name="Backend").check()
    await expect(row.locator("th")).to_have_text("light")
    await shown.page.get_by_role("button", name="Try other choices").click()
    others = shown.page.locator("#alternatives")
    await expect(others).to_contain_text("no other choice is known to cost less and keep as much")
    await expect(others.locator("tbody tr").first).to_contain_text("light, as it was")
    assert await shown.page.locator("main img, main script").count() == 0
    assert await shown.violations(within="main") == []
    assert shown.console == []


async def test_the_page_of_light_models_shows_each_change_and_takes_a_version_back(
    showing: Showing,
) -> None:
    policy = TIERS.replace("escalate_above: 0.5", "escalate_above: 0.5, rollout: on").replace(
        "light: light", "light: tri"
    )
    backends = {"tri": {"adapter": "triton", "url": "grpc://127.0.0.1:1", "model": "intents"}}
    served = await showing.gateway(policy, more_backends=backends)
    store = RolloutStore(served.gateway.stores.redis)
    begun = Rollout(revision=1, stable="1", candidate="2", step=1, epoch=2)
    told = begun.record(RolloutEvent(1_790_000_000.0, Change.STARTED, "2", HOSTILE, "nearhit light"))
    assert await store.replace("default", Rollout(), told.packed())
    await store.count("default", 2, {"audits": 40, "right": 39, "won": 2, "lost": 1, "calls": 90, "errors": 3})
    shown = await showing.page(served)
    await shown.open("light")
    rows = await shown.table("#versions")
    assert rows["default"][:5] == ["intents", "1", "2", "25 %", "–"]
    assert (await shown.table("#evidence"))["default"][:5] == ["2", "40", "97.5 %", "2", "1"]
    await expect(shown.page.locator("#changes")).to_contain_text(HOSTILE)
    await shown.page.get_by_role("button", name="Roll back").click()
    await shown.page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    await expect(shown.page.locator("#changes tbody tr").first).to_contain_text("rolled-back")
    assert (await store.read("default")).candidate is None
    assert await shown.page.locator("main img, main script").count() == 0
    assert await shown.violations(within="main") == []
    assert shown.console == []
