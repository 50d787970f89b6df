"""The text interface that nearhit speaks, in front of a vLLM engine on the same server.

vLLM's Triton backend takes its limit of tokens in a JSON text, stops at 16 tokens without one, and needs to be asked
for a stream. This model takes `text_input` and `max_tokens`, and streams `text_output`; its last response also says
how the answer ended and how many tokens it has.
"""

import json
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import triton_python_backend_utils as pb_utils

FINAL = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL


class TritonPythonModel:
    def initialize(self, args):
        parameters = json.loads(args["model_config"])["parameters"]
        self._engine = parameters["engine"]["string_value"]
        self._before, self._after = parameters["prompt"]["string_value"].split("{prompt}")
        self._max_tokens = int(parameters["default_max_tokens"]["string_value"])
        # Waiting for the engine's next piece blocks a thread, so every answer under way has one.
        self._threads = ThreadPoolExecutor(int(parameters["max_concurrency"]["string_value"]))

    def execute(self, requests):
        for request in requests:
            self._threads.submit(self._serve, request, request.get_response_sender())

    def finalize(self):
        self._threads.shutdown()

    def _serve(self, request, sender):
        try:
            self._answer(request, sender)
        except Exception as error:  # every response stream must end, whatever happened
            fault = pb_utils.TritonError(f"{type(error).__name__}: {error}")
            sender.send(pb_utils.InferenceResponse(error=fault), FINAL)

    def _answer(self, request, sender):
        tokens, finish = 0, None
        responses = self._ask(request).exec(decoupled=True)
        for response in responses:
            if request.is_cancelled():
                # Newer servers can pass it on; elsewhere the engine ends by itself at its limit of tokens.
                getattr(responses, "cancel", lambda: None)()
                sender.send(flags=FINAL)
                return
            if response.has_error():
                raise RuntimeError(response.error().message())
            if not response.output_tensors():
                continue  # the empty one that only says: that was all
            text, finish, new = (_first(response, name) for name in OUTPUTS)
            tokens += int(new)
            sender.send(_text(text))
        sender.send(
            _text(
                b"",
                finish_reason=np.array([finish or b"stop"], np.object_),
                completion_tokens=np.array([tokens], np.int32),
            ),
            FINAL,
        )

    def _ask(self, request):
        prompt = pb_utils.get_input_tensor_by_name(request, "text_input").as_numpy().reshape(-1)[0].decode()
        limit = pb_utils.get_input_tensor_by_name(request, "max_tokens")
        sampling = {"max_tokens": self._max_tokens if limit is None else int(limit.as_numpy().reshape(-1)[0])}
        inputs = {
            "text_input": np.array([(self._before + prompt + self._after).encode()], np.object_),
            "stream": np.array([True]),
            "sampling_parameters": np.array([json.dumps(sampling).encode()], np.object_),
            "return_finish_reason": np.array([True]),
            "return_num_output_tokens": np.array([True]),
        }
        return pb_utils.InferenceRequest(
            model_name=self._engine,
            requested_output_names=list(OUTPUTS),
            inputs=[pb_utils.Tensor(name, value) for name, value in inputs.items()],
        )


OUTPUTS = ("text_output", "finish_reason", "num_output_tokens")


def _first(response, name):
    return pb_utils.get_output_tensor_by_name(response, name).as_numpy().reshape(-1)[0]


def _text(text, **more):
    outputs = {"text_output": np.array([text], np.object_), **more}
    return pb_utils.InferenceResponse([pb_utils.Tensor(name, value) for name, value in outputs.items()])
