"""The dashboard's policy view in a real browser: faults as one types, a diff, application, and the way back."""

from __future__ import annotations

from typing import Any

from playwright.async_api import expect

from tests.fixtures.dashboard import LOOP, Showing, Shown
from tests.fixtures.gateways import TIERS
from tests.fixtures.waiting import until

pytestmark = LOOP
SUPPORT = "version: 1\nroutes:\n  - {name: support, match: {headers: {x-app: support}}, route: {backend: light}}\n"
CHANGED = TIERS.replace("escalate_above: 0.5", "escalate_above: 0.4")


async def test_faults_stand_at_their_lines_while_one_types(shown: Shown) -> None:
    page = shown.page
    await shown.open("policy")
    verdict = page.locator("#editor-verdict")
    await expect(verdict).to_have_text("no faults; as it is in force")
    await page.get_by_label("Policy file").fill(TIERS.replace("escalate_above", "escalate_abve"))
    await expect(verdict).to_have_text("1 fault: the policy in force stays")
    fault = page.get_by_role("list", name="Faults").get_by_role("listitem")
    await expect(fault).to_contain_text("did you mean 'escalate_above'?")
    line = next(i for i, text in enumerate(TIERS.split("\n"), 1) if "escalate_above" in text)
    await expect(page.locator(".gutter .bad")).to_have_text(str(line))
    await expect(page.get_by_role("button", name="Apply")).to_be_disabled()
    await fault.get_by_role("button").click()
    selected = "() => { const a = document.activeElement; return a.value.slice(a.selectionStart, a.selectionEnd); }"
    assert "escalate_abve" in await page.evaluate(selected)
    await page.get_by_role("button", name="Discard").click()
    await expect(verdict).to_have_text("no faults; as it is in force")
    assert [line for line in shown.console if "422" not in line] == []


async def test_a_change_is_seen_applied_and_taken_back(shown: Shown) -> None:
    page, gateway = shown.page, shown.served.gateway
    before = gateway.policy.hash
    await shown.open("policy")
    await expect(page.get_by_text("no faults; as it is in force")).to_be_visible()
    await page.get_by_label("Policy file").fill(CHANGED)
    await expect(page.locator("#editor-diff .add")).to_contain_text("escalate_above: 0.4")
    await page.get_by_label("Comment").fill("less of the large one, für heute")
    await page.get_by_role("button", name="Apply").click()
    await page.get_by_role("dialog").get_by_role("button", name="Apply").click()
    await expect(page.locator("#history tbody tr")).to_have_count(2)
    assert gateway.policy.hash != before
    assert (gateway.config.policies / "default.yaml").read_text() == CHANGED
    newest = page.locator("#history tbody tr").first
    await expect(newest).to_contain_text("less of the large one, für heute")
    await expect(newest).to_contain_text("dashboard")
    await newest.get_by_role("button", name="What version 2 changed").click()
    await expect(page.locator("#version-diff .del")).to_contain_text("escalate_above: 0.5")
    await page.get_by_role("button", name="Roll back to version 1").click()
    await page.get_by_role("dialog").get_by_role("button", name="Roll back").click()
    await expect(page.locator("#history tbody tr")).to_have_count(3)
    assert gateway.policy.hash == before
    await expect(page.get_by_label("Policy file")).to_have_value(TIERS)


async def test_a_change_made_meanwhile_is_not_written_over(shown: Shown) -> None:
    page, gateway = shown.page, shown.served.gateway
    await shown.open("policy")
    await expect(page.get_by_text("no faults; as it is in force")).to_be_visible()
    await page.get_by_label("Policy file").fill(CHANGED)
    (gateway.config.policies / "default.yaml").write_text(TIERS.replace("0.5", "0.9"))
    assert await gateway.policies.reload() == ()
    await expect(page.get_by_text("Another policy has come into force meanwhile")).to_be_visible()
    await page.get_by_role("button", name="Apply").click()
    await page.get_by_role("dialog").get_by_role("button", name="Apply").click()
    await expect(page.get_by_role("alert").filter(has_text="That did not work")).to_contain_text(gateway.policy.hash)
    assert "0.9" in (gateway.config.policies / "default.yaml").read_text()
    await page.get_by_role("button", name="Discard").click()
    await expect(page.get_by_label("Policy file")).to_have_value(TIERS.replace("0.5", "0.9"))


async def test_what_is_written_in_one_file_stays_while_another_is_looked_at(shown: Shown) -> None:
    page, policies = shown.page, shown.served.gateway.config.policies
    (policies / "support.yaml").write_text(SUPPORT)
    assert await shown.served.gateway.policies.reload() == ()
    await shown.open("policy?file=support.yaml")
    area, files = page.get_by_label("Policy file"), page.get_by_label("File", exact=True)
    await expect(area).to_have_value(SUPPORT)
    await area.fill(SUPPORT + "# a note\n")
    await files.select_option("default.yaml")
    await expect(area).to_have_value(TIERS)
    await files.select_option("support.yaml")
    await expect(area).to_have_value(SUPPORT + "# a note\n")


async def test_a_policy_is_tried_on_the_traffic_that_was_recorded(showing: Showing) -> None:
    recording = TIERS.replace("match: {}", "match: {}\n    record: {prompts: on}")
    shown = await showing.page(await showing.gateway(recording, traffic={"flush": "50ms"}))
    page = shown.page
    await shown.open("policy")
    await page.get_by_role("button", name="Try this policy").click()
    await expect(page.locator("#simulate").get_by_role("alert")).to_contain_text("no traffic")
    for _ in range(3):
        await shown.served.chat("How do I reset my password?")
    await page.get_by_label("Policy file").fill(recording.replace("exact: {ttl: 1h}", "exact: off"))
    recorder: Any = shown.served.gateway.parts.recorder.log
    traffic = recorder.metrics.traffic.values
    await until(lambda: traffic["recorded",] == 3)
    await page.get_by_role("button", name="Try this policy").click()
    sides = page.get_by_role("table", name="In force against tried")
    await expect(sides.get_by_role("row", name="– exact")).to_contain_text("66.7 %")
    await expect(page.get_by_role("table", name="Requests that would change")).to_contain_text("How do I reset")
    assert [line for line in shown.console if "422" not in line] == []
