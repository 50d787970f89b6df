"""Keeps a copy of the index on disk, so that a start need not read every vector from the store again."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path

from gateway.adapters.faiss.checkpoint import (
    CheckpointRefused,
    PartitionKind,
    read_checkpoint,
    read_position,
    write_checkpoint,
)
from gateway.adapters.faiss.exclusive_executor import ExecutorClosed
from gateway.adapters.faiss.index import FaissIndex
from gateway.config import Config

LOG = logging.getLogger("nearhit.index")
FILE, FORMER_FILE = "checkpoint", "former"


class IndexCheckpoints:
    """Nothing is written before `complete` is set: an index that is not yet filled must not replace a good copy.
    `position` says where the index stands in the log of changes, None where there is none: it is written beside it, and
    found again as `loaded_position`."""

    def __init__(self, path: Path, index: FaissIndex, kind: PartitionKind, *, max_entries: int, every_s: float) -> None:
        self._path = path
        self._index = index
        self._kind = kind
        self._max_entries = max_entries
        self._every_s = every_s
        self._saved = 0  # the index' changes that the file has
        self._writing = threading.Lock()
        self._loaded = False
        self.position: Callable[[], str | None] = lambda: None
        self.loaded_position: str | None = None
        self.complete = False

    async def load(self) -> None:
        """Once, at the start. Whatever does not fit is left: the store has everything."""
        if self._loaded:
            return
        self._loaded = True
        started = time.perf_counter()
        try:
            await self._index.load(read_checkpoint(self._path, self._kind, self._max_entries))
            self.loaded_position = read_position(self._path)
        except FileNotFoundError:
            return
        except (CheckpointRefused, OSError) as error:
            LOG.warning("the index is read from the store, its checkpoint was refused", extra=_fields(error=str(error)))
            return
        elapsed_s = round(time.perf_counter() - started, 3)
        LOG.info("the index was read from its checkpoint", extra=_fields(entries=self._index.size, seconds=elapsed_s))

    async def save(self) -> None:
        """Writes the file if the index has changed since the last time. Never raises for what may be wrong with a
        disk: the last file stays, and what it lacks is in the store."""
        if self.complete and self._index.changes != self._saved:
            await asyncio.to_thread(self._save)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.save()

    def _save(self) -> None:
        with self._writing:  # one that is still written when the gateway stops comes first
            # Read before the copy is begun: what comes meanwhile may be in it, and is followed once more.
            changes, position, started = self._index.changes, self.position(), time.perf_counter()
            try:
                count = write_checkpoint(self._path, self._kind, self._index.pieces(), position)
            except ExecutorClosed:
                return
            except OSError as error:
                LOG.warning("no checkpoint of the index was written", extra=_fields(error=str(error)))
                return
            self._saved = changes
            elapsed_s = round(time.perf_counter() - started, 3)
            LOG.info("a checkpoint of the index was written", extra=_fields(entries=count, seconds=elapsed_s))


def checkpoints_of(config: Config, index: FaissIndex, kind: PartitionKind, file: str = FILE) -> IndexCheckpoints | None:
    """In the data directory, as the configuration wants it; None: off."""
    every_s = config.index.checkpoint
    if every_s is None:
        return None
    path = _folder(config) / file
    return IndexCheckpoints(path, index, kind, max_entries=config.index.max_entries, every_s=every_s)


def former_checkpoint_file(config: Config) -> str:
    """Where the index of the model before is kept while another one is filled: at first in what was its file all the
    time. One of another model is refused when it is read."""
    current, former = _folder(config) / FILE, _folder(config) / FORMER_FILE
    if current.exists() and not former.exists():
        try:
            current.replace(former)
        except OSError as error:
            LOG.warning("the checkpoint of the former index is left", extra=_fields(error=str(error)))
    return FORMER_FILE


def remove_former_checkpoint(config: Config) -> None:
    """Once nothing goes by it any more."""
    try:
        (_folder(config) / FORMER_FILE).unlink(missing_ok=True)
    except OSError as error:
        LOG.warning("the checkpoint of the former index stays", extra=_fields(error=str(error)))


def _folder(config: Config) -> Path:
    return config.data_dir / "index"


def _fields(**fields: object) -> dict[str, object]:
    return {"fields": fields}
