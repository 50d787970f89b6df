"""Writes the files of a traffic log: one write a batch, bounded in size and age, readable by their owner only."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from gateway.config.schema import TrafficConfig
from gateway.files import remove_temporaries, replace_file
from gateway.steps.traffic_log.format import (
    SUFFIX,
    RecordedRequest,
    Row,
    SegmentHeading,
    SegmentInvalid,
    decode_batch,
    encode_batch,
    encode_heading,
    frame_of,
    frames,
)

FOLDER, KEY_FILE, KEY_BYTES = "traffic", "key", 32
OWNER_ONLY, OWNERS_FOLDER = 0o600, 0o700


def key_in(folder: Path) -> bytes:
    """Return the key of the log's digests; create it if there is none. Raise `OSError`."""
    path = folder / KEY_FILE
    try:
        key = path.read_bytes()
        if len(key) == KEY_BYTES:
            return key
    except FileNotFoundError:
        pass
    prepare(folder)
    new_key = secrets.token_bytes(KEY_BYTES)
    temporary = folder / f".{KEY_FILE}.new"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, OWNER_ONLY)
    with os.fdopen(descriptor, "wb") as file:
        file.write(new_key)
    temporary.replace(path)
    return new_key


def prepare(folder: Path) -> None:
    """Create the folder for its owner only. Raise `OSError`."""
    folder.mkdir(parents=True, exist_ok=True, mode=OWNERS_FOLDER)
    folder.chmod(OWNERS_FOLDER)


def segments_in(folder: Path) -> list[Path]:
    """Return the segments, oldest first. The name of a segment is the time in ms at which it began. Raise `OSError`."""
    return sorted(path for path in folder.iterdir() if path.suffix == SUFFIX and path.stem.replace("-", "").isdigit())


class Segments:
    """Appends batches. For use from one thread at a time. `wall` returns seconds since 1970."""

    def __init__(self, folder: Path, bounds: TrafficConfig, wall: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._bounds = bounds
        self._wall = wall
        self._descriptor: int | None = None
        self._size = 0
        self._started_at = 0.0
        self._outdated = False

    def append(self, heading: SegmentHeading, rows: Sequence[Row]) -> int:
        """Append a batch and return its bytes. `heading` begins a new segment, if the last one is full or old. Each
        batch is one write, so that a killed process damages at most the last batch. Raise `OSError`."""
        if self.needs_segment():
            self._start_segment(heading)
        batch = encode_batch(rows)
        self._write(batch)
        return len(batch)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def mark_outdated(self) -> None:
        """Begin a segment with the next batch: the state that rows depend on has changed."""
        self._outdated = True

    def needs_segment(self) -> bool:
        """Return whether the next batch begins a segment."""
        return (
            self._descriptor is None
            or self._outdated
            or self._size >= self._bounds.segment_size
            or self._wall() - self._started_at >= self._bounds.segment_age
        )

    def rewrite(self, drop: Callable[[Row], bool], *, dry_run: bool) -> tuple[list[RecordedRequest], int]:
        """Remove the requests for which `drop` is true from all segments. Return them, and the number of segments with
        a part that cannot be read. With `dry_run`, remove nothing. Raise `OSError`.

        The current segment ends. If a request of a segment is removed, so is any part that cannot be read.
        """
        if not self._folder.is_dir():
            return [], 0
        if not dry_run:
            self.close()
            remove_temporaries(self._folder)
        dropped: list[RecordedRequest] = []
        damaged = 0
        for path in segments_in(self._folder):
            rest, gone, whole = _without(path.read_bytes(), drop)
            dropped += gone
            damaged += not whole
            if gone and not dry_run:
                written = path.stat().st_mtime_ns  # readers take it for the end of the segment
                replace_file(path, rest, path.with_name(f".{path.name}.new"), OWNER_ONLY)
                os.utime(path, ns=(written, written))
        return dropped, damaged

    def _start_segment(self, heading: SegmentHeading) -> None:
        self.close()
        prepare(self._folder)
        self._prune()
        at = int(1e3 * self._wall())
        while (path := self._folder / f"{at:015d}{SUFFIX}").exists():
            at += 1
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_NOFOLLOW
        self._descriptor = os.open(path, flags, OWNER_ONLY)
        self._size, self._started_at, self._outdated = 0, self._wall(), False
        self._write(encode_heading(heading))

    def _write(self, content: bytes) -> None:
        assert self._descriptor is not None
        written = os.write(self._descriptor, content)
        if written < len(content):  # the disk is full: readers ignore the partial frame
            self.close()
            raise OSError(28, "No space left on device")
        self._size += written

    def _prune(self) -> None:
        """Delete old segments, to make room for the one that begins."""
        segments = segments_in(self._folder)
        sizes = {path: path.stat() for path in segments}
        total = sum(stat.st_size for stat in sizes.values()) + self._bounds.segment_size
        for path in segments:
            too_old = self._wall() - sizes[path].st_mtime > self._bounds.max_age
            if not too_old and total <= self._bounds.max_size:
                break
            path.unlink(missing_ok=True)
            total -= sizes[path].st_size


def _without(data: bytes, drop: Callable[[Row], bool]) -> tuple[bytes, list[RecordedRequest], bool]:
    """Return a segment without the requests for which `drop` is true, those requests, and whether all of it could be
    read."""
    rest: list[bytes] = []
    gone: list[RecordedRequest] = []
    for at, payload in enumerate(frames(data)):
        if payload is None:
            return b"".join(rest), gone, False
        try:
            rows = list(decode_batch(payload)) if at else []
        except SegmentInvalid:
            return b"".join(rest), gone, False
        matches = [row for row in rows if isinstance(row, RecordedRequest) and drop(row)]
        gone += matches
        ids = set(map(id, matches))
        others = [row for row in rows if id(row) not in ids]
        if not matches:
            rest.append(frame_of(payload))
        elif others:
            rest.append(encode_batch(others))
    return b"".join(rest), gone, True
