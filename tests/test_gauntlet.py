"""The levels of the gauntlet hold at its quick sizes, and a level that is missed is told."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from gauntlet.__main__ import PARTS, table
from gauntlet.part import Finding, Part, judged, row_of


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
    return judged("3 crossed", {"3 answers crossed": False, "never told": True})


@pytest.mark.parametrize(("run", "why"), [(breaks, "the port is taken"), (hangs, "within"), (misses, "3 answers")])
async def test_a_part_that_breaks_hangs_or_misses_fails(run: object, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gauntlet.part.QUICK_S", 0.05)
    row = await row_of(Part("a part", "0 crossed", run), quick=True)  # type: ignore[arg-type]
    assert not row.passed
    assert why in row.why
    shown = "\n".join(table([row]))
    assert "NO" in shown
    assert "never told" not in shown


def test_the_command_names_its_parts(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "gauntlet", "--part", "no such part"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2
    assert all(repr(part.name) in done.stderr for part in PARTS)
