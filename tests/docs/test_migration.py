"""Check that `nearhit check` accepts every configuration in docs/migration.md without a warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.__main__ import main
from tests.docs.recipes import DOCS, check

PAGE = DOCS / "migration.md"
BLOCK = re.compile(r"^([^\n]*)\n\n```yaml\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LABEL = re.compile(r"nearhit `([^`]+\.yaml)`:")
OTHERS = re.compile(r"(?:LiteLLM|vLLM Semantic Router)'s `config.yaml`:")
FILES = ["config.yaml", "policies/default.yaml"]


def sections() -> dict[str, dict[str, str]]:
    """Return the nearhit files of each section that has some."""
    found = {}
    for section in PAGE.read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        blocks = BLOCK.findall(text)
        unlabelled = [label for label, _ in blocks if not LABEL.fullmatch(label) and not OTHERS.fullmatch(label)]
        assert not unlabelled and len(blocks) == text.count("```yaml"), (title, unlabelled)
        files = {match[1]: code for label, code in blocks if (match := LABEL.fullmatch(label))}
        if files:
            found[title] = files
    return found


def test_every_product_has_both_files() -> None:
    assert {title: sorted(files) for title, files in sections().items()} == {
        "From LiteLLM": FILES,
        "From GPTCache": FILES,
        "From vLLM Semantic Router": FILES,
    }


@pytest.mark.parametrize(
    ("title", "product"), [("From LiteLLM", "litellm"), ("From vLLM Semantic Router", "vllm-semantic-router")]
)
def test_the_import_of_the_example_gives_the_files_and_the_report_of_the_page(
    title: str, product: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    section = next(part for part in PAGE.read_text().split("\n## ") if part.startswith(f"{title}\n"))
    old = next(code for label, code in BLOCK.findall(section) if OTHERS.fullmatch(label))
    (tmp_path / "config.yaml").write_text(old)
    assert main(["import", product, "config.yaml"]) == 0
    report = re.search(rf"```console\n\$ nearhit import {product} config.yaml\n(.*?)```", section, re.DOTALL)
    assert report is not None and capsys.readouterr().out == report[1]
    written = {name: (tmp_path / "nearhit" / name).read_text() for name in FILES}
    assert written == sections()[title]


@pytest.mark.parametrize("title", sections())
def test_the_configuration_is_valid(
    title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = sections()[title]
    assert check(tmp_path, files, monkeypatch) == 0
    said = capsys.readouterr()
    assert "no faults" in said.out
    assert "warning" not in said.out + said.err
