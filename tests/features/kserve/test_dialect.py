"""Requests and answers of KServe's version 2: one content, one key, whatever form; no form loses anything."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from multidict import CIMultiDict

from gateway.calls import Call
from gateway.dialects.open_inference.message import (
    InferenceResponse,
    format_answer,
    pack,
    read_answer,
    read_inference,
    unpack,
)
from gateway.dialects.open_inference.paths import model_of_path, with_model_name
from gateway.dialects.open_inference.tensors import (
    NUMBERS,
    Tensor,
    elements,
    from_json,
    pack_strings,
    to_json,
    validate_content,
)
from gateway.errors import BadRequest, MalformedResponse
from gateway.features.kserve.dialect import JSON_LENGTH, KServe
from gateway.outcomes import Admission, Bypass

KSERVE = KServe()
PATH = "/v2/models/m/infer"
KINDS = [kind for kind in NUMBERS if kind != "BF16"]
SHAPES = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)


@st.composite
def numbers(draw: st.DrawFn) -> tuple[str, tuple[int, ...], bytes]:
    kind = draw(st.sampled_from(sorted(NUMBERS)))
    shape = draw(SHAPES)
    if kind == "BF16":
        halves = draw(arrays.arrays(np.uint16, shape)) & np.uint16(0xFF7F)  # no NaN: of those JSON keeps one
        return kind, shape, halves.astype("<u2").tobytes()
    dtype = NUMBERS[kind]
    plain = draw(arrays.arrays(dtype, shape, elements=arrays.from_dtype(dtype, allow_nan=False)))
    return kind, shape, plain.tobytes()


texts = st.tuples(st.just("BYTES"), st.lists(st.text(st.characters(codec="utf-8")), max_size=5)).map(
    lambda pair: (pair[0], (len(pair[1]),), pack_strings([text.encode() for text in pair[1]]))
)
tensors = st.one_of(numbers(), texts)


def request(
    *inputs: tuple[str, str, tuple[int, ...], bytes], binary: bool, **fields: Any
) -> tuple[bytes, dict[str, str]]:
    """The same tensors as JSON or with a tail -> (body, headers)."""
    listed, tail = [], b""
    for name, kind, shape, data in inputs:
        value: dict[str, Any] = {"name": name, "datatype": kind, "shape": list(shape)}
        if binary:
            value["parameters"] = {"binary_data_size": len(data)}
            tail += data
        else:
            value["data"] = to_json(data, kind)
        listed.append(value)
    head = json.dumps({"inputs": listed, **fields}).encode()
    return head + tail, {JSON_LENGTH: str(len(head))} if binary else {}


def call(*inputs: tuple[str, str, tuple[int, ...], bytes], binary: bool = True, **fields: Any) -> Call:
    return KSERVE.parse(PATH, *request(*inputs, binary=binary, **fields))


@given(tensors)
def test_json_says_every_tensor_and_is_read_as_the_same(tensor: tuple[str, tuple[int, ...], bytes]) -> None:
    kind, shape, data = tensor
    assert validate_content(data, kind, shape) == data
    assert from_json(json.loads(json.dumps(to_json(data, kind))), kind, shape) == data


@given(st.lists(st.binary(max_size=9)))
def test_bytes_keep_every_element(items: list[bytes]) -> None:
    assert list(elements(pack_strings(items))) == items


@given(st.lists(tensors, min_size=1, max_size=3), st.randoms(use_true_random=False))
def test_one_content_has_one_key_in_either_form_and_any_order(given: list[Any], random: Any) -> None:
    inputs = [(f"t{i}", *tensor) for i, tensor in enumerate(given)]
    mixed = inputs[:]
    random.shuffle(mixed)
    assert call(*inputs).canonical == call(*mixed, binary=False, id="7").canonical


@given(st.lists(tensors, min_size=1, max_size=3))
def test_what_goes_upstream_is_what_was_read(given: list[Any]) -> None:
    inputs = [(f"t{i}", *tensor) for i, tensor in enumerate(given)]
    for binary in (True, False):
        first = call(*inputs, binary=binary, id="i", parameters={"a": 1}, outputs=[{"name": "o"}])
        sent = KSERVE.outgoing(PATH, first, model=None, kept=True)
        again = KSERVE.parse(PATH, sent.body, dict(sent.headers))
        assert again.body == first.body


@given(st.lists(tensors, min_size=1, max_size=3), st.booleans(), st.text(st.characters(codec="ascii"), max_size=5))
def test_an_answer_keeps_its_tensors_in_every_form(given: list[Any], binary: bool, identity: str) -> None:
    outputs = tuple(Tensor(f"t{i}", kind, shape, {}, data) for i, (kind, shape, data) in enumerate(given))
    kept = pack(InferenceResponse({"model_name": "m", "model_version": "1"}, outputs))
    assert unpack(kept).outputs == outputs
    asked = read_inference(
        *(lambda body, headers: (body, int(headers[JSON_LENGTH])))(
            *request(("x", "BOOL", (), b"\1"), binary=True, id=identity, parameters={"binary_data_output": binary})
        )
    )
    body, length = format_answer(asked, kept)
    assert (length is not None) == binary
    assert [t.data for t in read_answer(body, length).outputs] == [t.data for t in outputs]
    head = json.loads(body[:length])
    assert head.get("id", "") == identity
    assert head["model_name"] == "m"


@given(st.binary(max_size=200), st.one_of(st.none(), st.integers(0, 210)))
def test_any_bytes_are_read_or_refused(body: bytes, length: int | None) -> None:
    headers = {} if length is None else {JSON_LENGTH: str(length)}
    try:
        KSERVE.parse(PATH, body, headers)
    except BadRequest as error:
        assert "\n" not in error.message


@pytest.mark.parametrize("number", [0.0, -0.0, 1.0, 1.00390625, 3.4e38, -3.3e38, 1e-40, float("inf"), float("nan")])
def test_bfloat16_is_rounded_as_its_reference_does(number: float) -> None:
    expected = np.array([number], ml_dtypes.bfloat16)
    assert from_json([number], "BF16", (1,)) == expected.tobytes()


def test_numbers_that_json_has_no_word_for_are_read_and_written() -> None:
    body = b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [3], "data": [NaN, Infinity, -Infinity]}]}'
    parsed = KSERVE.parse(PATH, body, {})
    sent = KSERVE.outgoing(PATH, parsed, model=None, kept=True)
    assert b"[NaN,Infinity,-Infinity]" in sent.body


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        *(("INT8", [128]), ("INT8", [1.0]), ("UINT8", [-1]), ("INT64", [2**63]), ("UINT64", [2**64])),
        *(("BOOL", [1]), ("FP32", [True]), ("FP32", ["1"]), ("BYTES", [1]), ("INT32", [None]), ("INT32", [[1], 2])),
        *(("INT32", "1"), ("INT32", {"a": 1}), ("WORDS", [1]), ("BYTES", [["a"], "b"])),
    ],
)
def test_data_of_another_kind_are_refused(kind: str, data: Any) -> None:
    with pytest.raises(BadRequest, match=r"^input 'x' "):
        body = {"inputs": [{"name": "x", "datatype": kind, "shape": [1], "data": data}]}
        KSERVE.parse(PATH, json.dumps(body).encode(), {})


@pytest.mark.parametrize(
    ("length", "tail", "sentence"),
    [
        (9, b"1234", "has 'binary_data_size' 9: expected 0 to 4"),
        (4, b"12345678", "the binary tail has 8 bytes: expected 4"),
        (2, b"12", "has 2 bytes, expected 4 of FP32 in shape"),
        (-1, b"12", "has 'binary_data_size' -1"),
    ],
)
def test_a_tail_of_another_length_is_refused(length: int, tail: bytes, sentence: str) -> None:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1], "parameters": {"binary_data_size": length}}
    head = json.dumps({"inputs": [tensor]}).encode()
    with pytest.raises(BadRequest, match=sentence):
        KSERVE.parse(PATH, head + tail, {JSON_LENGTH: str(len(head))})


@pytest.mark.parametrize("second", ["9", "", "x"])
def test_two_lengths_of_the_json_are_refused(second: str) -> None:
    """A proxy may read the other one, and so other tensors."""
    body = json.dumps({"inputs": [{"name": "x", "datatype": "INT32", "shape": [1], "data": [1]}]}).encode()
    length = str(len(body))
    KSERVE.parse(PATH, body, CIMultiDict([(JSON_LENGTH, length), (JSON_LENGTH.lower(), length)]))
    with pytest.raises(BadRequest, match="comes with two values: expected one"):
        KSERVE.parse(PATH, body, CIMultiDict([(JSON_LENGTH, length), (JSON_LENGTH.lower(), second)]))


@pytest.mark.parametrize(
    "fields",
    [
        {"parameters": {"seed": 1}},
        {"outputs": [{"name": "o"}]},
        {"outputs": [{"name": "o", "parameters": {"classification": 3}}]},
    ],
)
def test_what_decides_is_part_of_the_key(fields: dict[str, Any]) -> None:
    plain = ("x", "FP32", (1,), b"\0\0\0\0")
    assert call(plain).canonical != call(plain, **fields).canonical


@pytest.mark.parametrize(
    "fields",
    [
        {"id": "7"},
        {"parameters": {"binary_data_output": True}},
        {"parameters": {"priority": 1, "timeout": 9}},
        {"outputs": []},
    ],
)
def test_framing_and_scheduling_are_not(fields: dict[str, Any]) -> None:
    plain = ("x", "FP32", (1,), b"\0\0\0\0")
    assert call(plain).canonical == call(plain, **fields).canonical


def test_the_question_is_the_one_text_and_all_else_its_scope() -> None:
    number = ("n", "FP32", (1,), b"\0\0\0\0")
    one, other = (call(number, ("q", "BYTES", (1, 1), pack_strings([text]))) for text in (b"why?", b"why so?"))
    assert (one.question, other.question) == ("why?", "why so?")
    assert one.context == other.context
    assert one.canonical != other.canonical
    assert (
        call(("n", "FP32", (1,), b"\0\0\0\1"), ("q", "BYTES", (1, 1), pack_strings([b"why?"]))).context != one.context
    )


@pytest.mark.parametrize(
    "inputs",
    [
        [("q", "BYTES", (2,), pack_strings([b"a", b"b"]))],
        [("q", "BYTES", (1,), pack_strings([b"a"])), ("r", "BYTES", (1,), pack_strings([b"b"]))],
        [("q", "BYTES", (1,), pack_strings([b"\xff\xd8\xff"]))],
        [("q", "BYTES", (1,), pack_strings([b"a\0b"]))],
        [("q", "BYTES", (1,), pack_strings([b"  "]))],
        [("q", "FP32", (1,), b"\0\0\0\0")],
    ],
)
def test_what_is_not_one_text_is_matched_exactly_only(inputs: list[Any]) -> None:
    parsed = call(*inputs)
    assert (parsed.question, parsed.no_question) == (None, Bypass.NO_TEXT)


def test_of_several_texts_the_one_of_the_known_name_is_the_question() -> None:
    parsed = call(("stop", "BYTES", (1,), pack_strings([b"."])), ("text_input", "BYTES", (1,), pack_strings([b"why?"])))
    assert parsed.question == "why?"


def test_max_tokens_is_read_of_its_tensor() -> None:
    assert call(("max_tokens", "INT32", (1,), b"\x10\0\0\0")).max_tokens == 16


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"parameters": {"sequence_id": 3, "sequence_start": True}}, Bypass.SEQUENCE),
        ({"parameters": {"sequence_id": "a"}}, Bypass.SEQUENCE),
        ({"parameters": {"sequence_id": 0}}, None),
        ({"outputs": [{"name": "o", "parameters": {"shared_memory_region": "r"}}]}, Bypass.SHARED_MEMORY),
    ],
)
def test_what_depends_on_more_than_the_request_is_not_kept(fields: dict[str, Any], reason: Bypass | None) -> None:
    assert call(("q", "BYTES", (1,), pack_strings([b"why?"])), **fields).uncached is reason


def test_a_body_of_bytes_alone_goes_on_as_it_is() -> None:
    parsed = KSERVE.parse(PATH, b"\1\2", {JSON_LENGTH: "0"})
    assert parsed.uncached is Bypass.RAW
    sent = KSERVE.outgoing(PATH, parsed, model=None, kept=False)
    assert (sent.body, dict(sent.headers)[JSON_LENGTH]) == (b"\1\2", "0")


def test_outputs_come_in_the_order_in_which_they_were_asked_for() -> None:
    outputs = tuple(Tensor(name, "UINT8", (1,), {}, b"\1") for name in ("a", "b"))
    asked = read_inference(
        b'{"inputs": [{"name": "x", "datatype": "BOOL", "shape": [], "data": [true]}],'
        b'"outputs": [{"name": "b", "parameters": {"binary_data": true}}, {"name": "a"}]}',
        None,
    )
    body, length = format_answer(asked, pack(InferenceResponse({}, outputs)))
    assert [(o["name"], "data" in o) for o in json.loads(body[:length])["outputs"]] == [("b", False), ("a", True)]


def test_what_a_server_adds_to_an_answer_is_kept() -> None:
    said = {"name": "o", "datatype": "BYTES", "shape": [1], "data": [{"label": 1}], "parameters": {"content_type": "x"}}
    answer = read_answer(json.dumps({"model_name": "m", "more": 1, "id": "i", "outputs": [said]}).encode(), None)
    asked = read_inference(b'{"inputs": [{"name": "x", "datatype": "BOOL", "shape": [], "data": [true]}]}', None)
    body, _ = format_answer(asked, pack(answer))
    assert json.loads(body) == {"model_name": "m", "more": 1, "outputs": [said]}


@pytest.mark.parametrize("body", [b"", b"{}", b'{"outputs": [{}]}', b'{"outputs": 1}', b'{"error": "no"}'])
def test_an_answer_that_is_none_is_malformed(body: bytes) -> None:
    with pytest.raises(MalformedResponse):
        read_answer(body, None)


@pytest.mark.parametrize(
    ("payload", "admission"),
    [
        ([b'{"text_output": "x"}'], Admission.STORED),
        ([b'{"error": "no"}'], Admission.ERROR_STATUS),
        ([b'{"text_output": "x"}', b'{"error": "no"}'], Admission.ERROR_STATUS),
        ([b"[]"], Admission.MALFORMED),
        ([], Admission.INCOMPLETE),
    ],
)
def test_generated_errors_are_not_answers(payload: list[bytes], admission: Admission) -> None:
    parsed = KSERVE.parse("/v2/models/m/generate_stream", b'{"text_input": "hi"}', {})
    assert KSERVE.inspect(parsed, payload, True).admission is admission


def test_a_generated_answer_has_the_id_of_its_request() -> None:
    parsed = KSERVE.parse("/v2/models/m/generate", b'{"id": "2", "text_input": "hi"}', {})
    kept = KSERVE.stored_form(parsed, b'{"id": "1", "text_output": "x"}', {})
    assert json.loads(kept) == {"text_output": "x"}
    formed = KSERVE.client_form(parsed, kept)
    assert formed is not None
    assert json.loads(formed.data) == {"id": "2", "text_output": "x"}
    assert parsed.canonical == KSERVE.parse("/v2/models/m/generate", b'{"text_input": "hi"}', {}).canonical


@pytest.mark.parametrize(
    ("path", "name", "expected"),
    [
        ("/v2/models/a", "b", "/v2/models/b"),
        ("/v2/models/a/versions/2/ready", "b", "/v2/models/b/versions/2/ready"),
        ("/v2/models/stats", "b", "/v2/models/stats"),
        ("/v2/models/a/config", None, "/v2/models/a/config"),
        ("/v2/health/ready", "b", "/v2/health/ready"),
    ],
)
def test_paths_about_a_model_are_renamed(path: str, name: str | None, expected: str) -> None:
    assert with_model_name(path, name) == expected
    assert (model_of_path(path) is None) == ("models/a" not in path)
