"""Files that are whole or not there, also when the machine stops on the way."""

from __future__ import annotations

import os
from pathlib import Path


def replaced(path: Path, content: bytes, beside: Path, mode: int) -> None:
    """Writes `beside`, syncs it, and gives it the name. Raises `OSError`."""
    descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
    with os.fdopen(descriptor, "wb") as file:
        os.fchmod(file.fileno(), mode)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
