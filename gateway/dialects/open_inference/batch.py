"""Merge inference requests of the same form along the first dimension, and split the response. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.calls import Call
from gateway.dialects.json_body import dump_json
from gateway.dialects.open_inference.message import InferenceRequest, InferenceResponse, pack, unpack
from gateway.dialects.open_inference.tensors import Tensor, elements, pack_strings
from gateway.errors import MalformedResponse


def batch_rows(call: Call) -> int | None:
    """Return the number of rows of a call; None if it cannot be merged.

    Streams and sequences cannot, nor tensors in shared memory or with different first dimensions.
    """
    if call.operation != "infer" or call.stream or call.uncached is not None:
        return None
    inference: InferenceRequest = call.body["inference"]
    rows = {tensor.shape[0] if tensor.shape and tensor.data is not None else 0 for tensor in inference.inputs}
    return next(iter(rows)) if len(rows) == 1 and 0 not in rows else None


def batch_key(call: Call) -> bytes:
    """Return a key that is equal for calls that may be merged. `batch_rows` must not be None.

    It covers everything except ids, contents and the first dimension.
    """
    inference: InferenceRequest = call.body["inference"]
    inputs = [
        [t.name, t.datatype, list(t.shape[1:]), dict(t.parameters), t.binary]
        for t in sorted(inference.inputs, key=lambda tensor: tensor.name)
    ]
    outputs = inference.outputs and [[w.name, dict(w.parameters), w.binary] for w in inference.outputs]
    return dump_json([call.model, dict(inference.parameters), inputs, outputs, inference.binary], canonical=True)


def merge_calls(calls: Sequence[Call]) -> Call:
    """Merge calls with the same key into one."""
    inferences: list[InferenceRequest] = [call.body["inference"] for call in calls]
    named = [{tensor.name: tensor for tensor in inference.inputs} for inference in inferences]
    inputs = []
    for first in inferences[0].inputs:
        parts = [each[first.name] for each in named]
        rows = sum(part.shape[0] for part in parts)
        inputs.append(replace(first, shape=(rows, *first.shape[1:]), data=b"".join(part.data or b"" for part in parts)))
    return replace(calls[0], body={"inference": replace(inferences[0], id="", inputs=tuple(inputs))})


def split_answer(data: bytes, rows: Sequence[int]) -> list[bytes]:
    """Split a packed response to `merge_calls` into one for each call, with `rows` rows in order.

    Raise `MalformedResponse` if an output has not one row for each row of the inputs.
    """
    answer = unpack(data)
    total = sum(rows)
    for tensor in answer.outputs:
        if not tensor.shape or tensor.shape[0] != total or tensor.data is None:
            raise MalformedResponse(f"the output {tensor.name[:100]!r} has the wrong shape: expected {total} rows")
    parts = [_split_tensor(tensor, rows) for tensor in answer.outputs]
    return [pack(InferenceResponse(answer.head, tuple(each[at] for each in parts))) for at in range(len(rows))]


def _split_tensor(tensor: Tensor, rows: Sequence[int]) -> list[Tensor]:
    data, parts, at = tensor.data or b"", [], 0
    items = list(elements(data)) if tensor.datatype == "BYTES" else None
    total = tensor.shape[0]
    for count in rows:
        if items is None:
            size = len(data) // total
            part = data[at * size : (at + count) * size]
        else:
            size = len(items) // total
            part = pack_strings(items[at * size : (at + count) * size])
        at += count
        parts.append(replace(tensor, shape=(count, *tensor.shape[1:]), data=part))
    return parts
