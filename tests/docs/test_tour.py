"""Run docs/tour.md and README.md command by command, in a real shell, with real processes."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.console import fits, run_page, steps

ROOT = Path(__file__).parents[2]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
@pytest.mark.parametrize(("name", "minimum"), [("docs/tour.md", 31), ("README.md", 19)])
async def test_every_command_of_the_page_prints_its_output(tmp_path: Path, name: str, minimum: int) -> None:
    await run_page((ROOT / name).read_text(), tmp_path, minimum)


def test_a_page_is_read_as_it_is_meant() -> None:
    read = list(steps("x\n```console\n$ cat <<'E'\n$ a\nE\n$ a \\\n b\nc ... d\n...\ne\n```\n```sh\n$ no\n```\n"))
    assert [(step.command, step.expected) for step in read] == [
        ("cat <<'E'\n$ a\nE", ""),
        ("a \\\n b", "c ... d\n...\ne"),
    ]
    assert fits("c ... d\n...\ne", "c 1 d\ne\n") and fits("c ... d\n...\ne", "c 1 d  \n2\n3\ne")
    assert not fits("c ... d\n...\ne", "c 1 d\n2\n") and not fits("", "x\n") and fits("", "")
