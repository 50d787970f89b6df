"""Alerts fire where they should and nowhere else, and say what to do. Prometheus' own tools are the judges."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.test_deploy import panels, rules
from tests.fixtures.debian import program

CHECKOUT = Path(__file__).parents[2]
DEPLOY = CHECKOUT / "deploy"
TESTS = sorted((DEPLOY / "prometheus" / "tests").glob("*.test.yml"))
RECORD = re.compile(r"[a-z_]+:nearhit_[a-z_]+:(rate|ratio|ratio_rate|p95_rate|budget_ratio)(5m|1h|1d)?")


def headings(page: Path) -> set[str]:
    """Anchors as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("file", TESTS, ids=lambda file: file.name)
def test_promtool_finds_the_rules_to_do_what_their_tests_say(file: Path) -> None:
    promtool = program("promtool", "prometheus")
    done = subprocess.run(
        [promtool, "test", "rules", str(file)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_is_seen_to_fire() -> None:
    text = "".join(file.read_text() for file in TESTS)
    fired = set(re.findall(r'alertname="(\w+)"', text)) | set(re.findall(r"alertname: (\w+)", text))
    assert fired == {rule["alert"] for rule in rules("alerts")}


@pytest.mark.parametrize("rule", rules("alerts"), ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_what_it_means_and_what_to_do(rule: dict[str, Any]) -> None:
    assert rule["labels"] in ({"severity": "critical"}, {"severity": "warning"})
    assert rule["for"]
    assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    page, _, anchor = rule["annotations"]["runbook"].partition("#")
    assert anchor == rule["alert"].lower()
    assert anchor in headings(CHECKOUT / page)


def test_no_runbook_is_about_an_alert_that_does_not_exist() -> None:
    described = re.findall(r"^#+ (Nearhit\w+)$", (CHECKOUT / "docs" / "operations.md").read_text(), re.MULTILINE)
    assert sorted(described) == sorted(rule["alert"] for rule in rules("alerts"))


def test_recorded_series_are_named_level_metric_operation() -> None:
    recorded = [rule["record"] for rule in rules("recording")]
    assert [name for name in recorded if not RECORD.fullmatch(name)] == []
    assert len(set(recorded)) == len(recorded)


def test_what_is_recorded_is_used() -> None:
    """By a panel, an alert, another rule, or to scale by."""
    used = [rule["expr"] for rule in [*rules("alerts"), *rules("recording")]]
    used += [target["expr"] for panel in panels() for target in panel["targets"]]
    used += [file.read_text() for file in (DEPLOY / "kubernetes").glob("*.yaml")]
    assert [rule["record"] for rule in rules("recording") if rule["record"] not in " ".join(used)] == []


def test_every_panel_says_what_it_shows_and_in_what() -> None:
    for panel in panels():
        assert panel.get("description"), panel["title"]
        assert panel["fieldConfig"]["defaults"].get("unit"), panel["title"]
        assert panel["targets"], panel["title"]
    numbers = [panel["id"] for panel in panels()]
    assert len(set(numbers)) == len(numbers)


def test_amtool_finds_no_fault_with_whom_to_tell() -> None:
    amtool = program("amtool", "prometheus-alertmanager")
    command = [amtool, "check-config", str(DEPLOY / "alertmanager" / "alertmanager.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("severity", ["critical", "warning"])
def test_each_severity_has_somebody_to_tell(severity: str) -> None:
    amtool = program("amtool", "prometheus-alertmanager")
    file = DEPLOY / "alertmanager" / "alertmanager.yml"
    command = [amtool, "config", "routes", "test", f"--config.file={file}", f"severity={severity}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.stdout.strip() == {"critical": "now", "warning": "daytime"}[severity], done.stdout + done.stderr


def test_alerts_that_silence_others_exist() -> None:
    document = yaml.safe_load((DEPLOY / "alertmanager" / "alertmanager.yml").read_text())
    said = {
        name
        for rule in document["inhibit_rules"]
        for each in rule.values()
        for name in re.findall(r"Nearhit\w+", str(each))
    }
    assert said <= {rule["alert"] for rule in rules("alerts")}
