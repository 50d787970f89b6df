"""Any ONNX graph with tensor inputs: tensors that clients send by the Open Inference Protocol are passed in by name."""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from gateway.adapters.onnx.model_dir import ModelDir
from gateway.adapters.onnx.model_files import MODEL_FILE, ModelCorrupt
from gateway.dialects.open_inference.message import InferenceRequest, InferenceResponse, pack
from gateway.dialects.open_inference.tensors import NUMBERS, Tensor, elements, pack_strings
from gateway.errors import UnsupportedByBackend

DATATYPES = {
    "tensor(bool)": "BOOL",
    "tensor(uint8)": "UINT8",
    "tensor(uint16)": "UINT16",
    "tensor(uint32)": "UINT32",
    "tensor(uint64)": "UINT64",
    "tensor(int8)": "INT8",
    "tensor(int16)": "INT16",
    "tensor(int32)": "INT32",
    "tensor(int64)": "INT64",
    "tensor(float16)": "FP16",
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(string)": "BYTES",
}

ABOUT = re.compile(r"/v2/models/([^/]+)(?:/versions/[^/]+)?(/ready)?")


class TensorGraph:
    """`TensorGraph` runs an ONNX graph. It raises `ModelMissing`, or `ModelCorrupt` if the graph has inputs or outputs
    that are not supported tensors."""

    def __init__(self, folder: ModelDir, threads: int) -> None:
        self._session = folder.session(threads)
        self._inputs = {each.name: each for each in self._session.get_inputs()}
        self._outputs = {each.name: each.type for each in self._session.get_outputs()}
        for name, kind in [*((n, each.type) for n, each in self._inputs.items()), *self._outputs.items()]:
            if kind not in DATATYPES:
                raise ModelCorrupt(f"{folder.path / MODEL_FILE} has {name} of type {kind}, expected a tensor")

    def about(self, method: str, path: str) -> dict[str, Any] | bool | None:
        """Return the protocol's metadata on a server or a model. A bool tells health or readiness. None
        means another path."""
        if method not in ("GET", "HEAD"):
            return None
        if path in ("/v2/health/live", "/v2/health/ready"):
            return True
        match = ABOUT.fullmatch(path)
        if match is None or match[2]:
            return None if match is None else True
        inputs = [_described(name, each.type, each.shape) for name, each in self._inputs.items()]
        outputs = [_described(each.name, each.type, each.shape) for each in self._session.get_outputs()]
        named = {"name": unquote(match[1]), "versions": ["1"], "platform": "onnxruntime_onnx"}
        return {**named, "inputs": inputs, "outputs": outputs}

    def infer(self, inference: InferenceRequest, model: str, options: onnxruntime.RunOptions) -> bytes:
        """Run the model and return the response in its stored form. `model` is the name in the response. Raise
        `UnsupportedByBackend`."""
        feed = self._feed(inference)
        wanted = list(self._outputs) if inference.outputs is None else [each.name for each in inference.outputs]
        if strange := sorted(set(wanted) - self._outputs.keys()):
            raise UnsupportedByBackend(
                f"the model has no output {strange[0][:100]!r}, expected some of {', '.join(self._outputs)}"
            )
        arrays = self._session.run(wanted, feed, options)
        outputs = tuple(_tensor(name, self._outputs[name], each) for name, each in zip(wanted, arrays, strict=True))
        return pack(InferenceResponse({"model_name": model, "model_version": "1"}, outputs))

    def _feed(self, inference: InferenceRequest) -> dict[str, NDArray[Any]]:
        given = {tensor.name: tensor for tensor in inference.inputs}
        if inference.raw is not None or given.keys() != self._inputs.keys():
            named = ", ".join(given)[:200] or "none by name"
            raise UnsupportedByBackend(f"the request has the inputs {named}, expected {', '.join(self._inputs)}")
        return {name: _array(tensor, self._inputs[name]) for name, tensor in given.items()}


def _described(name: str, kind: str, shape: list[Any]) -> dict[str, Any]:
    return {"name": name, "datatype": DATATYPES[kind], "shape": [n if type(n) is int else -1 for n in shape]}


def _array(tensor: Tensor, wanted: onnxruntime.NodeArg) -> NDArray[Any]:
    """Return the tensor as an array. Raise `UnsupportedByBackend`, because a failure in the pass would look like a
    fault of the model."""
    datatype = DATATYPES[wanted.type]
    if tensor.data is None or tensor.datatype != datatype:
        raise UnsupportedByBackend(
            f"input {tensor.name!r} is of datatype {tensor.datatype[:40]!r}, expected {datatype} in the message"
        )
    shape = wanted.shape
    fits = len(shape) == len(tensor.shape) and all(
        type(size) is not int or size == given for size, given in zip(shape, tensor.shape, strict=True)
    )
    if shape and not fits:
        raise UnsupportedByBackend(f"input {tensor.name!r} has shape {list(tensor.shape)}, expected {shape}")
    if datatype == "BYTES":
        texts = [element.decode("utf-8", "replace") for element in elements(tensor.data)]
        return np.array(texts, dtype=object).reshape(tensor.shape)
    return np.frombuffer(tensor.data, NUMBERS[datatype]).reshape(tensor.shape)


def _tensor(name: str, kind: str, array: NDArray[Any]) -> Tensor:
    datatype = DATATYPES[kind]
    if datatype == "BYTES":
        data = pack_strings([str(text).encode() for text in array.ravel()])
    else:
        data = np.ascontiguousarray(array, NUMBERS[datatype]).tobytes()
    return Tensor(name, datatype, tuple(array.shape), {}, data)
