"""Writes versions of models into a Triton repository."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path


def next_version(repository: Path, name: str) -> int:
    """Return the next version number of a model: the highest one plus 1, or 1."""
    folder = repository / name
    found = [int(each.name) for each in folder.iterdir() if each.name.isdigit()] if folder.is_dir() else []
    return max(found, default=0) + 1


def put_version(built: Path, repository: Path, name: str) -> Path:
    """Copy the folder `built` into the repository as the next version of `name`, and return the version's folder.

    The version appears atomically, because a running server may read the repository. Raises OSError.
    """
    entry = repository / name
    entry.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".nearhit-", dir=repository) as scratch:
        made = Path(shutil.copytree(built, Path(scratch) / "version"))
        made.chmod(0o755)
        return made.replace(entry / str(next_version(repository, name)))


def configure(entry: Path, config: str) -> None:
    """Write `config.pbtxt` unless it exists. Raises OSError."""
    entry.mkdir(parents=True, exist_ok=True)
    if not (entry / "config.pbtxt").exists():
        (entry / "config.pbtxt").write_text(config)
