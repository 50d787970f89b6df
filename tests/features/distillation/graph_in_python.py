"""A graph of token ids in Triton's python backend: stands for the onnxruntime backend, which the wheel lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnxruntime
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        graph = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self._session = onnxruntime.InferenceSession(str(graph))

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        names = ("input_ids", "attention_mask")
        feed = {name: pb_utils.get_input_tensor_by_name(request, name).as_numpy() for name in names}
        assert feed["input_ids"].shape[1] % 16 == 0
        (logits,) = self._session.run(["logits"], feed)
        return pb_utils.InferenceResponse([pb_utils.Tensor("logits", logits)])
