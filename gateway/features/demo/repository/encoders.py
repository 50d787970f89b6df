"""Encodes text as unit vectors: all-MiniLM through onnxruntime, and static token vectors distilled from it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

Vectors = NDArray[np.float32]
"""Unit-length rows, float32 of shape (texts, dimension)."""

MAX_TOKENS = 256  # the training limit of all-MiniLM
BATCH = 32  # the largest batch decides the memory


class Encoder(Protocol):
    @property
    def tokenizer(self) -> Tokenizer: ...

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Return one unit vector per text, in order. A text without known words may get all zeros."""


def load_tokenizer(path: Path) -> Tokenizer:
    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.no_padding()
    tokenizer.enable_truncation(MAX_TOKENS)
    return tokenizer


class MiniLm:
    """The encoder all-MiniLM, with one forward pass per batch."""

    def __init__(self, model: Path, tokenizer: Path, threads: int = 1) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        # Spinning idle threads would take the core that the gateway on this machine needs.
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self.tokenizer = load_tokenizer(tokenizer)
        self._session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self._inputs = {each.name for each in self._session.get_inputs()}

    def encode(self, texts: Sequence[str]) -> Vectors:
        ids = [encoding.ids for encoding in self.tokenizer.encode_batch(list(texts))]
        # Texts of similar length share a batch, because a batch is padded to its longest text.
        order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
        rows: list[Vectors] = [np.empty(0, np.float32)] * len(ids)
        for start in range(0, len(order), BATCH):
            chosen = order[start : start + BATCH]
            for i, row in zip(chosen, self.encode_ids([ids[i] for i in chosen]), strict=True):
                rows[i] = row
        return np.stack(rows)

    def encode_ids(self, ids: Sequence[Sequence[int]]) -> Vectors:
        """Return the vectors of token id sequences, special tokens included, from one batch."""
        shape = (len(ids), max(map(len, ids)))
        feed = {name: np.zeros(shape, np.int64) for name in self._inputs}
        for i, row in enumerate(ids):
            feed["input_ids"][i, : len(row)] = row
            feed["attention_mask"][i, : len(row)] = 1
        vectors: Vectors = self._session.run(["sentence_embedding"], feed)[0]
        return vectors


class StaticVectors:
    """Encodes a text as the normalised sum of its weighted token vectors: a table lookup instead of a network."""

    def __init__(self, table: Path, tokenizer: Path) -> None:
        self.tokenizer = load_tokenizer(tokenizer)
        with np.load(table, allow_pickle=False) as file:
            self._table: NDArray[np.float16] = file["vectors"]  # (vocabulary, dimension), already weighted

    def encode(self, texts: Sequence[str]) -> Vectors:
        encodings = self.tokenizer.encode_batch(list(texts), add_special_tokens=False)
        sums = np.zeros((len(encodings), self._table.shape[1]), np.float32)
        for row, encoding in zip(sums, encodings, strict=True):
            row += self._table[encoding.ids].sum(axis=0, dtype=np.float32)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        unit: Vectors = sums / np.maximum(lengths, 1e-9)
        return unit
