"""Adapts the gateway's complexity scorer to the evaluation's `router_eval.py`. Run it from the repository's root.

    EVAL=folder of the evaluation tools
    .venv/bin/python $EVAL/router_eval.py --predictor quality.complexity:score             # the shipped weights
    .venv-training/bin/python $EVAL/router_eval.py --trainer quality.complexity:fit        # subjects held out

The shipped weights were fitted on the prompts of that file, so the first command needs other prompts to measure unseen
ones. The second command measures unseen prompts. NEARHIT_MODEL_DIR is the folder of the embedding models, if not the
default.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.adapters.onnx.model_files import MODEL
from gateway.routing.complexity import ComplexityModel, load_weights

MODELS = Path(os.environ.get("NEARHIT_MODEL_DIR", ".venv/share/nearhit/models"))
Score = Callable[[Sequence[str]], list[float]]


def score(prompts: Sequence[str]) -> list[float]:
    encoder = OnnxEncoder(MODELS / MODEL)
    return _scored(ComplexityModel(load_weights(), encoder.fingerprint), encoder, prompts)


def fit(rows: Sequence[dict[str, Any]]) -> Score:
    """Trains on rows with `prompt`, `weak`, `strong` and `domain`, and returns the scorer."""
    training = importlib.import_module("training.complexity")  # scikit-learn is in the training environment alone
    encoder, words = OnnxEncoder(MODELS / MODEL, threads=2), training.common_words(MODELS / MODEL)
    rarity = training.Commonness(words)
    weights = training.trained(training.outcomes(rows, encoder, rarity), training.graded(encoder, rarity), rarity)
    model = ComplexityModel(weights, encoder.fingerprint)
    return lambda prompts: _scored(model, encoder, prompts)


def _scored(model: ComplexityModel, encoder: OnnxEncoder, prompts: Sequence[str]) -> list[float]:
    def one(prompt: str) -> float:
        embedding = encoder.encode([prompt])[0]
        return model.score(prompt, None, None if embedding.unreadable else embedding.vector)

    return [one(prompt) for prompt in prompts]
