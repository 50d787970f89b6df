"""Keep the data folder to the gateway's own user: answers, prompts, keys and credentials are in it."""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

LOG = logging.getLogger("nearhit")

FILE, FOLDER = 0o600, 0o700

UMASK = 0o077  # leaves files and folders to their owner

# The gateway's own names in a data folder. A data folder may be any folder, so all other names stay as they are.
OWN = (
    "audit.jsonl*", "erasure.key", "index", "jobs.key", "labels", "lock", "policy-history", "served-models", "store",
    "supervisor.json", "traffic", "verifier", "workers",
)  # fmt: skip


def make_private(data_dir: Path) -> None:
    """Take the rights of group and others away from the data folder and from all that is the gateway's own in it. Log
    the number of paths that were changed, and of those that belong to somebody else."""
    changed, failed = [], []
    for path, mode in _too_wide(data_dir.resolve()):
        try:
            path.chmod(mode)
            changed.append(path)
        except FileNotFoundError:
            continue  # a file that its owner has just replaced
        except OSError:
            failed.append(path)
    if changed:
        fields = {"changed": len(changed), "first": str(changed[0])}
        LOG.warning("files of the data folder were open to other users", extra={"fields": fields})
    if failed:
        fields = {"open": len(failed), "first": str(failed[0]), "todo": "chmod -R go-rwx, by the owner of the files"}
        LOG.warning("files of the data folder stay open to other users", extra={"fields": fields})


def _too_wide(data_dir: Path) -> Iterator[tuple[Path, int]]:
    """Yield each file and folder that others may use, with the mode that it should have."""
    for path in _paths(data_dir):
        try:
            mode = path.lstat().st_mode
        except OSError:
            continue
        if (stat.S_ISREG(mode) or stat.S_ISDIR(mode)) and mode & UMASK:
            yield path, FOLDER if stat.S_ISDIR(mode) else FILE


def _paths(data_dir: Path) -> Iterator[Path]:
    """Yield the data folder and its own content, each folder before its files. Links are not followed."""
    yield data_dir
    for pattern in OWN:
        for top in data_dir.glob(pattern):
            yield top
            if top.is_dir() and not top.is_symlink():
                for folder, folders, files in os.walk(top):
                    yield from (Path(folder, name) for name in (*folders, *files))
