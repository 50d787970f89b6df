"""Atomic file replacement: a file is complete or absent, even if the machine stops in between."""

from __future__ import annotations

import os
from pathlib import Path


def replaced(path: Path, content: bytes, beside: Path, mode: int) -> None:
    """Write the content to `beside`, sync it, and rename it to `path`. Raise `OSError`."""
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
