"""Inference requests and responses as protobuf messages of `inference.GRPCInferenceService`. Pure.

Tensors are raw bytes in both forms, and are passed on unchanged. Typed contents are converted to raw ones.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tritonclient.grpc import service_pb2 as pb

from gateway.dialects.open_inference.message import InferenceRequest, InferenceResponse, RequestedOutput
from gateway.dialects.open_inference.tensors import NUMBERS, Tensor, pack_strings
from gateway.errors import BadRequest, MalformedResponse

SHARED = "shared_memory_region"
FINAL, EMPTY_FINAL = "triton_final_response", "triton_enable_empty_final_response"
# The protocol's field for the elements of each datatype; those of two bytes can only be raw.
CONTENTS = {
    "BOOL": "bool_contents",
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    "INT64": "int64_contents",
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
    "BYTES": "bytes_contents",
}


def inference_of(message: Any) -> InferenceRequest:
    """Return a `ModelInferRequest` as a request. Raise `BadRequest`."""
    raw = iter(message.raw_input_contents)
    raw_given = len(message.raw_input_contents) > 0
    inputs = []
    for tensor in message.inputs:
        parameters = parameters_of(tensor.parameters)
        data = None if SHARED in parameters else next(raw, None) if raw_given else _typed_contents(tensor)
        if data is None and SHARED not in parameters:
            raise BadRequest(f"input {tensor.name[:100]!r} has no content")
        inputs.append(Tensor(tensor.name, tensor.datatype, tuple(tensor.shape), parameters, data))
    if next(raw, None) is not None:
        raise BadRequest("there are more raw_input_contents than inputs")
    outputs = tuple(RequestedOutput(each.name, parameters_of(each.parameters), True) for each in message.outputs)
    return InferenceRequest(message.id, parameters_of(message.parameters), tuple(inputs), outputs or None, binary=True)


def request_of(inference: InferenceRequest, model: str, version: str) -> Any:
    """Return a request as a `ModelInferRequest`."""
    message = pb.ModelInferRequest(model_name=model, model_version=version, id=inference.id)
    _set(message.parameters, inference.parameters)
    for tensor in inference.inputs:
        each = message.inputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        _set(each.parameters, tensor.parameters)
        if tensor.data is not None:
            message.raw_input_contents.append(tensor.data)
    for wanted in inference.outputs or ():
        _set(message.outputs.add(name=wanted.name).parameters, wanted.parameters)
    return message


def answer_of(message: Any) -> InferenceResponse:
    """Return a `ModelInferResponse` as an answer, without its id. Raise `MalformedResponse`."""
    head: dict[str, Any] = {"model_name": message.model_name, "model_version": message.model_version}
    parameters = {name: value for name, value in parameters_of(message.parameters).items() if name != FINAL}
    if parameters:
        head["parameters"] = parameters
    raw, outputs = message.raw_output_contents, []
    for at, tensor in enumerate(message.outputs):
        its = parameters_of(tensor.parameters)
        content = None if SHARED in its else raw[at] if at < len(raw) else _typed_contents(tensor)
        if content is None and SHARED not in its:
            raise MalformedResponse(f"the output {tensor.name[:100]!r} has no content")
        outputs.append(Tensor(tensor.name, tensor.datatype, tuple(tensor.shape), its, content))
    return InferenceResponse(head, tuple(outputs))


def response_of(answer: InferenceResponse, identity: str) -> Any:
    """Return an answer as a `ModelInferResponse`. Raise `MalformedResponse` if an output is not a tensor of the
    protocol."""
    head = answer.head
    message = pb.ModelInferResponse(
        model_name=str(head.get("model_name") or ""), model_version=str(head.get("model_version") or ""), id=identity
    )
    parameters = head.get("parameters")
    _set(message.parameters, parameters if isinstance(parameters, dict) else {})
    for tensor in answer.outputs:
        if tensor.json_value is not None:
            raise MalformedResponse(f"the output {tensor.name[:100]!r} is not a tensor of {tensor.datatype}")
        each = message.outputs.add(name=tensor.name, datatype=tensor.datatype, shape=tensor.shape)
        _set(each.parameters, tensor.parameters)
        message.raw_output_contents.append(tensor.data or b"")  # also empty if it is in shared memory
    return message


def parameters_of(parameters: Any) -> dict[str, Any]:
    """Return `InferParameter`s as JSON values."""
    return {
        name: getattr(each, kind) for name, each in parameters.items() if (kind := each.WhichOneof("parameter_choice"))
    }


def _set(target: Any, parameters: Mapping[str, Any]) -> None:
    """Set parameters. JSON lists, objects and nulls have no parameter type, and are left out."""
    for name, value in parameters.items():
        if isinstance(value, bool):
            target[name].bool_param = value
        elif isinstance(value, int) and -(2**63) <= value < 2**64:
            if value < 2**63:
                target[name].int64_param = value
            else:
                target[name].uint64_param = value
        elif isinstance(value, float):
            target[name].double_param = value
        elif isinstance(value, str):
            target[name].string_param = value


def _typed_contents(tensor: Any) -> bytes | None:
    """Return the raw form of `contents`; None if they do not match the datatype."""
    field = CONTENTS.get(tensor.datatype)
    if field is None:
        return None
    values: Sequence[Any] = getattr(tensor.contents, field)
    if tensor.datatype == "BYTES":
        return pack_strings(values)
    try:
        return np.array(values, NUMBERS[tensor.datatype]).tobytes()
    except OverflowError:
        raise BadRequest(f"input {tensor.name[:100]!r} has numbers beyond {tensor.datatype}") from None
