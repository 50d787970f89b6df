"""docs/edge.md: its two files are what `nearhit check` takes, without a warning."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gateway.__main__ import main

PAGE = Path(__file__).parents[2] / "docs" / "edge.md"
BLOCK = re.compile(r"`([^`\n]+\.yaml)`:\n\n```yaml\n(.*?)```", re.DOTALL)


def test_the_recipe_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = dict(BLOCK.findall(PAGE.read_text()))
    assert sorted(files) == ["config.yaml", "policies/default.yaml"]
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policies").mkdir()
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    assert main(["check", "--config", "config.yaml"]) == 0
    said = capsys.readouterr()
    assert "warning" not in said.out + said.err
