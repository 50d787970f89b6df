"""Keeps the rows of a run in a file, and writes them as a table for a terminal."""

from __future__ import annotations

import json
import os
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import asdict, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gauntlet.part import Row

WIDTH = 60  # of the two columns of text


def table(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the lines of the table."""
    name = max((len(row.part) for row in rows), default=4)
    yield f"{'part':<{name}}  {'level':<{WIDTH}}  {'figure':<{WIDTH}}  {'s':>6}  pass"
    for row in rows:
        told = row.figure if row.passed else f"{row.figure}. {row.why}"
        level, figure = textwrap.wrap(row.level, WIDTH), textwrap.wrap(told, WIDTH)
        for i in range(max(len(level), len(figure))):
            texts = [lines[i] if i < len(lines) else "" for lines in (level, figure)]
            ends = f"{row.seconds:>6.1f}  {'yes' if row.passed else 'NO'}" if i == 0 else ""
            line = f"{'' if i else row.part:<{name}}  {texts[0]:<{WIDTH}}  {texts[1]:<{WIDTH}}  {ends}"
            yield line.rstrip()


def read_parts(path: Path) -> list[dict[str, Any]]:
    """Return the parts in a file: the fields of `Row`, with `size`, `at`, `cores` and `load`. Raise `ValueError`."""
    needed = {field.name for field in fields(Row)} | {"size", "at", "cores", "load"}
    try:
        parts: list[dict[str, Any]] = json.loads(path.read_text())["parts"]
        missing = sorted(set[str]().union(*(needed - part.keys() for part in parts)))
    except (json.JSONDecodeError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: expected the JSON of a gauntlet, found {error!r}") from None
    if missing:
        raise ValueError(f"{path}: expected the fields {', '.join(missing)} in each part")
    return parts


class Rows:
    """The rows of a run. After each one the file has all rows so far, so that an interrupted run keeps its own.

    `size` is `quick` or `full`. `names` gives the order. Parts that do not run again keep the row that the file has.
    """

    def __init__(self, size: str, names: Sequence[str], path: Path | None) -> None:
        """Read the file, if there is one. Raise `ValueError` for a file of another form."""
        self._size, self._names, self._path = size, names, path
        self.of_this_run: list[Row] = []
        parts = read_parts(path) if path is not None and path.exists() else []
        self._known = {part["part"]: part for part in parts}

    def add(self, row: Row) -> None:
        """Record a row, and write the file."""
        self.of_this_run.append(row)
        about = {"size": self._size, "at": datetime.now(UTC).isoformat(timespec="seconds"), "cores": os.cpu_count()}
        self._known[row.part] = asdict(row) | about | {"load": round(os.getloadavg()[0], 1)}
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        written = self._path.with_suffix(".part")
        parts = [self._known[name] for name in self._names if name in self._known]
        written.write_text(json.dumps({"parts": parts}, indent=1) + "\n")
        written.replace(self._path)
