"""Speaks the tensors of vLLM's Triton backend (release 25.12) without a GPU: repeats its prompt, a word a token."""

import asyncio
import json

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


TOGETHER = 3


class TritonPythonModel:
    def initialize(self, args):
        self._waiting, self._complete = 0, asyncio.Event()

    async def execute(self, requests):
        await asyncio.gather(*(self._serve(request) for request in requests))

    async def _serve(self, request):
        sender = request.get_response_sender()
        prompt = _given(request, "text_input").decode()
        sampling = json.loads(_given(request, "sampling_parameters") or b"{}")
        words, limit = prompt.split(), sampling.get("max_tokens", 16)
        if "break" in words:
            sender.send(pb_utils.InferenceResponse(error=pb_utils.TritonError("the engine broke")), FINAL)
            return
        if "together" in words:  # answered when so many are under way at once
            self._waiting += 1
            if self._waiting == TOGETHER:
                self._complete.set()
            await self._complete.wait()
        assert _given(request, "stream"), "without it the engine repeats the prompt before its answer"
        for i, word in enumerate(words[:limit]):
            last = i == min(limit, len(words)) - 1
            finish = ("stop" if limit >= len(words) else "length") if last else "None"
            sender.send(_response(f"{word} ", finish))
        sender.send(flags=FINAL)


def _given(request, name):
    tensor = pb_utils.get_input_tensor_by_name(request, name)
    return None if tensor is None else tensor.as_numpy().reshape(-1)[0]


def _response(text, finish):
    return pb_utils.InferenceResponse(
        [
            pb_utils.Tensor("text_output", np.array([text.encode()], np.object_)),
            pb_utils.Tensor("finish_reason", np.array([finish.encode()], np.object_)),
            pb_utils.Tensor("num_output_tokens", np.array([1], np.uint32)),
        ]
    )
