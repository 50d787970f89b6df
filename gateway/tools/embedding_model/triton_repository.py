"""Versions of a model in a Triton repository, `NAME/VERSION/`."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path


def next_version(repository: Path, name: str) -> int:
    """From 1 on: one more than the highest that is there."""
    folder = repository / name
    found = [int(each.name) for each in folder.iterdir() if each.name.isdigit()] if folder.is_dir() else []
    return max(found, default=0) + 1


def put_version(built: Path, repository: Path, name: str) -> Path:
    """Copies the folder `built` in as the next version of `name`, which is there whole or not at all, as a server may
    be looking; returns it. Raises OSError."""
    entry = repository / name
    entry.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".nearhit-", dir=repository) as scratch:
        made = Path(shutil.copytree(built, Path(scratch) / "version"))
        made.chmod(0o755)
        return made.replace(entry / str(next_version(repository, name)))


def configure(entry: Path, config: str) -> None:
    """Writes `config.pbtxt`, unless somebody has written one. Raises OSError."""
    entry.mkdir(parents=True, exist_ok=True)
    if not (entry / "config.pbtxt").exists():
        (entry / "config.pbtxt").write_text(config)
