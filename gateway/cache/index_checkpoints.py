"""Keep a copy of the index on disk, so that a start need not read every vector from the store."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.adapters.faiss.checkpoint import (
    CheckpointRefused,
    PartitionKind,
    read_checkpoint,
    read_position,
    temporary_of,
    write_checkpoint,
)
from gateway.adapters.faiss.exclusive_executor import ExecutorClosed
from gateway.adapters.faiss.index import FaissIndex
from gateway.cache.erasure import ErasureTarget, ErasureTraces
from gateway.cache.stored_parts import INDEX
from gateway.config import Config

LOG = logging.getLogger("nearhit.index")
FOLDER = "index"
FILE, FORMER_FILE = "checkpoint", "former"


class IndexCheckpoints:
    """`IndexCheckpoints` writes and reads the file of an index.

    It writes nothing before `complete` is set: an unfilled index must not replace a good copy. `position` returns the
    index's position in the log of changes, or None. It is saved with the index and read back as `loaded_position`.
    """

    def __init__(self, path: Path, index: FaissIndex, kind: PartitionKind, *, max_entries: int, every_s: float) -> None:
        self._path = path
        self._index = index
        self._kind = kind
        self._max_entries = max_entries
        self._every_s = every_s
        self._saved = 0  # the index's change count in the file
        self._writing = threading.Lock()
        self._loaded = False
        self.position: Callable[[], str | None] = lambda: None
        self.loaded_position: str | None = None
        self.complete = False

    async def load(self) -> None:
        """Load the checkpoint at the start. If it does not fit, the index is filled from the store."""
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
            LOG.warning(
                "the index checkpoint was refused, reading the index from the store", extra=_fields(error=str(error))
            )
            return
        elapsed_s = round(time.perf_counter() - started, 3)
        LOG.info("the index was read from its checkpoint", extra=_fields(entries=self._index.size, seconds=elapsed_s))

    async def save(self) -> None:
        """Write the file if the index has changed since the last time.

        Disk errors are not raised: the last file stays, and the store has the rest.
        """
        if self.complete and self._index.changes != self._saved:
            await asyncio.to_thread(self._save)

    @property
    def path(self) -> Path:
        return self._path

    async def renew(self) -> None:
        """Write the file again without what has left the index, or remove it until the index is complete.

        Raise `OSError`.
        """
        await self.save()
        await asyncio.to_thread(self._remove_rest)

    def _remove_rest(self) -> None:
        """Remove what a write that was cut off has left, and a file that is not of this index."""
        with self._writing:
            for path in (temporary_of(self._path), *(() if self.complete else (self._path,))):
                path.unlink(missing_ok=True)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(self._every_s)
            await self.save()

    def _save(self) -> None:
        with self._writing:  # a write in progress comes first when the gateway stops
            # Read before the copy begins: later changes may be in the copy, and are then applied twice.
            changes, position, started = self._index.changes, self.position(), time.perf_counter()
            try:
                count = write_checkpoint(self._path, self._kind, self._index.chunks(), position)
            except ExecutorClosed:
                return
            except OSError as error:
                LOG.warning("the index checkpoint could not be written", extra=_fields(error=str(error)))
                return
            self._saved = changes
            elapsed_s = round(time.perf_counter() - started, 3)
            LOG.info("a checkpoint of the index was written", extra=_fields(entries=count, seconds=elapsed_s))


class IndexFiles:
    """The checkpoints of a gateway, and files that are left of others. `current` returns those in use. `unowned`
    returns the data directories that no process has any more."""

    part = INDEX

    def __init__(
        self,
        data_dir: Path,
        current: Callable[[], Sequence[IndexCheckpoints]],
        unowned: Callable[[], Sequence[Path]] = tuple,
    ) -> None:
        self._data_dir = data_dir
        self._current = current
        self._unowned = unowned

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        """Leave no vector on disk that has left the index. Raise `OSError`."""
        if not dry_run:
            current = self._current()
            for each in current:
                await each.renew()
            used = {path for each in current for path in (each.path, temporary_of(each.path))}
            names = [name + end for name in (FILE, FORMER_FILE) for end in ("", ".new")]
            for folder in (self._data_dir, *self._unowned()):
                for path in {folder / FOLDER / name for name in names} - used:
                    path.unlink(missing_ok=True)
        return 0


def checkpoints_of(config: Config, index: FaissIndex, kind: PartitionKind, file: str = FILE) -> IndexCheckpoints | None:
    """Return the checkpoints in the data directory, by the configuration, or None if it is off."""
    every_s = config.index.checkpoint
    if every_s is None:
        return None
    path = _folder(config) / file
    return IndexCheckpoints(path, index, kind, max_entries=config.index.max_entries, every_s=every_s)


def former_checkpoint_file(config: Config) -> str:
    """Return the file name for the former model's index while another one is filled.

    At first that index is in the current file, which is renamed. A file of another model is refused when it is read.
    """
    current, former = _folder(config) / FILE, _folder(config) / FORMER_FILE
    if current.exists() and not former.exists():
        try:
            current.replace(former)
        except OSError as error:
            LOG.warning("the checkpoint of the former index could not be renamed", extra=_fields(error=str(error)))
    return FORMER_FILE


def remove_former_checkpoint(config: Config) -> None:
    """Delete the former model's checkpoint, once nothing uses it."""
    try:
        (_folder(config) / FORMER_FILE).unlink(missing_ok=True)
    except OSError as error:
        LOG.warning("the checkpoint of the former index could not be deleted", extra=_fields(error=str(error)))


def _folder(config: Config) -> Path:
    return config.data_dir / FOLDER


def _fields(**fields: object) -> dict[str, object]:
    return {"fields": fields}
