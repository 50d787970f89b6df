"""Consoles of a page: commands after `$ `, and below each what it prints. `...` on a line of its own stands for any
number of lines, within a line for any signs."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_HERE_DOCUMENT = re.compile(r"<<'(\w+)'")


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
