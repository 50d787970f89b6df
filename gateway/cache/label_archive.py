"""Keep labelled pairs of questions for `nearhit tune`, on routes whose policy has `learn: {keep: ...}`.

Files in `data_dir/labels` contain texts of clients, so only their owner can read them, and nothing of them is logged.
Each row has the tenant of the stored answer. Rows end with their route's time, and files are bounded in size.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import msgpack

from gateway.cache.erasure import GRACE_S, ErasureTarget, ErasureTraces
from gateway.cache.stored_parts import LABELS
from gateway.cache.threshold.wrong_hits import Label
from gateway.config.policy.model import Policy
from gateway.files import data_dirs, remove_temporaries, replace_file
from gateway.ports import Clock, Judgement

LOG = logging.getLogger("nearhit.quality")
FOLDER, SUFFIX = "labels", ".msgpack"
MAX_BYTES = 64 * 2**20  # of all files: some 300,000 pairs
SEGMENT_BYTES = 4 * 2**20
MAX_BUFFERED = 2000  # rows that wait to be written; more are dropped
MAX_TEXT = 8192  # characters of a question; longer ones are not kept
FLUSH_S = 5.0
FIELDS = 8  # of older versions 7: they name no subjects

Row = tuple[float, float, str, str, str, str, bool, tuple[str, ...]]
"""Time and end in seconds since the epoch, route, tenant, stored question, client's question, whether it was right.
Last the digests of those who asked either question (`gateway.subjects`)."""


class LabelArchive:
    """`LabelArchive` writes the labels of one process with their texts. For use from one event loop.

    `unowned` returns the data directories that no process has any more.
    """

    part = LABELS

    def __init__(self, data_dir: Path, clock: Clock, unowned: Callable[[], Sequence[Path]] = tuple) -> None:
        self._folder = data_dir / FOLDER
        self._unowned = unowned
        self._clock = clock
        self._retention_s: Mapping[str, float] = {}
        self._rows: list[Row] = []
        self._path: Path | None = None
        self._failing = False
        self._writing = asyncio.Lock()

    def apply(self, policy: Policy) -> None:
        """Apply a new policy: the routes that keep labels, each with its time in seconds."""
        rules = {route.name: route.semantic for route in policy.routes}
        self._retention_s = {
            name: rule.learn.keep
            for name, rule in rules.items()
            if rule is not None and rule.learn is not None and rule.learn.keep is not None
        }

    def add(self, route: str, judged: Judgement, label: Label) -> None:
        """Add a label with its two questions, if the route allows it."""
        keep_s, stored = self._retention_s.get(route), judged.entry.question
        if keep_s is None or stored is None or label is Label.UNDECIDED or len(self._rows) >= MAX_BUFFERED:
            return
        if max(len(stored), len(judged.question)) > MAX_TEXT:
            return
        at = self._clock.wall()
        entry, subjects = judged.entry, tuple(dict.fromkeys((*judged.entry.subjects, *judged.subjects)))
        row = (at, at + keep_s, route, entry.tenant, stored, judged.question, label is Label.RIGHT, subjects)
        self._rows.append(row)

    async def run(self) -> None:
        """Write the rows that wait, until cancelled."""
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    async def flush(self) -> None:
        """Write the rows that wait. If the disk fails, they are dropped: labels come again."""
        async with self._writing:
            rows, self._rows = self._rows, []
            if not rows:
                return
            try:
                await asyncio.to_thread(self._write, rows)
                self._failing = False
            except OSError as error:
                if not self._failing:
                    LOG.warning("labels cannot be kept", extra={"fields": {"error": error.strerror}})
                self._failing = True

    async def erase(self, target: ErasureTarget, traces: ErasureTraces, *, dry_run: bool) -> int:
        """Remove the labels of the target, and return their number. Raise `OSError`."""
        async with self._writing:
            waiting = [row for row in self._rows if _is_of(target, row)]
            if not dry_run:
                self._rows = [row for row in self._rows if not _is_of(target, row)]
            written = await asyncio.to_thread(self._rewrite, target, dry_run=dry_run)
        for row in (*waiting, *written):
            traces.add(row[5])
            traces.add(row[4])
        return len(waiting) + len(written)

    def _rewrite(self, target: ErasureTarget, *, dry_run: bool) -> list[Row]:
        """Remove the labels of the target from the files, and return them."""
        gone: list[Row] = []
        folders = [self._folder, *(other / FOLDER for other in self._unowned())]
        for folder in () if dry_run else folders:
            remove_temporaries(folder)
        for path in (path for folder in folders for path in files(folder)):
            rows = list(_rows(path))
            matches = [row for row in rows if _is_of(target, row)]
            gone += matches
            if matches and not dry_run:
                rest = b"".join(msgpack.packb(row) for row in rows if not _is_of(target, row))
                replace_file(path, rest, path.with_name(f".{path.name}.new"), 0o600)
        return gone

    def _write(self, rows: list[Row]) -> None:
        if self._path is None or not self._path.exists() or self._path.stat().st_size >= SEGMENT_BYTES:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            prune(self._folder, self._clock.wall())
            self._path = self._folder / f"{int(1e3 * self._clock.wall()):015d}-{os.getpid()}{SUFFIX}"
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        with os.fdopen(os.open(self._path, flags, 0o600), "ab") as file:
            file.write(b"".join(msgpack.packb(row) for row in rows))


def _is_of(target: ErasureTarget, row: Row) -> bool:
    return row[0] <= target.at + GRACE_S and target.matches(row[7], row[3])


def files(folder: Path) -> list[Path]:
    """Return the files, the oldest first."""
    return sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []


def prune(folder: Path, now: float) -> None:
    """Remove files whose rows have all ended, and the oldest files beyond `MAX_BYTES`. Raise OSError."""
    total = SEGMENT_BYTES
    for path in reversed(files(folder)):
        total += path.stat().st_size
        if total > MAX_BYTES or all(row[1] <= now for row in _rows(path)):
            path.unlink(missing_ok=True)


def read_labels(data_dir: Path, now: float, route: str | None = None) -> list[Row]:
    """Return the rows of all workers that have not ended, the oldest first. Without `route`, return those of all
    routes.

    Raise OSError.
    """
    labels = [row for each in data_dirs(data_dir) for path in files(each / FOLDER) for row in _rows(path)]
    return sorted((row for row in labels if row[1] > now and route in (None, row[2])), key=lambda row: row[0])


def _rows(path: Path) -> Iterator[Row]:
    """Yield the rows of a file. A row that an interruption cut off ends it."""
    with path.open("rb") as file:
        unpacker = msgpack.Unpacker(file, use_list=False)
        while True:
            try:
                row = unpacker.unpack()
            except (msgpack.OutOfData, ValueError):
                return
            if not isinstance(row, tuple) or len(row) not in (FIELDS - 1, FIELDS):
                return
            yield row if len(row) == FIELDS else (*row, ())
