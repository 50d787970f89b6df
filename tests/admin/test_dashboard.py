"""The dashboard's frame and its overview, in a real browser."""

from __future__ import annotations

import pytest
from playwright.async_api import expect

from gateway.cache.threshold.answer_shares import AnswerText
from gateway.cache.threshold.wrong_hits import Label
from tests.fixtures.dashboard import LOOP, Showing, Shown
from tests.fixtures.entries import judged_of, vector_of
from tests.fixtures.gateways import TIERS

pytestmark = LOOP
TOKEN = "t0ken-für-admins"
ADMIN = {"auth": {"mode": "passthrough", "admin_token_env": "ADMIN_TOKEN"}}


async def test_the_overview_shows_what_the_gateway_counts(shown: Shown) -> None:
    served = shown.served
    for _ in range(3):
        await served.chat("How do I reset my password?")
    await served.chat("how do I reset my password")
    await served.chat("What is 2 plus 3?")
    await served.chat("How do I reset my password?", headers={"cache-control": "no-store"})
    served.gateway.dashboard.history_recorder.record()
    await shown.open()
    stats = served.gateway.stats.report()
    verdicts = await shown.table("#verdicts")
    assert stats["verdicts"]["exact"] >= 2
    for verdict, count in stats["verdicts"].items():
        assert verdicts[verdict][:2] == [f"{count:.0f}", f"{100 * count / 6:.1f} %"]
    for title, figure in (
        ("Hit rate", f"{100 * stats['hit_rate']:.1f} %"),
        ("Tokens saved", f"{stats['tokens_saved']:.0f}"),
    ):
        tile = shown.page.locator(".tile").filter(has=shown.page.get_by_text(title, exact=True))
        await expect(tile.locator(".figure")).to_have_text(figure)
    await expect(shown.page.locator("#policy-hash")).to_have_text(stats["policy"]["hash"])
    await expect(shown.card("Traffic").locator("canvas")).to_be_visible()
    legend = await shown.card("Traffic").locator(".legend li span").all_inner_texts()
    assert legend == [verdict for verdict, count in stats["verdicts"].items() if count]
    why = await shown.table("#why")
    assert set(why) == {"light"}
    assert why["light"][0] == "below-threshold"
    assert (await shown.table("#quality"))["default"][:2] == ["1.00 %", "not audited yet"]
    assert (await shown.table("#rules"))["default"][:2] == ["escalate_above: 0.5", f"{0.5:.2f}"]
    assert shown.console == []
    assert [url for url in shown.requests if not url.startswith(served.admin_url + "/")] == []


async def test_new_figures_come_without_a_reload(shown: Shown) -> None:
    await shown.page.clock.install()
    await shown.open()
    await expect(shown.card("No traffic yet")).to_contain_text(f"curl -si {shown.served.url}/v1/chat/completions")
    await shown.served.chat("How do I reset my password?")
    await shown.page.clock.run_for(2000)
    await expect(shown.page.locator("#verdicts tbody tr", has_text="miss")).to_contain_text("100.0 %")
    await expect(shown.card("No traffic yet")).to_be_hidden()


async def test_a_chart_can_be_read_by_keys_and_as_a_table(shown: Shown) -> None:
    await shown.served.chat("How do I reset my password?")
    shown.served.gateway.dashboard.history_recorder.record()
    await shown.open()
    chart = shown.card("Traffic").get_by_role("group", name="Requests per second by verdict")
    await chart.focus()
    await shown.page.keyboard.press("End")
    await expect(shown.card("Traffic").locator(".when")).not_to_be_empty()
    assert ": miss" in str(await shown.card("Traffic").locator(".plot").get_attribute("aria-label"))
    await shown.card("Traffic").get_by_text("As a table").click()
    await expect(shown.card("Traffic").get_by_role("columnheader")).to_have_text(["From", "miss"])


async def test_without_the_charts_library_there_are_tables(shown: Shown) -> None:
    await shown.served.chat("How do I reset my password?")
    shown.served.gateway.dashboard.history_recorder.record()
    await shown.page.route(
        "**/dashboard/uplot.js", lambda route: route.fulfill(body="", content_type="text/javascript")
    )
    await shown.open()
    await expect(shown.card("Traffic").get_by_role("columnheader")).to_have_text(["From", "miss"])
    await expect(shown.card("Traffic").locator("canvas")).to_have_count(0)
    assert shown.console == []


async def test_every_view_is_a_link_and_keys_lead_to_it(shown: Shown) -> None:
    await shown.open("overview?span=30d")
    await expect(shown.page.get_by_role("radio", name="30 days")).to_be_checked()
    await shown.page.keyboard.press("Tab")
    await expect(shown.page.locator("#skip")).to_be_focused()
    await shown.page.keyboard.press("Enter")
    await expect(shown.page.locator("#main")).to_be_focused()
    await shown.page.get_by_role("radio", name="30 days").press("ArrowLeft")
    await expect(shown.page).to_have_url(f"{shown.served.admin_url}/dashboard#/overview?span=7d")


async def test_the_theme_is_the_systems_or_the_one_that_is_chosen(showing: Showing) -> None:
    shown = await showing.page(await showing.gateway(), color_scheme="dark")
    await shown.open()
    back = "getComputedStyle(document.body).backgroundColor"
    assert await shown.page.evaluate(back) == "rgb(14, 17, 22)"
    await shown.page.get_by_label("Theme").select_option("light")
    assert await shown.page.evaluate(back) == "rgb(246, 247, 249)"
    await shown.page.reload()
    await shown.page.locator("#live.good").wait_for()
    assert await shown.page.evaluate(back) == "rgb(246, 247, 249)"


async def test_a_token_is_asked_for_and_kept_out_of_every_address(showing: Showing) -> None:
    served = await showing.gateway(environ={"ADMIN_TOKEN": TOKEN}, **ADMIN)
    shown = await showing.page(served)
    await shown.page.goto(f"{served.admin_url}/dashboard#/overview")
    for token, said in (("not-the-one", "This is not the token."), (TOKEN, None)):
        await shown.page.get_by_label("Token of the admin port").fill(token)
        await shown.page.keyboard.press("Enter")
        if said:
            await expect(shown.page.get_by_role("alert").filter(has_text=said)).to_be_visible()
    await expect(shown.page.locator("#live")).to_have_text("live")
    await shown.page.reload()
    await expect(shown.page.locator("#live")).to_have_text("live")
    assert not [url for url in shown.requests if TOKEN in url or "not-the-one" in url]
    await shown.page.get_by_role("button", name="Sign out").click()
    await expect(shown.page.get_by_label("Token of the admin port")).to_be_focused()
    assert await shown.page.evaluate("sessionStorage.length") == 0


async def test_a_rejected_policy_is_on_top_as_text(shown: Shown) -> None:
    policies = shown.served.gateway.config.policies
    # What a file says is shown as text, whatever it is.
    (policies / "default.yaml").write_text(TIERS.replace("ttl: 1h", "ttl: <img src=x onerror=alert(1)>", 1))
    (fault,) = await shown.served.gateway.policies.reload()
    await shown.open()
    alert = shown.page.locator("#alert-policy")
    await expect(alert.locator("li")).to_have_text([str(fault)])
    assert "<img src=x" in str(fault)
    await expect(shown.page.locator("#alerts img")).to_have_count(0)
    await expect(shown.page).to_have_title("Policy rejected · Overview · nearhit")
    assert shown.console == []


async def test_a_drift_alarm_is_an_alert_and_an_event(shown: Shown) -> None:
    space, telemetry = shown.served.gateway.parts.space, shown.served.gateway.parts.telemetry
    vector = vector_of(1, space.embedder.dimension)
    await shown.open()
    await expect(shown.card("Drift alarms")).to_contain_text("No drift alarm in this time.")
    for label in [Label.RIGHT] * 300 + [Label.WRONG] * 60:
        space.labels.report("default", judged_of(score=0.75, vector=vector), label, "miss")
        if telemetry.drift_alarms.values["default",]:
            break
    shown.served.gateway.dashboard.history_recorder.record()
    await shown.open()
    await expect(shown.page.locator("#alert-drift li")).to_have_text(
        "default: 0 labels since the alarm, shown until 1,000"
    )
    await expect(shown.page.locator("#drift tbody tr")).to_have_count(1)
    assert (await shown.table("#drift"))["default"][1] == "1 alarm: the threshold fell back to the calibration"
    assert shown.console == []


async def test_a_route_whose_answers_are_alike_is_an_alert(shown: Shown) -> None:
    answers = shown.served.gateway.parts.space.comparisons.answers_of("default")
    for number in range(40):
        answers.observe("scope", AnswerText("no" if number % 4 else f"yes, {number}"))
    await shown.open()
    await expect(shown.page.locator("#alert-alike li")).to_have_text("default: one text is 74 % of its answers")
    assert shown.console == []


async def test_a_lost_connection_is_said_and_found_again(shown: Shown) -> None:
    await shown.page.clock.install()
    await shown.open()
    await shown.page.route("**/admin/stats", lambda route: route.abort())
    await shown.page.clock.run_for(2000)
    await expect(shown.page.locator("#alert-lost")).to_contain_text("The gateway cannot be reached")
    await expect(shown.page.locator("#live")).to_have_text("connection lost")
    await shown.page.unroute("**/admin/stats")
    await shown.page.clock.run_for(2000)
    await expect(shown.page.locator("#live")).to_have_text("live")


async def test_nothing_can_become_a_script(shown: Shown) -> None:
    """Whatever a module might do wrong with a prompt, the page's own policy stops."""
    await shown.open()
    for attempt in (
        "document.body.innerHTML = '<img src=x onerror=alert(1)>'",
        "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
        "document.body.setAttribute('onclick', 'alert(1)')",
    ):
        with pytest.raises(Exception, match="This document requires"):
            await shown.page.evaluate(attempt)


async def test_no_view_has_a_barrier_that_axe_finds_in_light_or_dark(shown: Shown) -> None:
    for _ in range(2):
        await shown.served.chat("How do I reset my password?")
    shown.served.gateway.dashboard.history_recorder.record()
    await shown.open()
    await shown.card("Traffic").locator(".legend b").first.wait_for()
    for view in await shown.page.locator("#nav a").evaluate_all("links => links.map(link => link.dataset.view)"):
        await shown.page.goto(f"{shown.served.admin_url}/dashboard#/{view}")
        await shown.page.locator("main .card:visible").first.wait_for()
        await shown.page.emulate_media(color_scheme="light", reduced_motion="reduce")
        assert await shown.violations(within="html" if view == "overview" else "main") == [], view
        if view in ("overview", "policy"):
            await shown.page.emulate_media(color_scheme="dark", reduced_motion="reduce")
            assert await shown.violations("color-contrast") == [], view
