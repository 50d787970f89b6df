"""Consoles of a page: commands after `$ `, and below each what it prints. `...` on a line of its own stands for any
number of lines, within a line for any signs."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.fixtures.gateways import PATIENT_ENVIRON
from tests.fixtures.triton import free_ports

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HERE_DOCUMENT = re.compile(r"<<'(\w+)'")
MARK = "--the-end-of-step"
COMMAND_TIMEOUT_S = 120.0  # for a command that never ends; it is no claim about time
# Keeps $? for the next command, as a terminal does.
PRELUDE = f"""set -m; exec 2>&1
__over() {{ local code=$?; printf '%s\\n' '{MARK}'; return $code; }}
"""


@asynccontextmanager
async def shell(folder: Path, more: Mapping[str, str]) -> AsyncIterator[asyncio.subprocess.Process]:
    """Start a shell in `folder`; end it with all processes that it started."""
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environ = {name: value for name, value in os.environ.items() if not name.startswith("NEARHIT_")}
    environ |= PATIENT_ENVIRON | more
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


@dataclass(frozen=True, slots=True)
class Step:
    command: str
    expected: str


def steps(page: str) -> Iterator[Step]:
    for block in _BLOCK.findall(page):
        yield from _steps(block.splitlines())


def _steps(lines: list[str]) -> Iterator[Step]:
    rest = iter(lines)
    command, expected = "", list[str]()
    for line in rest:
        if not line.startswith("$ "):
            expected.append(line)
            continue
        if command:
            yield Step(command, "\n".join(expected))
        command, expected = line[2:], []
        end = _HERE_DOCUMENT.search(line)
        while command.endswith("\\") or (end and not command.endswith(f"\n{end[1]}")):
            command += "\n" + next(rest)
    yield Step(command, "\n".join(expected))


def fits(expected: str, said: str) -> bool:
    """Spaces at the ends of lines do not count."""
    pattern = ""
    for line in expected.splitlines():
        parts = map(re.escape, line.rstrip().split("..."))
        pattern += r"(?:[^\n]*\n)*?" if line == "..." else "[^\n]*".join(parts) + r" *\n"
    return re.fullmatch(pattern, said if not said or said.endswith("\n") else said + "\n") is not None


async def run_page(page: str, folder: Path, minimum: int) -> None:
    """Run each command of a page's consoles in one shell, and compare its output with the page.

    The ports of the page are replaced by free ones. `minimum` is the least number of commands that the page has.
    """
    data, admin, endpoint = free_ports(3)
    for written, free in ((8080, data), (9090, admin), (9001, endpoint)):
        page = page.replace(f"127.0.0.1:{written}", f"127.0.0.1:{free}")
    commands = list(steps(page))
    assert len(commands) >= minimum
    ports = {"NEARHIT_SERVER__LISTEN": f"127.0.0.1:{data}", "NEARHIT_SERVER__ADMIN": f"127.0.0.1:{admin}"}
    async with shell(folder, ports) as process:
        for step in commands:
            async with asyncio.timeout(COMMAND_TIMEOUT_S):
                output = await done(process, step.command)
            assert fits(step.expected, output), f"$ {step.command}\n{output}\nexpected:\n{step.expected}"
