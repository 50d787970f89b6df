"""Writes the cross-encoder as int8 ONNX, with a file of its origin and its results on held-out groups."""

from __future__ import annotations

import hashlib
import json
import platform
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import sklearn
import torch
import transformers
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from gateway.adapters.onnx.cross_encoder import ABOUT_FILE, GRAPH_FILE, OnnxCrossEncoder, WordTable
from gateway.adapters.onnx.model_files import MODEL_FILE, TOKENIZER_FILE, load_manifest
from gateway.adapters.onnx.tokenizer import PairTokenizer, join_pair
from gateway.cache.features import FloatArray
from gateway.features.embedding_model import dequantize
from gateway.features.tuning.trainer import graph
from training.cross_network import Network
from training.encoder import Encoder
from training.pair import Pair

WRITTEN = ("wording", "near-miss")  # what writers meant; the rest was altered by a program
# Pairs that a served model is recognised by.
RECOGNISED = (
    ("How do I reset my password?", "What are the steps to reset a password?"),
    ("How do I reset my password?", "How do I reset my router?"),
    ("Why is the sky blue?", "How come the sky looks blue?"),
    ("Why is the sky blue?", "Why is the sea blue?"),
    ("flights from Oslo to Rome", "flights from Rome to Oslo"),
    ("flights from Oslo to Rome", "Which flights go from Oslo to Rome?"),
    ("How many ounces are in 3 cups?", "3 cups is how many ounces?"),
    ("How many ounces are in 3 cups?", "How many ounces are in 5 cups?"),
    ("Can I eat it when pregnant?", "Can I not eat it when pregnant?"),
    ("How long does it take to boil an egg?", "egg boiling time"),
    ("What is the capital of France?", "Who won the championship in 2021?"),
)
CREDITS = {
    "wordings": "our own (training/wordings)",
    "generated pairs": "our own grammar (training/frames, training/slots.txt)",
    "banking77": "PolyAI, Casanueva et al. 2020, CC BY 4.0",
    "clinc150": "Clinc, Larson et al. 2019, CC BY 3.0",
    "SNIPS": "Snips, Coucke et al. 2018, CC0",
    "initial weights, word embeddings": "all-MiniLM-L6-v2, Apache-2.0",
}


def write(
    network: Network,
    table: WordTable,
    out: Path,
    model: Path,
    held: Mapping[str, Sequence[Pair]],
    training: dict[str, Any],
) -> None:
    """Write `cross_encoder.onnx` and `cross_encoder.json` in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    graph.write({name: each.float().numpy() for name, each in network.state_dict().items()}, out / GRAPH_FILE)
    content = (out / GRAPH_FILE).read_bytes()
    about: dict[str, Any] = {
        "version": 1, "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content),
        "table_sha256": table.digest(), "encoder": load_manifest(model).sha256[MODEL_FILE], "platt": [1.0, 0.0],
        "training": training, "licence": "Apache-2.0", "made_from": CREDITS,
        "versions": {"python": platform.python_version(), "machine": platform.machine(),
                     **{m.__name__: m.__version__ for m in (np, torch, transformers, onnx, onnxruntime, sklearn)}},
    }  # fmt: skip
    about["served"] = _recognised_logits(out / GRAPH_FILE, model)
    (out / ABOUT_FILE).write_text(json.dumps(about, indent=2) + "\n")
    about |= _figures(OnnxCrossEncoder(model, out), Encoder(model), held)
    (out / ABOUT_FILE).write_text(json.dumps(about, indent=2) + "\n")
    print(json.dumps({"platt": about["platt"], **about["held_out"]}), flush=True)  # noqa: T201


def _recognised_logits(path: Path, model: Path) -> list[tuple[str, str, float]]:
    """Return the logits of `RECOGNISED` by the float32 graph, as a server runs it."""
    reader, found = PairTokenizer(model / TOKENIZER_FILE), []
    with tempfile.TemporaryDirectory() as scratch:
        exact = Path(scratch) / "float32.onnx"
        dequantize.write(path, exact, model / MODEL_FILE)
        session = onnxruntime.InferenceSession(str(exact), providers=["CPUExecutionProvider"])
    for asked, stored in RECOGNISED:
        pair = join_pair(reader.ids(asked), reader.ids(stored))
        assert pair is not None
        ids, types = pair[0][np.newaxis], pair[1][np.newaxis]
        feed = {"input_ids": ids, "attention_mask": np.ones_like(ids), "token_type_ids": types}
        found.append((asked, stored, round(float(session.run(["logit"], feed)[0][0, 0]), 3)))
    return found


def _figures(cross: OnnxCrossEncoder, encoder: Encoder, held: Mapping[str, Sequence[Pair]]) -> dict[str, Any]:
    """Return Platt and blend on the wordings, with equal weight of the classes, and AUC on all pairs."""
    found: dict[str, Any] = {"held_out": {}}
    for name, pairs in held.items():
        rows = _rows(cross, encoder, pairs)
        same = np.array([pair.same for pair in pairs])
        found["held_out"][name] = {
            "pairs": len(pairs), "same": int(same.sum()),
            "auc": round(float(roc_auc_score(same, rows[:, 1])), 4),
            "auc_cosine": round(float(roc_auc_score(same, rows[:, 0])), 4),
        }  # fmt: skip
        if name == "wordings":
            platt = LogisticRegression(C=1e6, class_weight="balanced").fit(rows[:, 1:], same)
            found["platt"] = [round(float(platt.coef_[0, 0]), 4), round(float(platt.intercept_[0]), 4)]
    return found


def _rows(cross: OnnxCrossEncoder, encoder: Encoder, pairs: Sequence[Pair]) -> FloatArray:
    """Return (n, 2): cosine and logit."""
    cosine = [float(encoder(pair.asked) @ encoder(pair.stored)) for pair in pairs]
    return np.array([cosine, [cross.score(pair.asked, [pair.stored])[0] for pair in pairs]]).T
