"""docs/cookbook.md and docs/security.md: `nearhit check` accepts every configuration, with its expectations."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.docs.recipes import DOCS, check, recipes

COOKBOOK = recipes((DOCS / "cookbook.md").read_text())
SECURITY = recipes((DOCS / "security.md").read_text())


def test_every_yaml_block_of_the_pages_is_a_named_file() -> None:
    for page, found in (("cookbook.md", COOKBOOK), ("security.md", SECURITY)):
        assert (DOCS / page).read_text().count("```yaml") == sum(map(len, found.values()))


@pytest.mark.parametrize("heading", COOKBOOK)
def test_every_recipe_is_complete_and_states_what_it_does(heading: str) -> None:
    files = COOKBOOK[heading]
    assert sorted(files) == ["config.yaml", "policies/default.yaml"]
    assert yaml.safe_load(files["policies/default.yaml"])["tests"]


@pytest.mark.parametrize("files", [*COOKBOOK.values(), *SECURITY.values()], ids=[*COOKBOOK, *SECURITY])
def test_every_configuration_is_valid(
    files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    status = check(tmp_path, files, monkeypatch)
    said = capsys.readouterr()
    assert status == 0, said
    assert "warning" not in said.out + said.err


@pytest.mark.parametrize("heading", COOKBOOK)
def test_a_wrong_expectation_is_found(
    heading: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = dict(COOKBOOK[heading])
    policy = files["policies/default.yaml"]
    files["policies/default.yaml"] = re.sub(r"expect: \{route: \w+", "expect: {route: another", policy, count=1)
    assert files["policies/default.yaml"] != policy
    assert check(tmp_path, files, monkeypatch) == 1
    assert "tests[0].expect.route" in capsys.readouterr().out


def test_the_index_of_recipes_is_complete() -> None:
    page = (DOCS / "cookbook.md").read_text()
    assert set(re.findall(r"^\| \[(.+?)\]", page, re.MULTILINE)) == set(COOKBOOK)
