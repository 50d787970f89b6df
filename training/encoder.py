"""Computes the vectors of many texts with the graph of the gateway."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np
import onnxruntime
from tokenizers import Tokenizer

from gateway.cache.features import FloatArray

LONGEST = 256  # tokens, as the gateway's encoder


class Encoder:
    """Keeps what it has encoded."""

    def __init__(self, model_dir: Path, threads: int = 2) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        model = str(model_dir / "model.onnx")
        self._session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        self._tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(LONGEST)
        self._known: dict[str, FloatArray] = {}

    def __call__(self, text: str) -> FloatArray:
        """Return (384,) float32 of unit length."""
        if text not in self._known:
            self._known[text] = self._encode(text)
        return self._known[text]

    def warm(self, texts: Iterable[str]) -> None:
        for text in texts:
            self(text)

    def _encode(self, text: str) -> FloatArray:
        """Encode each text in a pass of its own."""
        ids = np.array([self._tokenizer.encode(text).ids], np.int64)
        (vectors,) = self._session.run(["sentence_embedding"], {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        return np.asarray(vectors[0], np.float32)
