"""Requests and responses of the Open Inference Protocol over HTTP, with tensors in JSON or in a binary tail.

The tail is Triton's extension_binary_data. Each message is parsed into one form and written in the requested form.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gateway.calls import Content
from gateway.dialects.json_body import ABSENT, dump_json, invalid_field, parse_numbers
from gateway.dialects.open_inference.tensors import (
    MAX_DIMENSIONS,
    Tensor,
    TensorInvalid,
    elements,
    from_json,
    to_json,
    validate_content,
)
from gateway.errors import BadRequest, MalformedResponse

BINARY_SIZE, BINARY, ALL_BINARY = "binary_data_size", "binary_data", "binary_data_output"
MAX_TENSORS = 1024
# Parameters about how, when or under which name a response is made; they do not change it.
NON_DECISIVE = frozenset({ALL_BINARY, "priority", "timeout", "triton_enable_empty_final_response"})
_HEAD = 4  # bytes of the length prefix of a packed response


@dataclass(frozen=True, slots=True)
class RequestedOutput:
    """A requested output. If `binary` is None, the request decides for all outputs."""

    name: str
    parameters: Mapping[str, Any]
    binary: bool | None


@dataclass(frozen=True, slots=True)
class InferenceRequest(Content):
    """An inference request. If `outputs` is None, it asks for all outputs of the model. `binary` is the default form of
    outputs."""

    id: str
    parameters: Mapping[str, Any]
    inputs: tuple[Tensor, ...]
    outputs: tuple[RequestedOutput, ...] | None
    binary: bool
    raw: bytes | None = None  # a body without JSON, for a model with one input

    def texts(self) -> Iterator[object]:
        yield self.parameters
        for tensor in self.inputs:
            if tensor.datatype == "BYTES" and tensor.data is not None:
                yield from elements(tensor.data)

    def decisive(self, model: str, version: str | None, *, without: str | None = None) -> bytes:
        """Return canonical JSON of what decides the response, tensors as digests, without the content of one input."""
        inputs = [
            [t.name, t.datatype, t.shape, t.parameters, None if t.name == without else _digest(t.data)]
            for t in sorted(self.inputs, key=lambda tensor: tensor.name)
        ]
        outputs = None
        if self.outputs is not None:
            outputs = sorted(([w.name, w.parameters] for w in self.outputs), key=lambda pair: str(pair[0]))
        parameters = {name: value for name, value in self.parameters.items() if name not in NON_DECISIVE}
        return dump_json([model, version, parameters, inputs, outputs], canonical=True)


@dataclass(frozen=True, slots=True)
class InferenceResponse:
    """An inference response. `head` has its other fields, such as the model's name and version, without the id."""

    head: Mapping[str, Any]
    outputs: tuple[Tensor, ...]


def read_inference(body: bytes, json_length: int | None) -> InferenceRequest:
    """Parse a request. `json_length` is the value of Inference-Header-Content-Length. Raise `BadRequest`."""
    if json_length == 0 and body:
        return InferenceRequest("", {}, (), None, True, raw=body)
    value, tail = _split_body(body, json_length)
    given = value.get("inputs")
    if not isinstance(given, list) or not 0 < len(given) <= MAX_TENSORS:
        raise invalid_field("inputs", f"an array of 1 to {MAX_TENSORS} tensors", value.get("inputs", ABSENT))
    inputs = tuple(_parse_tensors(given, tail, "input"))
    if len({tensor.name for tensor in inputs}) != len(inputs):
        raise BadRequest("two inputs have the same name: expected unique names")
    parameters = _parameters(value)
    identity = value.get("id", "")
    if not isinstance(identity, str):
        raise BadRequest("'id' is of the wrong type: expected a string")
    return InferenceRequest(
        identity,
        {name: given for name, given in parameters.items() if name != ALL_BINARY},
        inputs,
        _parse_outputs(value.get("outputs")),
        parameters.get(ALL_BINARY) is True,
    )


def write_inference(inference: InferenceRequest) -> tuple[bytes, int | None]:
    """Return (body, length of its JSON if there is a tail, else None).

    Inputs keep the form in which they came, and outputs are requested in the form that the client wants. So the server
    gets no request that this client would not have sent.
    """
    if inference.raw is not None:
        return inference.raw, 0
    tail: list[bytes] = []
    value: dict[str, Any] = {"inputs": [_encode_tensor(tensor, tail, "input") for tensor in inference.inputs]}
    if inference.binary or inference.parameters:
        value["parameters"] = {**inference.parameters, **({ALL_BINARY: True} if inference.binary else {})}
    if inference.id:
        value["id"] = inference.id
    if inference.outputs is not None:
        value["outputs"] = list(map(_encode_output, inference.outputs))
    head = dump_json(value)
    return b"".join((head, *tail)), len(head) if tail else None


def read_answer(body: bytes, json_length: int | None) -> InferenceResponse:
    """Parse a response. Raise `MalformedResponse`."""
    try:
        value, tail = _split_body(body, json_length)
        outputs = value.pop("outputs", None)
        if not isinstance(outputs, list):
            raise MalformedResponse("the response has no outputs: expected an array 'outputs'")
        tensors = tuple(_parse_tensors(outputs, tail, "output"))
    except BadRequest as error:
        raise MalformedResponse(f"the response cannot be parsed: {error.message}") from None
    value.pop("id", None)
    return InferenceResponse(value, tensors)


def pack(answer: InferenceResponse) -> bytes:
    """Return the stored form: the length of the JSON (4 bytes, big-endian), the JSON, the tail."""
    body, length = _answer(answer, "", [replace(t, binary=True) for t in answer.outputs])
    return (len(body) if length is None else length).to_bytes(_HEAD, "big") + body


def unpack(data: bytes) -> InferenceResponse:
    """Parse the stored form. Raise `MalformedResponse`."""
    return read_answer(data[_HEAD:], int.from_bytes(data[:_HEAD], "big"))


def format_answer(inference: InferenceRequest, data: bytes) -> tuple[bytes, int | None]:
    """Convert a stored response to the form that this request wants: (body, length of its JSON if there is a tail).

    Raise `MalformedResponse`, and `BadRequest` if JSON cannot express the requested output.
    """
    if inference.binary and not inference.id and inference.outputs is None:
        return data[_HEAD:], int.from_bytes(data[:_HEAD], "big")  # the stored form fits
    answer = unpack(data)
    wanted = {w.name: (at, w) for at, w in enumerate(inference.outputs or ())}
    outputs = []
    for at, tensor in enumerate(answer.outputs):
        place, output = wanted.get(tensor.name, (at, None))
        binary = inference.binary if output is None or output.binary is None else output.binary
        outputs.append((place, replace(tensor, binary=binary)))
    return _answer(answer, inference.id, [tensor for _, tensor in sorted(outputs, key=lambda pair: pair[0])])


def _answer(answer: InferenceResponse, identity: str, outputs: Sequence[Tensor]) -> tuple[bytes, int | None]:
    tail: list[bytes] = []
    value: dict[str, Any] = {**answer.head}
    if identity:
        value["id"] = identity
    value["outputs"] = [_encode_tensor(tensor, tail, "output") for tensor in outputs]
    head = dump_json(value)
    return b"".join((head, *tail)), len(head) if tail else None


def _split_body(body: bytes, json_length: int | None) -> tuple[dict[str, Any], memoryview]:
    length = len(body) if json_length is None else json_length
    if length > len(body):
        raise BadRequest(
            f"Inference-Header-Content-Length is {length}: expected at most the {len(body)} bytes of the body"
        )
    return parse_numbers(body[:length]), memoryview(body)[length:]


def _parse_tensors(given: Sequence[Any], tail: memoryview, kind: str) -> Iterator[Tensor]:
    at = 0
    for each in given:
        tensor, taken = _parse_tensor(each, tail[at:], kind)
        at += taken
        yield tensor
    if at != len(tail):
        raise BadRequest(
            f"the binary tail has {len(tail)} bytes: expected {at}, the sum of '{BINARY_SIZE}' of all {kind}s"
        )


def _parse_tensor(given: Any, tail: memoryview, kind: str) -> tuple[Tensor, int]:
    """Return (the tensor, the number of its bytes in the tail)."""
    if not isinstance(given, dict) or not isinstance(name := given.get("name"), str) or not name:
        raise BadRequest(f"an {kind} is invalid: expected an object with a non-empty 'name'")
    datatype, shape = given.get("datatype"), given.get("shape")
    if not isinstance(datatype, str) or not isinstance(shape, list) or not _is_shape(shape):
        raise BadRequest(
            f"{kind} {name[:100]!r} is incomplete: expected a string 'datatype' and an array of integers 'shape'"
        )
    parameters = dict(_parameters(given))
    size = parameters.pop(BINARY_SIZE, None)
    parameters.pop(BINARY, None)
    data, json_value = given.get("data"), None
    try:
        if size is not None:
            if type(size) is not int or not 0 <= size <= len(tail) or data is not None:
                raise TensorInvalid(
                    f"has '{BINARY_SIZE}' {size!r}: expected 0 to {len(tail)} (left in the tail), and no 'data'"
                )
            raw: bytes | None = validate_content(bytes(tail[:size]), datatype, shape)
        elif data is not None:
            raw, json_value = _read_json(data, datatype, shape, kind)
        elif kind == "input" and "shared_memory_region" not in parameters:
            raise TensorInvalid(f"has no data: expected 'data' or 'parameters.{BINARY_SIZE}'")
        else:
            raw = None
    except TensorInvalid as error:
        raise BadRequest(f"{kind} {name[:100]!r} {error}") from None
    return Tensor(name, datatype, tuple(shape), parameters, raw, size is not None, json_value), size or 0


def _read_json(data: Any, datatype: str, shape: Sequence[int], kind: str) -> tuple[bytes | None, Any]:
    """Parse JSON data. Servers put more into outputs than the protocol defines; that is forwarded unchanged."""
    try:
        return from_json(data, datatype, shape), None
    except TensorInvalid:
        if kind == "input":
            raise
        return None, data


def _encode_tensor(tensor: Tensor, tail: list[bytes], kind: str) -> dict[str, Any]:
    value: dict[str, Any] = {"name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape)}
    parameters = dict(tensor.parameters)
    if tensor.json_value is not None:
        value["data"] = tensor.json_value
    elif tensor.data is not None and tensor.binary:
        parameters[BINARY_SIZE] = len(tensor.data)
        tail.append(tensor.data)
    elif tensor.data is not None:
        try:
            value["data"] = to_json(tensor.data, tensor.datatype)
        except TensorInvalid as error:
            raise BadRequest(f"{kind} {tensor.name!r} {error}") from None
    if parameters:
        value["parameters"] = parameters
    return value


def _encode_output(wanted: RequestedOutput) -> dict[str, Any]:
    parameters = {**wanted.parameters, **({} if wanted.binary is None else {BINARY: wanted.binary})}
    return {"name": wanted.name, **({"parameters": parameters} if parameters else {})}


def _parse_outputs(given: Any) -> tuple[RequestedOutput, ...] | None:
    """Parse the requested outputs. An empty list means all outputs, as in Triton."""
    if given is None or given == []:
        return None
    if not isinstance(given, list) or len(given) > MAX_TENSORS:
        raise BadRequest(f"'outputs' is invalid: expected an array of at most {MAX_TENSORS} outputs")
    wanted = []
    for each in given:
        if not isinstance(each, dict) or not isinstance(name := each.get("name"), str):
            raise BadRequest("an output is invalid: expected an object with a 'name'")
        parameters = dict(_parameters(each))
        binary = parameters.pop(BINARY, None)
        wanted.append(RequestedOutput(name, parameters, None if binary is None else binary is True))
    return tuple(wanted)


def _parameters(value: Mapping[str, Any]) -> Mapping[str, Any]:
    parameters = value.get("parameters")
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise BadRequest("'parameters' is of the wrong type: expected an object")
    return parameters


def _is_shape(shape: list[Any]) -> bool:
    return len(shape) <= MAX_DIMENSIONS and all(type(n) is int and 0 <= n < 2**40 for n in shape)


def _digest(data: bytes | None) -> str | None:
    return None if data is None else hashlib.sha256(data).hexdigest()
