"""The model `embedder`: all-MiniLM sentence embeddings, for /v1/embeddings through Triton."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from .encoders import MiniLm


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        directory = Path(args["model_repository"]) / args["model_version"]
        self._encoder = MiniLm(directory / "model.onnx", directory / "tokenizer.json")
        self._encoder.encode(["warm up"])

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._embed(request) for request in requests]

    def _embed(self, request: Any) -> Any:
        """Return `embedding`, float32 of shape (texts, 384), one unit-length row per text."""
        given = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)
        if not len(given):
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("text_input is empty"))
        # One forward pass per text: int8 activations are scaled over a pass, so other texts would change the vector.
        vectors = np.concatenate([self._encoder.encode([text.decode(errors="replace")]) for text in given])
        return pb_utils.InferenceResponse([pb_utils.Tensor("embedding", vectors)])
