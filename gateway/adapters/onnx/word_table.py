"""The embedder's own table of word embeddings, read from its graph, so that a cross-encoder need not bring one.

A graph is a protobuf message. Of its fields only those on the way to three tensors are looked at, so that the package
`onnx`, which the gateway does without, is not needed. The table stays in the file and is mapped, not copied.
"""

from __future__ import annotations

import hashlib
import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from gateway.adapters.onnx.model_files import MODEL_FILE, ModelCorrupt

WIDTH = 384
_PREFIX = b"transformer.embeddings.word_embeddings.weight_"
_GRAPH, _INITIALIZER = 7, 5  # field numbers of ModelProto, GraphProto
_FLOATS, _INTS, _NAME, _RAW = 4, 5, 8, 9  # of TensorProto
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


@dataclass(frozen=True, slots=True)
class WordTable:
    """Rows of bytes, and what makes numbers of them."""

    rows: npt.NDArray[np.uint8]  # (words, 384), read-only
    scale: np.float32
    zero: np.float32

    def __call__(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """ids of any shape -> that shape x 384: what the embedder's own first node makes of them."""
        return (self.rows[ids].astype(np.float32) - self.zero) * self.scale

    def digest(self) -> str:
        """Hex SHA-256 of rows, scale and zero point: 10 to 30 ms."""
        found = hashlib.sha256(self.rows.data)
        found.update(np.array([self.scale, self.zero], "<f4").tobytes())
        return found.hexdigest()


def load_word_table(model_dir: Path) -> WordTable:
    """The table of the embedder in `model_dir`. Raises `ModelCorrupt` when its graph is missing or holds none."""
    path = model_dir / MODEL_FILE
    try:
        with path.open("rb") as file:
            content = memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
        graph = next(_fields(content, _GRAPH))
        tensors = {bytes(next(_fields(tensor, _NAME), b"")): tensor for tensor in _fields(graph, _INITIALIZER)}
        rows, scale, zero = (tensors[_PREFIX + name] for name in (b"quantized", b"scale", b"zero_point"))
        return WordTable(
            np.frombuffer(next(_fields(rows, _RAW)), np.uint8).reshape(-1, WIDTH),
            np.frombuffer(next(_fields(scale, _FLOATS)), "<f4")[0],
            np.float32(_varint(next(_fields(zero, _INTS)), 0)[0]),
        )
    except (OSError, ValueError, IndexError, KeyError, StopIteration):
        raise ModelCorrupt(f"{path} holds no table of word embeddings: run `nearhit model fetch`") from None


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """The contents of every field `wanted` with a length. Raises ValueError or IndexError on what is no message."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == _VARINT:
            _, at = _varint(message, at)
        elif kind in (_FIXED64, _FIXED32):
            at += 8 if kind == _FIXED64 else 4
        elif kind == _BYTES:
            length, at = _varint(message, at)
            if key >> 3 == wanted:
                yield message[at : at + length]
            at += length
        else:
            raise ValueError(f"wire type {kind}")


def _varint(message: memoryview, at: int) -> tuple[int, int]:
    """(value, where the next begins)"""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            return value, at
