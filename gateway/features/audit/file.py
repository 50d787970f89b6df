"""The audit trail on this machine: one line per action, append-only, in files of bounded size and number."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

NAME = "audit.jsonl"
BLOCK = 64 * 1024


class AuditFile:
    """`AuditFile` writes `audit.jsonl` in `folder`. Before it exceeds `max_bytes` it is renamed to `audit.jsonl.1`,
    that to `.2`, and so on. There are at most `files` files; the oldest is deleted. Only its owner may read it."""

    def __init__(self, folder: Path, *, max_bytes: int, files: int) -> None:
        self._path = folder / NAME
        self._max_bytes = max_bytes
        self._files = files

    def append(self, line: bytes) -> None:
        """Append `line`, which has no line break. It is a single write, so that a killed process leaves no partial
        line. Raise `OSError`."""
        if self._size() + len(line) + 1 > self._max_bytes:
            self._rotate()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(descriptor, line + b"\n")
        finally:
            os.close(descriptor)

    def latest(self, limit: int) -> list[bytes]:
        """Return the last `limit` lines, youngest first. Raise `OSError`."""
        lines: list[bytes] = []
        for path in self._newest_first():
            for line in _lines_backwards(path):
                lines.append(line)
                if len(lines) == limit:
                    return lines
        return lines

    def _size(self) -> int:
        try:
            return self._path.stat().st_size
        except FileNotFoundError:
            return 0

    def _rotate(self) -> None:
        paths = self._newest_first()
        if len(paths) >= self._files:
            paths.pop().unlink()
        for number, path in reversed(list(enumerate(paths, 1))):
            path.rename(self._numbered(number))

    def _newest_first(self) -> list[Path]:
        paths = [self._path, *map(self._numbered, range(1, self._files))]
        return [path for path in paths if path.exists()]

    def _numbered(self, number: int) -> Path:
        return self._path.with_name(f"{NAME}.{number}")


def _lines_backwards(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        place, rest = file.seek(0, os.SEEK_END), b""
        while place > 0:
            size = min(BLOCK, place)
            place -= size
            file.seek(place)
            rest, *lines = (file.read(size) + rest).split(b"\n")
            yield from (line for line in reversed(lines) if line)
        if rest:
            yield rest
