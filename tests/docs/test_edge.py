"""docs/edge.md: `nearhit check` accepts its two files without a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.recipes import DOCS, check, recipes


def test_the_recipe_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    [files] = recipes((DOCS / "edge.md").read_text()).values()
    assert sorted(files) == ["config.yaml", "policies/default.yaml"]
    assert check(tmp_path, files, monkeypatch) == 0
    said = capsys.readouterr()
    assert "warning" not in said.out + said.err
