"""Atomic file replacement, and the folders of workers in a data directory."""

from __future__ import annotations

import os
from pathlib import Path

WORKERS = "workers"  # folder in the data directory: each worker has its own data directory there


def shared_dir(data_dir: Path) -> Path:
    """Return the data directory of the gateway, for that of a worker or of the gateway itself."""
    return data_dir.parents[1] if data_dir.parent.name == WORKERS else data_dir


def data_dirs(shared: Path) -> list[Path]:
    """Return the data directory of the gateway and those of its workers."""
    return [shared, *sorted((shared / WORKERS).glob("*/"))]


def unowned_dirs(data_dir: Path, workers: int) -> list[Path]:
    """Return the data directories next to `data_dir` that no process has any more, since `workers` was changed.

    They belong to the only gateway, or to the first of the workers.
    """
    shared = shared_dir(data_dir)
    if data_dir == shared:
        return data_dirs(shared)[1:]
    if data_dir.name != "0":
        return []
    used = {str(number) for number in range(workers)}
    return [shared, *(folder for folder in data_dirs(shared)[1:] if folder.name not in used)]


def remove_temporaries(folder: Path, pattern: str = ".*.new") -> None:
    """Remove what `replace_file` left in a folder when the machine or the process stopped. Raise `OSError`."""
    for path in folder.glob(pattern):
        path.unlink(missing_ok=True)


def replace_file(path: Path, content: bytes, temporary: Path, mode: int) -> None:
    """Write the content to `temporary`, sync it, and rename it to `path`. Raise `OSError`.

    So the file is complete or absent, even if the machine stops in between.
    """
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
