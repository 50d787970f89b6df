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
