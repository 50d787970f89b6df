"""Serves a distilled classifier in Triton's python backend: `text_input` to `text_output`, the label."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

from .classifier import Classifier

STEP = 16  # tokens: lengths are rounded up to a multiple, so that Triton can batch requests of one shape


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        folder = Path(args["model_repository"]) / args["model_version"]
        graph = json.loads((folder / "config.json").read_text()).get("graph")
        self._classifier = Classifier(folder, None if graph is None else _remote_graph(graph))
        if graph is None:  # otherwise the graph's model may not be loaded yet
            self._classifier.classify_text("warm up")

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Any) -> Any:
        given = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)
        if len(given) != 1:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("expected one text in text_input"))
        label = self._classifier.classify_text(given[0].decode(errors="replace"))
        return pb_utils.InferenceResponse(
            [
                pb_utils.Tensor("text_output", np.array([label.text.encode()], np.object_)),
                pb_utils.Tensor("confidence", np.array([label.confidence], np.float32)),
                pb_utils.Tensor("prompt_tokens", np.array([label.tokens], np.int32)),
                pb_utils.Tensor("completion_tokens", np.array([1], np.int32)),
            ]
        )


def _remote_graph(graph: str) -> Any:
    """Return a function that gets logits from another model of this server, which batches them on a GPU.

    Triton reports an error of that model to the client.
    """

    def logits(ids: NDArray[np.int64], mask: NDArray[np.int64]) -> NDArray[np.float32]:
        space = ((0, 0), (0, -ids.shape[1] % STEP))
        given = [
            pb_utils.Tensor("input_ids", np.pad(ids, space)),
            pb_utils.Tensor("attention_mask", np.pad(mask, space)),
        ]
        request = pb_utils.InferenceRequest(model_name=graph, requested_output_names=["logits"], inputs=given)
        answer = request.exec()
        if answer.has_error():
            raise pb_utils.TritonModelException(answer.error().message())
        row: NDArray[np.float32] = pb_utils.get_output_tensor_by_name(answer, "logits").as_numpy()[0]
        return row

    return logits
