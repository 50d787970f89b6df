"""What has changed between two sets of policy files, as a unified diff. Pure."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping

from gateway.config.policy.load import in_turn

MAX_LINES = 5_000  # of a file: the comparison takes up to the square of it
MAX_CHARACTERS = 2**18  # of a diff


def difference(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """Name -> content, before and after -> a unified diff over all of them; empty where nothing has changed."""
    lines: list[str] = []
    length = 0
    for line in _lines(before, after):
        length += len(line)
        if length > MAX_CHARACTERS:
            lines.append(f"\\ the diff goes on: it is longer than {MAX_CHARACTERS} characters\n")
            break
        lines.append(line)
    return "".join(lines)


def changed_lines(diff: str) -> tuple[int, int]:
    """Of a unified diff -> lines added, lines removed."""
    body = [line for line in diff.splitlines() if not line.startswith(("+++ ", "--- "))]
    return sum(line.startswith("+") for line in body), sum(line.startswith("-") for line in body)


def _lines(before: Mapping[str, str], after: Mapping[str, str]) -> Iterator[str]:
    for name in sorted({*before, *after}, key=in_turn):
        old, new = before.get(name), after.get(name)
        if old == new:
            continue
        a, b = (text.splitlines(keepends=True) if text is not None else [] for text in (old, new))
        titles = ("/dev/null" if old is None else f"a/{name}", "/dev/null" if new is None else f"b/{name}")
        if max(len(a), len(b)) > MAX_LINES:
            yield f"--- {titles[0]}\n+++ {titles[1]}\n\\ more than {MAX_LINES} lines: too long to compare\n"
            continue
        for line in difflib.unified_diff(a, b, *titles):
            yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"
