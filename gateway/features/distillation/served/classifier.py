"""Classifies text with the model of a folder: `model.onnx`, `tokenizer.json` and a Hugging Face `config.json`."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

Logits = Callable[[NDArray[np.int64], NDArray[np.int64]], NDArray[np.float32]]
"""Maps token ids and mask, each of shape (1, length), to logits of shape (labels,)."""

# The check `verifier` of a cascade escalates an answer that begins with this text.
UNSURE = "I don't know."


@dataclass(frozen=True, slots=True)
class ClassifierResult:
    text: str
    confidence: float  # probability of the likeliest label
    tokens: int


class Classifier:
    """A classifier with the files of `folder`. `logits` replaces the graph of the folder."""

    def __init__(self, folder: Path, logits: Logits | None = None) -> None:
        about = json.loads((folder / "config.json").read_text())
        self.labels = [str(about["id2label"][str(at)]) for at in range(len(about["id2label"]))]
        self.accept_above: float = about["accept_above"]
        self._tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self._tokenizer.no_padding()
        self._tokenizer.enable_truncation(about["max_position_embeddings"])
        self._logits = logits or _load_graph(folder / "model.onnx")

    def classify_text(self, text: str) -> ClassifierResult:
        """Return the likeliest label, or `UNSURE` if its probability is not above `accept_above`."""
        ids = self._tokenizer.encode(text).ids
        odds = self._probabilities(ids)
        best = int(odds.argmax())
        sure = float(odds[best]) > self.accept_above
        return ClassifierResult(self.labels[best] if sure else UNSURE, float(odds[best]), len(ids))

    def probabilities(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """Return the probabilities, shape (texts, labels).

        Each text has its own pass, as in serving: int8 scales depend on all texts of a pass.
        """
        return np.stack([self._probabilities(encoding.ids) for encoding in self._tokenizer.encode_batch(list(texts))])

    def _probabilities(self, ids: Sequence[int]) -> NDArray[np.float32]:
        row = np.array([ids], np.int64)
        logits = self._logits(row, np.ones_like(row))
        raised = np.exp(logits - logits.max())
        odds: NDArray[np.float32] = raised / raised.sum()
        return odds


def _load_graph(file: Path) -> Logits:
    """Load a graph for one thread, because several models share a machine. A text takes a fraction of a millisecond."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])

    def logits(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        (outputs,) = session.run(["logits"], {"input_ids": ids, "attention_mask": mask})
        row: NDArray[np.float32] = outputs[0]
        return row

    return logits
