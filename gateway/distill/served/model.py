"""A distilled classifier in Triton's python backend: `text_input` to `text_output`, the label."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils

from .classifier import Classifier


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        self._classifier = Classifier(Path(args["model_repository"]) / args["model_version"])
        self._classifier.say("warm up")

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        given = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)
        if len(given) != 1:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("expected one text in text_input"))
        said = self._classifier.say(given[0].decode(errors="replace"))
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("text_output", np.array([said.text.encode()], np.object_)),
                pb_utils.Tensor("confidence", np.array([said.confidence], np.float32)),
                pb_utils.Tensor("prompt_tokens", np.array([said.tokens], np.int32)),
                pb_utils.Tensor("completion_tokens", np.array([1], np.int32)),
            ]
        )
