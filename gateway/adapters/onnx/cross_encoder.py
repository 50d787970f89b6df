"""A cross-encoder reads two questions together and rates whether they ask exactly the same. int8 ONNX, one thread.

It has three of the embedder's layers, trained by `training.cross_encoder`. The word embeddings are the embedder's own,
read from its graph, and so not part of the weights. The table of another embedder is refused.
"""

from __future__ import annotations

import hashlib
import json
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime

from gateway.adapters.onnx.model_files import MODEL_FILE, TOKENIZER_FILE, ModelCorrupt, sha256_of
from gateway.adapters.onnx.tokenizer import PairTokenizer, join_pair
from gateway.adapters.system.weight_files import WeightsCorrupt

# The embedder's table of word embeddings, read from its graph, so that a cross-encoder does not need its own.
#
# A graph is a protobuf message. Only the fields on the way to three tensors are parsed, so the package `onnx` is not
# needed. The table stays in the file and is memory-mapped, not copied.

WIDTH = 384

_PREFIX = b"transformer.embeddings.word_embeddings.weight_"

_GRAPH, _INITIALIZER = 7, 5  # field numbers of ModelProto, GraphProto

_FLOATS, _INTS, _NAME, _RAW = 4, 5, 8, 9  # field numbers of TensorProto

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5  # wire types


@dataclass(frozen=True, slots=True)
class WordTable:
    """A table of quantised word embeddings, with scale and zero point."""

    rows: npt.NDArray[np.uint8]  # (words, 384), read-only
    scale: np.float32
    zero: np.float32
    file: mmap.mmap

    def __call__(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the embeddings of ids of any shape: that shape x 384, as the embedder's own first node computes
        them."""
        return (self.rows[ids].astype(np.float32) - self.zero) * self.scale

    def digest(self) -> str:
        """Return the hex SHA-256 of rows, scale and zero point: 10 to 30 ms."""
        found = hashlib.sha256(self.rows.data)
        found.update(np.array([self.scale, self.zero], "<f4").tobytes())
        if hasattr(mmap, "MADV_DONTNEED"):  # the rows of a question are mapped again: 12 MB less
            self.file.madvise(mmap.MADV_DONTNEED)
        return found.hexdigest()


def load_word_table(model_dir: Path) -> WordTable:
    """Load the table of the embedder in `model_dir`. Raise `ModelCorrupt` if its graph is missing or has no table."""
    path = model_dir / MODEL_FILE
    try:
        with path.open("rb") as file:
            mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        content = memoryview(mapped)
        graph = next(_fields(content, _GRAPH))
        tensors = {bytes(next(_fields(tensor, _NAME), b"")): tensor for tensor in _fields(graph, _INITIALIZER)}
        rows, scale, zero = (tensors[_PREFIX + name] for name in (b"quantized", b"scale", b"zero_point"))
        return WordTable(
            np.frombuffer(next(_fields(rows, _RAW)), np.uint8).reshape(-1, WIDTH),
            np.frombuffer(next(_fields(scale, _FLOATS)), "<f4")[0],
            np.float32(_varint(next(_fields(zero, _INTS)), 0)[0]),
            mapped,
        )
    except (OSError, ValueError, IndexError, KeyError, StopIteration):
        raise ModelCorrupt(f"{path} holds no table of word embeddings: run `nearhit model fetch`") from None


def _fields(message: memoryview, wanted: int) -> Iterator[memoryview]:
    """Yield the contents of every length-delimited field `wanted`. Raise ValueError or IndexError if it is not a
    message."""
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
    """Return the value, and the position after it."""
    value = shift = 0
    while True:
        byte = message[at]
        value |= (byte & 127) << shift
        shift, at = shift + 7, at + 1
        if byte < 128:
            return value, at


GRAPH_FILE, ABOUT_FILE = "cross_encoder.onnx", "cross_encoder.json"

# Fusions of onnxruntime that take longer than the nodes they replace: 8 to 10 % of a pass (version 1.31).
SLOW_FUSIONS = ["SkipLayerNormFusion"]

UNREAD_LOGIT = -20.0  # the logit of a pair that is too long to be read completely


class OnnxCrossEncoder:
    """`OnnxCrossEncoder` implements `CrossEncoder`. It is deterministic. `probability` calibrates a logit on held-out
    paraphrases.

    `model_dir` has the files that `nearhit model fetch` built. The constructor raises `WeightsCorrupt`, `ModelMissing`
    or `ModelCorrupt`.
    """

    threads = 1

    def __init__(self, model_dir: Path, weights: Path) -> None:
        about = _load_verified(weights)
        self.digest = str(about["sha256"])
        self._table = load_word_table(model_dir)
        if (found := self._table.digest()) != about["table_sha256"]:
            raise WeightsCorrupt(
                f"the cross-encoder was trained on another table of word embeddings than the one in {model_dir} "
                f"(sha256 {found[:12]}..., expected {str(about['table_sha256'])[:12]}...): run `nearhit model fetch`"
            )
        self._platt = float(about["platt"][0]), float(about["platt"][1])
        self._reader = PairTokenizer(model_dir / TOKENIZER_FILE)
        self._session = _session(weights / GRAPH_FILE)

    def score(self, asked: str, stored: Sequence[str]) -> list[float]:
        """Return one logit per stored question. Each pair has its own forward pass: in a common pass its logit would
        depend on the other pairs."""
        one = self._reader.ids(asked)
        return [self._score(one, self._reader.ids(other)) for other in stored]

    def probability(self, logit: float) -> float:
        """Return the probability that both questions ask the same, at a prior of one half."""
        a, b = self._platt
        return float(1.0 / (1.0 + np.exp(-(a * logit + b))))

    def _score(self, one: list[int] | None, two: list[int] | None) -> float:
        if (pair := join_pair(one, two)) is None:
            return UNREAD_LOGIT
        ids, types = pair[0][np.newaxis], pair[1][np.newaxis]
        feed = {"word_embeddings": self._table(ids), "attention_mask": np.ones_like(ids), "token_type_ids": types}
        return float(self._session.run(["logit"], feed)[0][0])


def _load_verified(weights: Path) -> dict[str, Any]:
    """Return the content of `cross_encoder.json`, after the graph that it describes was verified."""
    try:
        about: dict[str, Any] = json.loads((weights / ABOUT_FILE).read_bytes())
        found, expected = sha256_of(weights / GRAPH_FILE), str(about["sha256"])
        str(about["table_sha256"]), [float(number) for number in about["platt"]]
    except OSError as error:
        raise WeightsCorrupt(f"the cross-encoder's weights cannot be read: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsCorrupt(f"{weights.name}/{ABOUT_FILE} is not valid: {error!r}") from None
    if found != expected:
        raise WeightsCorrupt(
            f"{weights.name}/{GRAPH_FILE} has sha256 {found[:12]}..., {ABOUT_FILE} says {expected[:12]}..."
        )
    return about


def _session(graph: Path) -> onnxruntime.InferenceSession:
    """Open the graph. onnxruntime keeps a graph that is given as bytes: 6 MB more."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # only useful for fixed shapes
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(
        str(graph), options, providers=["CPUExecutionProvider"], disabled_optimizers=SLOW_FUSIONS
    )
