"""Run docs/tour.md command by command, in a real shell, with real processes."""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.docs.console import fits, steps
from tests.fixtures.gateways import PATIENT_ENVIRON
from tests.fixtures.triton import free_ports

PAGE = Path(__file__).parents[2] / "docs" / "tour.md"
MARK = "--the-end-of-step"
# Keeps $? for the next command, as a terminal does.
PRELUDE = f"""set -m; exec 2>&1
__over() {{ local code=$?; printf '%s\\n' '{MARK}'; return $code; }}
"""


@asynccontextmanager
async def shell(folder: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a shell in `folder`; end it with all processes that it started."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("NEARHIT_")}
    environ |= PATIENT_ENVIRON
    process = await asyncio.create_subprocess_exec(
        *("bash", "--noprofile", "--norc"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        cwd=folder,
        env={**environ, "PATH": path, "COLUMNS": "100"},
    )
    assert process.stdin is not None
    try:
        process.stdin.write(PRELUDE.encode())
        yield process
    finally:
        process.stdin.write(b"kill $(jobs -p) 2> /dev/null; wait; exit\n")
        process.stdin.close()
        await process.wait()


async def done(process: asyncio.subprocess.Process, command: str) -> str:
    """Run a command, and return its output once it has ended or runs in the background."""
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(f"{command}\n__over\n".encode())
    said = ""
    while not (line := (await process.stdout.readline()).decode()).endswith(f"{MARK}\n"):
        assert line, said
        said += line
    return said + line.removesuffix(f"{MARK}\n")


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
async def test_every_command_of_the_tour_prints_what_the_page_says(tmp_path: Path) -> None:
    page = PAGE.read_text()
    for written, free in zip((8080, 9090, 9001), free_ports(3), strict=True):
        page = page.replace(f"127.0.0.1:{written}", f"127.0.0.1:{free}")
    tour = list(steps(page))
    assert len(tour) > 30
    async with shell(tmp_path) as process:
        for step in tour:
            said = await done(process, step.command)
            assert fits(step.expected, said), f"$ {step.command}\n{said}\nexpected:\n{step.expected}"


def test_a_page_is_read_as_it_is_meant() -> None:
    read = list(steps("x\n```console\n$ cat <<'E'\n$ a\nE\n$ a \\\n b\nc ... d\n...\ne\n```\n```sh\n$ no\n```\n"))
    assert [(step.command, step.expected) for step in read] == [
        ("cat <<'E'\n$ a\nE", ""),
        ("a \\\n b", "c ... d\n...\ne"),
    ]
    assert fits("c ... d\n...\ne", "c 1 d\ne\n") and fits("c ... d\n...\ne", "c 1 d  \n2\n3\ne")
    assert not fits("c ... d\n...\ne", "c 1 d\n2\n") and not fits("", "x\n") and fits("", "")
