"""A version of a light model for Triton's python backend: it answers with the last word, except as its file says."""

import json
import time
from pathlib import Path

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        folder = Path(args["model_repository"]) / args["model_version"]
        self._said = json.loads((folder / "said.json").read_text())

    def execute(self, requests):
        return [self._answer(request) for request in requests]

    def _answer(self, request):
        words = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy()[0].decode().split()
        time.sleep(self._said["delay_s"])
        if self._said["fails"]:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("this version fails"))
        answer = "wrong" if self._said["wrong"] in words else words[-1]
        return pb_utils.InferenceResponse([pb_utils.Tensor("text_output", np.array([answer.encode()], np.object_))])
