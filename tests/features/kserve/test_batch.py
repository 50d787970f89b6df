"""Requests of one form become one, and its answer becomes theirs again."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call
from gateway.dialects.open_inference.batch import batch_key, batch_rows, merge_calls, split_answer
from gateway.dialects.open_inference.message import InferenceResponse, pack, unpack
from gateway.dialects.open_inference.tensors import Tensor, pack_strings
from gateway.errors import MalformedResponse
from gateway.features.kserve.dialect import JSON_LENGTH, STREAM, KServe


def call(*inputs: dict[str, Any], headers: dict[str, str] | None = None, **fields: Any) -> Call:
    body = json.dumps({"inputs": list(inputs), **fields}).encode()
    return KServe().parse("/v2/models/m/infer", body, headers or {})


def tensor(*rows: Any, name: str = "x", kind: str = "INT32", **fields: Any) -> dict[str, Any]:
    width = [len(rows[0])] if rows and isinstance(rows[0], list) else []
    return {"name": name, "datatype": kind, "shape": [len(rows), *width], "data": list(rows), **fields}


pairs = st.lists(st.lists(st.integers(-9, 9), min_size=2, max_size=2), min_size=1, max_size=3)


@given(st.lists(st.tuples(pairs, st.data()), min_size=1, max_size=5))
def test_what_a_model_says_of_the_whole_is_divided_as_it_was_joined(given: list[Any]) -> None:
    """The model is the identity: each gets its own tensors back, numbers and texts."""
    members = [
        call(tensor(*rows), tensor(*data.draw(st.lists(st.text(st.characters(codec="utf-8")), min_size=len(rows),
             max_size=len(rows))), name="t", kind="BYTES"), id=str(at))
        for at, (rows, data) in enumerate(given)
    ]  # fmt: skip
    rows = [batch_rows(member) or 0 for member in members]
    assert len({batch_key(member) for member in members}) == 1
    whole = merge_calls(members).body["inference"]
    assert all(each.shape[0] == sum(rows) for each in whole.inputs)
    answered = split_answer(pack(InferenceResponse({"model_name": "m"}, whole.inputs)), rows)
    for member, part in zip(members, answered, strict=True):
        said = unpack(part)
        assert [(t.shape, t.data) for t in said.outputs] == [(t.shape, t.data) for t in member.body["inference"].inputs]
        assert said.head == {"model_name": "m"}


@pytest.mark.parametrize(
    "other",
    [
        call(tensor([1, 2, 3])),
        call(tensor([1, 2], kind="INT64")),
        call(tensor([1, 2], name="y")),
        call(tensor([1, 2]), parameters={"a": 1}),
        call(tensor([1, 2]), outputs=[{"name": "o"}]),
        call(tensor([1, 2]), parameters={"binary_data_output": True}),
        call(tensor([1, 2], parameters={"a": 1})),
    ],
)
def test_what_differs_is_of_another_form(other: Call) -> None:
    assert batch_key(other) != batch_key(call(tensor([1, 2])))


def test_rows_ids_and_the_order_of_inputs_are_no_matter_of_form() -> None:
    first = call(tensor([1, 2]), tensor([3, 4], name="y"), id="1")
    assert batch_key(first) == batch_key(call(tensor([3, 4], [5, 6], name="y"), tensor([1, 2], [3, 4]), id="2"))


@pytest.mark.parametrize(
    "alone",
    [
        call(tensor([1, 2]), tensor([1, 2], [3, 4], name="y")),
        call({"name": "x", "datatype": "INT32", "shape": [], "data": [1]}),
        call({"name": "x", "datatype": "INT32", "shape": [0, 2], "data": []}),
        call(tensor([1, 2]), parameters={"sequence_id": 1}),
        call(tensor([1, 2]), headers={STREAM: "1"}),
        KServe().parse("/v2/models/m/infer", b"\1", {JSON_LENGTH: "0"}),
        KServe().parse("/v2/models/m/generate", b"{}", {}),
    ],
)
def test_what_cannot_be_one_with_others_goes_alone(alone: Call) -> None:
    assert batch_rows(alone) is None


@pytest.mark.parametrize("shape", [(), (1,), (3, 1)])
def test_an_output_without_a_row_for_each_is_malformed(shape: tuple[int, ...]) -> None:
    data = b"\0" * (3 if shape == (3, 1) else 1)
    with pytest.raises(MalformedResponse, match="has the wrong shape: expected 2 rows"):
        split_answer(pack(InferenceResponse({}, (Tensor("o", "UINT8", shape, {}, data),))), [1, 1])


def test_rows_of_texts_are_divided_by_element() -> None:
    output = Tensor("o", "BYTES", (3, 2), {}, pack_strings([b"a", b"bb", b"", b"c", b"d", b"e"]))
    first, second = split_answer(pack(InferenceResponse({}, (output,))), [1, 2])
    assert unpack(first).outputs[0].data == pack_strings([b"a", b"bb"])
    assert unpack(second).outputs[0].data == pack_strings([b"", b"c", b"d", b"e"])
