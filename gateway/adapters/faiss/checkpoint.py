"""The checkpoint of the index on disk: one file that is used only if it is complete.

A header of fixed size describes the content and has the SHA-256 of everything else. Chunks of partitions follow as
msgpack. A new checkpoint is written next to the last one, synced, and renamed over it, so a crash leaves the last one
intact. A checkpoint that does not fit is refused with one sentence, and the index is rebuilt from the store.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import msgpack
import numpy as np

from gateway.adapters.faiss.partition import Matrix, Slice

VERSION = 1
MAGIC = b"nearhit index\n"
HEADER_BYTES = 1024
BLOCK = 2**20  # bytes read at a time
MAX_PIECE = 2**28  # bytes: enough for the centroids of 100 million entries, and more than a chunk of entries


class CheckpointRefused(Exception):
    """A checkpoint does not fit. The message gives the reason."""


@dataclass(frozen=True, slots=True)
class PartitionKind:
    """The properties that all vectors of one file and one index share."""

    embedder: str  # its fingerprint
    dimension: int


@dataclass(frozen=True, slots=True)
class InvertedLists:
    """The lists of an inverted file."""

    centroids: Matrix  # (lists, d)
    trained_for: int


@dataclass(frozen=True, slots=True)
class CheckpointChunk:
    """Some entries of one partition."""

    scope: str
    names: list[str]  # fingerprints, one per entry
    part: Slice
    lists: InvertedLists | None  # None for a flat partition


def temporary_of(path: Path) -> Path:
    """Return the path of a checkpoint while it is written."""
    return path.with_name(path.name + ".new")


def write_checkpoint(
    path: Path, kind: PartitionKind, pieces: Iterable[CheckpointChunk], position: str | None = None
) -> int:
    """Write a checkpoint and return its number of entries. Raise `OSError`; the former file then stays.

    `position` is the place in the change log up to which all changes are included, or None if unknown.
    """
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    # only one gateway uses the data directory, so nobody else writes there
    temporary = temporary_of(path)
    try:
        # Vectors reveal something of the questions, so only the owner may read them, as with the embedded store's
        # files.
        with os.fdopen(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
            count = _write(file, kind, pieces, position)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)
    return count


def read_position(path: Path) -> str | None:
    """Return the position of a checkpoint that has been read, or None if it has none. Raise `CheckpointRefused` or
    `OSError`."""
    with path.open("rb") as file:
        position = _header(file).get("position")
    return position if isinstance(position, str) else None


def read_checkpoint(path: Path, kind: PartitionKind, max_entries: int) -> Iterator[CheckpointChunk]:
    """Yield the chunks. No chunk is read into memory before the whole file has been verified.

    Raise `FileNotFoundError` if there is no file, `CheckpointRefused`, or `OSError`.
    """
    with path.open("rb") as file:
        header = _header(file)
        _check_header(header, kind, max_entries, os.fstat(file.fileno()).st_size)
        body = hashlib.sha256()
        while block := file.read(BLOCK):
            body.update(block)
        if _digest(body, header) != header.get("sha256"):
            raise CheckpointRefused("its checksum does not match")
        file.seek(HEADER_BYTES)
        try:
            yield from _read_chunks(file, kind.dimension)
        except (KeyError, TypeError, ValueError, msgpack.UnpackException) as error:  # written by a faulty gateway
            raise CheckpointRefused(f"its content cannot be read ({type(error).__name__})") from None


def _read_chunks(file: BinaryIO, dimension: int) -> Iterator[CheckpointChunk]:
    lists: InvertedLists | None = None
    scope: str | None = None
    for fields in msgpack.Unpacker(file, max_buffer_size=MAX_PIECE):
        if fields["scope"] != scope:  # only the first chunk of a partition has its common fields
            scope, lists = fields["scope"], _lists(fields, dimension)
        yield _decode_chunk(fields, dimension, lists)


def _write(file: BinaryIO, kind: PartitionKind, pieces: Iterable[CheckpointChunk], position: str | None) -> int:
    file.write(bytes(HEADER_BYTES))
    packer = msgpack.Packer(autoreset=True)
    body, count, size = hashlib.sha256(), 0, 0
    scope: str | None = None
    for piece in pieces:
        data = packer.pack(_encode_fields(piece, first=piece.scope != scope))
        scope = piece.scope
        file.write(data)
        body.update(data)
        count, size = count + len(piece.names), size + len(data)
    header: dict[str, Any] = {"version": VERSION, "embedder": kind.embedder, "dimension": kind.dimension}
    header |= {"count": count, "bytes": size}
    if position is not None:
        header["position"] = position
    header["sha256"] = _digest(body, header)
    line = MAGIC + json.dumps(header).encode() + b"\n"
    if len(line) > HEADER_BYTES:
        raise OSError(f"the embedder's fingerprint is too long for a checkpoint: {len(kind.embedder)} characters")
    file.seek(0)
    file.write(line)
    return count


def _digest(body: Any, header: dict[str, Any]) -> str:
    """Return the digest of the body, which `body` has hashed, and of the header without the digest."""
    whole = body.copy()
    whole.update(json.dumps({key: value for key, value in header.items() if key != "sha256"}).encode())
    return str(whole.hexdigest())


def _header(file: BinaryIO) -> dict[str, Any]:
    data = file.read(HEADER_BYTES)
    if len(data) < HEADER_BYTES or not data.startswith(MAGIC):
        raise CheckpointRefused("it is not an index checkpoint, or is truncated")
    try:
        header = json.loads(data[len(MAGIC) :].partition(b"\n")[0])
    except ValueError:
        header = None
    if not isinstance(header, dict):
        raise CheckpointRefused("its header cannot be read")
    return header


def _check_header(header: dict[str, Any], kind: PartitionKind, max_entries: int, size: int) -> None:
    for key, expected in (("version", VERSION), ("embedder", kind.embedder), ("dimension", kind.dimension)):
        if header.get(key) != expected:
            raise CheckpointRefused(f"its {key} is {header.get(key)!r}, expected {expected!r}")
    count, body = header.get("count"), header.get("bytes")
    if not isinstance(count, int) or not isinstance(body, int):
        raise CheckpointRefused("its header cannot be read")
    if count > max_entries:
        raise CheckpointRefused(f"it holds {count} entries, expected at most {max_entries} (index.max_entries)")
    if size != HEADER_BYTES + body:
        raise CheckpointRefused(f"it has {size} bytes, expected {HEADER_BYTES + body}: it is truncated")


def _encode_fields(piece: CheckpointChunk, *, first: bool) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "scope": piece.scope,
        "names": piece.names,
        "ids": _bytes(piece.part.ids, "<i8"),
        "vectors": _bytes(piece.part.vectors, "<f4" if piece.lists is None else "<f2"),
    }
    if piece.lists is not None and piece.part.lists is not None:
        fields["lists"] = _bytes(piece.part.lists, "<i4")
        if first:
            fields |= {"centroids": _bytes(piece.lists.centroids, "<f4"), "trained_for": piece.lists.trained_for}
    return fields


def _lists(fields: dict[str, Any], dimension: int) -> InvertedLists | None:
    if "centroids" not in fields:
        return None
    centroids = np.frombuffer(fields["centroids"], "<f4").reshape(-1, dimension)
    return InvertedLists(centroids.astype(np.float32), int(fields["trained_for"]))


def _decode_chunk(fields: dict[str, Any], dimension: int, lists: InvertedLists | None) -> CheckpointChunk:
    ids = np.frombuffer(fields["ids"], "<i8").astype(np.int64)
    if lists is None:
        part = Slice(ids, np.frombuffer(fields["vectors"], "<f4").reshape(-1, dimension).astype(np.float32))
    else:
        vectors = np.frombuffer(fields["vectors"], "<f2").reshape(-1, dimension).astype(np.float16)
        part = Slice(ids, vectors, np.frombuffer(fields["lists"], "<i4").astype(np.int32))
    _validate_chunk(fields["names"], part, lists)
    return CheckpointChunk(fields["scope"], fields["names"], part, lists)


def _validate_chunk(names: list[str], part: Slice, lists: InvertedLists | None) -> None:
    """Raise `ValueError` if the parts do not match. FAISS does not check them."""
    if not len(names) == len(part.ids) == len(part.vectors):
        raise ValueError("names, ids and vectors do not match")
    if lists is None or part.lists is None:
        return
    is_valid = (part.lists >= 0) & (part.lists < len(lists.centroids))
    if len(is_valid) != len(names) or not is_valid.all():
        raise ValueError("unknown lists")


def _bytes(values: Any, form: str) -> bytes:
    return bytes(np.ascontiguousarray(values, dtype=form).tobytes())


def _sync_folder(folder: Path) -> None:
    """Sync the folder, so that the rename itself reaches the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
