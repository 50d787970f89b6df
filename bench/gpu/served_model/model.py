"""Runs a graph as Triton's onnxruntime backend does, in its python backend. This is not a module of the benchmark.

All requests of one execution share one pass. The parameters of the model's configuration give the device, and the
folders in which the server's Python looks for onnxruntime first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args: dict[str, str]) -> None:
        config = json.loads(args["model_config"])
        said = {name: each["string_value"] for name, each in config.get("parameters", {}).items()}
        sys.path[:0] = [folder for folder in said.get("folders", "").split(":") if folder]
        import onnxruntime  # noqa: PLC0415 - from the folders that the line above adds

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        wanted = "CPUExecutionProvider"
        if said.get("device") == "cuda":
            wanted = "CUDAExecutionProvider"
            onnxruntime.preload_dlls()
        graph = Path(args["model_repository"]) / args["model_version"] / "model.onnx"
        self._session = onnxruntime.InferenceSession(str(graph), options, providers=[wanted])
        if self._session.get_providers()[0] != wanted:
            raise RuntimeError(f"onnxruntime {onnxruntime.__version__} cannot load {wanted}")
        self._inputs = [each.name for each in self._session.get_inputs()]
        self._output = config["output"][0]["name"]

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        given = {
            name: [pb_utils.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
            for name in self._inputs
        }
        (rows,) = self._session.run([self._output], {name: np.concatenate(parts) for name, parts in given.items()})
        borders = np.cumsum([len(part) for part in given[self._inputs[0]]])[:-1]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(self._output, np.ascontiguousarray(part))])
            for part in np.split(rows, borders)
        ]
