"""Inference requests of equal form as one, along the first dimension, and the answer taken apart again. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from gateway.dialects.json_body import written
from gateway.dialects.kserve_message import Answer, Inference, pack, unpack
from gateway.dialects.kserve_tensors import Tensor, elements, packed
from gateway.errors import Malformed
from gateway.messages import Call


def rows_of(call: Call) -> int | None:
    """How many rows a call has; None where it cannot be one with others: a stream, a sequence, tensors that lie
    elsewhere or do not have the same first dimension."""
    if call.operation != "infer" or call.stream or call.uncached is not None:
        return None
    inference: Inference = call.body["inference"]
    rows = {tensor.shape[0] if tensor.shape and tensor.data is not None else 0 for tensor in inference.inputs}
    return next(iter(rows)) if len(rows) == 1 and 0 not in rows else None


def form_of(call: Call) -> bytes:
    """Equal for calls that may be one: all but ids and contents, the first dimension aside. `rows_of` is not None."""
    inference: Inference = call.body["inference"]
    inputs = [
        [t.name, t.datatype, list(t.shape[1:]), dict(t.parameters), t.binary]
        for t in sorted(inference.inputs, key=lambda tensor: tensor.name)
    ]
    outputs = inference.outputs and [[w.name, dict(w.parameters), w.binary] for w in inference.outputs]
    return written([call.model, dict(inference.parameters), inputs, outputs, inference.binary], canonical=True)


def joined(calls: Sequence[Call]) -> Call:
    """One call for several of one form."""
    inferences: list[Inference] = [call.body["inference"] for call in calls]
    named = [{tensor.name: tensor for tensor in inference.inputs} for inference in inferences]
    inputs = []
    for first in inferences[0].inputs:
        parts = [each[first.name] for each in named]
        rows = sum(part.shape[0] for part in parts)
        inputs.append(replace(first, shape=(rows, *first.shape[1:]), data=b"".join(part.data or b"" for part in parts)))
    return replace(calls[0], body={"inference": replace(inferences[0], id="", inputs=tuple(inputs))})


def divided(data: bytes, rows: Sequence[int]) -> list[bytes]:
    """A packed answer to `joined` calls -> one for each, `rows` of them in order. Raises `Malformed` where an output
    has not a row for each."""
    answer = unpack(data)
    total = sum(rows)
    for tensor in answer.outputs:
        if not tensor.shape or tensor.shape[0] != total or tensor.data is None:
            raise Malformed(f"the output {tensor.name[:100]!r} has not a row for each of {total}")
    parts = [_parts(tensor, rows) for tensor in answer.outputs]
    return [pack(Answer(answer.head, tuple(each[at] for each in parts))) for at in range(len(rows))]


def _parts(tensor: Tensor, rows: Sequence[int]) -> list[Tensor]:
    data, parts, at = tensor.data or b"", [], 0
    items = list(elements(data)) if tensor.datatype == "BYTES" else None
    total = tensor.shape[0]
    for count in rows:
        if items is None:
            size = len(data) // total
            part = data[at * size : (at + count) * size]
        else:
            size = len(items) // total
            part = packed(items[at * size : (at + count) * size])
        at += count
        parts.append(replace(tensor, shape=(count, *tensor.shape[1:]), data=part))
    return parts
