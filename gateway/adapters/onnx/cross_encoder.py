"""A cross-encoder: reads two questions together and says how surely they ask exactly the same. int8 ONNX, one thread.

Three of the embedder's layers, trained by `training.cross_encoder`. The word embeddings are the embedder's own, read
from its graph, and so not in the weights; another embedder's table is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

from gateway.adapters.onnx.model_files import TOKENIZER_FILE
from gateway.adapters.onnx.pair_tokenizer import PairReader, joined
from gateway.adapters.onnx.word_table import load_word_table
from gateway.weight_files import WeightsCorrupt

GRAPH_FILE, ABOUT_FILE = "cross_encoder.onnx", "cross_encoder.json"
UNREAD = -20.0  # the logit of a pair that is too long to be read to its end


class OnnxCrossEncoder:
    """Implements `CrossEncoder`. Deterministic. `probability` turns a logit into what held-out wordings say of it.

    `model_dir` holds what `nearhit model fetch` built. Raises `WeightsCorrupt`, `ModelMissing` or `ModelCorrupt` when
    made.
    """

    threads = 1

    def __init__(self, model_dir: Path, weights: Path) -> None:
        about, graph = _checked(weights)
        self.digest = str(about["sha256"])
        self._table = load_word_table(model_dir)
        if (found := self._table.digest()) != about["table_sha256"]:
            raise WeightsCorrupt(
                f"the cross-encoder was trained on another table of word embeddings than the one in {model_dir} "
                f"(sha256 {found[:12]}..., expected {str(about['table_sha256'])[:12]}...): run `nearhit model fetch`"
            )
        self._platt = float(about["platt"][0]), float(about["platt"][1])
        self._reader = PairReader(model_dir / TOKENIZER_FILE)
        self._session = _session(graph)

    def score(self, asked: str, stored: Sequence[str]) -> list[float]:
        """Each pair has a forward pass of its own: in a shared one its logit would move with its company."""
        one = self._reader.ids(asked)
        return [self._score(one, self._reader.ids(other)) for other in stored]

    def probability(self, logit: float) -> float:
        """That both ask the same, where half of the pairs do."""
        a, b = self._platt
        return float(1.0 / (1.0 + np.exp(-(a * logit + b))))

    def _score(self, one: list[int] | None, two: list[int] | None) -> float:
        if (pair := joined(one, two)) is None:
            return UNREAD
        ids, types = pair[0][np.newaxis], pair[1][np.newaxis]
        feed = {"word_embeddings": self._table(ids), "attention_mask": np.ones_like(ids), "token_type_ids": types}
        return float(self._session.run(["logit"], feed)[0][0])


def _checked(weights: Path) -> tuple[dict[str, Any], bytes]:
    """What `cross_encoder.json` says, and the graph that it says it of."""
    try:
        about: dict[str, Any] = json.loads((weights / ABOUT_FILE).read_bytes())
        graph = (weights / GRAPH_FILE).read_bytes()
        found, expected = hashlib.sha256(graph).hexdigest(), str(about["sha256"])
        str(about["table_sha256"]), [float(number) for number in about["platt"]]
    except OSError as error:
        raise WeightsCorrupt(f"the cross-encoder's weights cannot be read: {error}") from None
    except (ValueError, KeyError, TypeError) as error:
        raise WeightsCorrupt(f"{weights.name}/{ABOUT_FILE} is not as trained: {error!r}") from None
    if found != expected:
        raise WeightsCorrupt(
            f"{weights.name}/{GRAPH_FILE} has sha256 {found[:12]}..., {ABOUT_FILE} says {expected[:12]}..."
        )
    return about, graph


def _session(graph: bytes) -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.enable_mem_pattern = False  # for fixed shapes
    options.log_severity_level = 3  # errors only
    return onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
