"""The levels of the gauntlet hold at its quick sizes, and a level that is missed is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from docs.tools.gauntlet import FIGURES, PAGE, with_table
from gauntlet.__main__ import PARTS, parts_of
from gauntlet.part import Finding, Part, Row, row_of, verdict_of
from gauntlet.rows import Rows, read_parts, table
from gauntlet.soak import p95


@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.name)
async def test_the_level_holds(part: Part) -> None:
    row = await row_of(part, quick=True)
    assert row.passed, f"{row.level}: {row.figure}. {row.why}"


async def breaks(quick: bool) -> Finding:
    raise ValueError("the port is taken")


async def hangs(quick: bool) -> Finding:
    await asyncio.Event().wait()
    raise AssertionError


async def misses(quick: bool) -> Finding:
    return verdict_of("3 crossed", {"3 answers crossed": False, "never told": True})


@pytest.mark.parametrize(("run", "why"), [(breaks, "the port is taken"), (hangs, "within"), (misses, "3 answers")])
async def test_a_part_that_breaks_hangs_or_misses_fails(run: object, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gauntlet.part.QUICK_S", 0.05)
    row = await row_of(Part("a part", "0 crossed", run), quick=True)  # type: ignore[arg-type]
    assert not row.passed
    assert why in row.why
    shown = "\n".join(table([row]))
    assert "NO" in shown
    assert "never told" not in shown


def test_the_command_names_its_parts() -> None:
    command = [sys.executable, "-m", "gauntlet", "--only", "no such part"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert all(repr(part.name) in done.stderr for part in PARTS)


def test_the_soak_and_the_inputs_have_the_size_of_the_command() -> None:
    given = {part.name: part for part in parts_of((), 3600.0, 10**6)}
    assert list(given) == [part.name for part in PARTS]
    assert given["soak"].extra_s >= 3600.0
    assert given["fuzzed bodies"].extra_s >= 1000.0
    assert [part.name for part in parts_of(["soak"], None, None)] == ["soak"]


def test_a_pause_of_the_machine_is_no_slower_gateway() -> None:
    """Four clients meet the pause once each. A gateway that grew slower is so in each part of its last quarter."""
    assert p95([5.0] * 26 + [400.0] * 4) == 5.0
    assert p95([5.0, 5.0, 5.0, 5.0, 400.0] * 6) == 400.0
    assert p95([5.0] * 10 + [400.0] * 20) == 400.0
    assert p95([]) == p95([5.0]) == 0.0


def row(part: str, figure: str, passed: bool = True) -> Row:
    return Row(part, "0 crossed", figure, passed, "" if passed else "3 | crossed", 1.0)


def test_a_run_of_one_part_keeps_the_rows_of_the_others(tmp_path: Path) -> None:
    """The file is whole after each part, so a run that is cut off loses nothing."""
    path = tmp_path / "new" / "rows.json"
    first = Rows("full", ["a", "b"], path)
    first.add(row("b", "1 asked"))
    first.add(row("a", "2 asked"))
    Rows("quick", ["a", "b"], path).add(row("b", "3 asked"))
    found = [(part["part"], part["size"], part["figure"]) for part in read_parts(path)]
    assert found == [("a", "full", "2 asked"), ("b", "quick", "3 asked")]


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"parts": [1]}', '{"parts": [{"part": "a"}]}'])
def test_a_file_that_is_no_gauntlets_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "rows.json").write_text(text)
    with pytest.raises(ValueError, match=r"rows.json: expected"):
        Rows("full", ["a"], tmp_path / "rows.json")


def test_the_documentation_has_a_row_for_each_part(tmp_path: Path) -> None:
    rows = Rows("full", ["a", "b"], tmp_path / "rows.json")
    rows.add(row("a", "1 asked"))
    rows.add(row("b", "2 asked: +1 MB; 5 files", passed=False))
    page = with_table("<!-- gauntlet -->\n<!-- end -->\n", read_parts(tmp_path / "rows.json"))
    assert "| `a` | 0 crossed | 1 asked | yes |" in page
    assert "| `b` | 0 crossed | 2 asked. 1 MB more. 5 files. 3 \\| crossed | **no** |" in page


def test_the_page_has_the_figures_of_the_last_run() -> None:
    """If this fails: `python -m docs.tools.gauntlet`."""
    page = PAGE.read_text()
    assert with_table(page, read_parts(FIGURES)) == page
