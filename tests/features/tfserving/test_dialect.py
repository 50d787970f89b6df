"""TensorFlow Serving's calls: what decides them, what is sent on, what is kept. Examples follow its API reference."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call
from gateway.dialects.json_body import dump_json, parse_numbers
from gateway.errors import BadRequest
from gateway.features.tfserving.dialect import TFServing
from gateway.outcomes import Admission

DIALECT = TFServing()
PREDICT = "/v1/models/half_plus_three:predict"


def called(body: bytes, path: str = PREDICT) -> Call:
    return DIALECT.parse(path, body, {})


@pytest.mark.parametrize(
    ("method", "path", "claimed"),
    [
        ("POST", PREDICT, True),
        ("POST", "/v1/models/m/versions/12:predict", True),
        ("POST", "/v1/models/m/labels/stable:classify", True),
        ("POST", "/v1/models/m:regress", True),
        ("GET", PREDICT, False),
        ("GET", "/v1/models/m/metadata", False),
        ("POST", "/v1/models/m:explain", False),
        ("POST", "/v1/models/m", False),
        ("POST", "/v1/models/a/b:predict", False),
    ],
)
def test_inference_is_its_and_nothing_else(method: str, path: str, claimed: bool) -> None:
    assert DIALECT.claims(method, path) is claimed


def test_the_order_of_keys_and_white_space_decide_nothing() -> None:
    one = called(b'{"signature_name": "s", "instances": [1.0, 2.0]}')
    other = called(b'{"instances":[1.0,2.0],"signature_name":"s"}')
    assert one.canonical == other.canonical


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (PREDICT, b'{"inputs": [1.0, 2.0]}'),  # the column form is answered in another shape
        (PREDICT, b'{"instances": [1.0, 2.5]}'),
        (PREDICT, b'{"instances": [1.0, NaN]}'),
        (PREDICT, b'{"instances": [1.0, null]}'),
        (PREDICT, b'{"instances": [1.0, 2.0], "signature_name": "other"}'),
        ("/v1/models/half_plus_three/versions/2:predict", b'{"instances": [1.0, 2.0]}'),
        ("/v1/models/half_plus_two:predict", b'{"instances": [1.0, 2.0]}'),
    ],
)
def test_everything_else_does(path: str, body: bytes) -> None:
    assert called(body, path).canonical != called(b'{"instances": [1.0, 2.0]}').canonical


def test_what_was_parsed_is_sent_under_the_backends_own_name_for_the_model() -> None:
    path = "/v1/models/m/versions/3:predict"
    call = called(b'{"instances": [NaN, Infinity, -Infinity, 1]}', path)
    sent = DIALECT.outgoing(path, call, model="big", kept=True)
    assert sent.path == "/v1/models/big/versions/3:predict"
    assert sent.body == b'{"instances":[NaN,Infinity,-Infinity,1]}'
    assert DIALECT.outgoing(path, call, model=None, kept=True).path == path


@pytest.mark.parametrize(
    "body",
    [
        b"", b"[]", b"{", b"{}", b'{"instances": 1}', b'{"instances": [1], "inputs": [1]}', b'{"examples": []}',
        b'{"instances": [1], "instances": [2]}', b'{"instances": [NaN], "instances": [2]}', b"\xff",
        b'{"instances": [NaN}', b'"NaN"', b"NaN", b'{"instances": [NaN, \xff]}',
        rb'{"instances": [NaN], "signature_name": "\ud800"}', b'{"instances": [NaN, 99999999999999999999]}',
        b'{"instances": [NaN, ' + b"[" * 300 + b"]" * 300 + b"]}",
    ],
)  # fmt: skip
def test_a_body_that_is_no_call_is_refused_with_a_sentence(body: bytes) -> None:
    with pytest.raises(BadRequest):
        called(body)


def test_strings_of_a_tensor_are_what_complexity_is_judged_on() -> None:
    call = called(b'{"instances": [{"text": "hello there", "id": 1}, {"text": "general"}]}')
    assert call.prompt == "hello there general"
    assert call.question is None


@pytest.mark.parametrize(
    ("verb", "answer", "admission"),
    [
        ("predict", b'{"predictions": [2.5]}', Admission.STORED),
        ("predict", b'{"predictions": [NaN, Infinity]}', Admission.STORED),
        ("predict", b'{"outputs": {"a": [1]}}', Admission.STORED),
        ("classify", b'{"result": [["cat", 0.9]]}', Admission.STORED),
        ("regress", b'{"results": [1.5]}', Admission.STORED),
        ("predict", b'{"error": "no such input"}', Admission.ERROR_STATUS),
        ("predict", b'{"predictions": [2.5]', Admission.MALFORMED),
        ("predict", b"{}", Admission.MALFORMED),
        ("predict", b"", Admission.MALFORMED),
    ],
)
def test_only_answers_are_kept(verb: str, answer: bytes, admission: Admission) -> None:
    key = "instances" if verb == "predict" else "examples"
    call = called(b'{"%s": [{}]}' % key.encode(), f"/v1/models/m:{verb}")
    assert DIALECT.inspect(call, (answer,), False).admission is admission


NUMBERS = st.recursive(
    st.floats() | st.integers(-(2**53), 2**53) | st.none() | st.booleans() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and isinstance(b, float) and math.isnan(a):
        return math.isnan(b)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(value, b[key]) for key, value in a.items())
    return bool(a == b)


@given(NUMBERS)
def test_numbers_of_every_kind_come_through(value: Any) -> None:
    body = json.dumps({"instances": [value]}).encode()
    read = parse_numbers(body)
    assert same(read, {"instances": [value]})
    assert same(json.loads(dump_json(read)), {"instances": [value]})
