"""A call for several embeddings, input by input: nothing gets lost, mixed up or counted twice."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call, InputSplit
from gateway.dialects.openai.dialect import OpenAI
from gateway.errors import MalformedResponse

EMBEDDINGS = "/v1/embeddings"
TEXTS = st.lists(st.text(max_size=20) | st.lists(st.integers(0, 9), min_size=1, max_size=5), min_size=1, max_size=8)


def called(given: Any, **fields: Any) -> Call:
    return OpenAI().parse(EMBEDDINGS, orjson.dumps({"model": "m", "input": given, **fields}), {})


def batch_of(call: Call) -> InputSplit:
    assert call.batch is not None
    return call.batch


def answer(vectors: list[list[float]], tokens: int) -> bytes:
    data = [{"object": "embedding", "index": i, "embedding": vector} for i, vector in enumerate(vectors)]
    data.reverse()  # no order is promised but that of `index`
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    return orjson.dumps({"object": "list", "data": data, "model": "m", "usage": usage, "extra": 1})


@given(TEXTS)
def test_each_input_is_the_call_it_would_be_alone(inputs: list[Any]) -> None:
    call = called(inputs, dimensions=4)
    parts = batch_of(call).split(call)
    assert [part.canonical for part in parts] == [called(one, dimensions=4).canonical for one in inputs]
    assert all(part.batch is None or isinstance(part.body["input"], list) for part in parts)
    assert batch_of(call).merge(parts).canonical == call.canonical


@given(TEXTS, st.integers(0, 1000))
def test_an_answer_divided_and_joined_is_what_it_was(inputs: list[Any], tokens: int) -> None:
    call = called(inputs)
    vectors = [[float(i), 0.5] for i in range(len(inputs))]
    pieces = batch_of(call).split_answer(batch_of(call).split(call), answer(vectors, tokens))
    assert [orjson.loads(piece)["data"] for piece in pieces] == [
        [{"object": "embedding", "index": 0, "embedding": vector}] for vector in vectors
    ]
    assert sum(orjson.loads(piece)["usage"]["prompt_tokens"] for piece in pieces) == tokens
    joined = orjson.loads(batch_of(call).join_answers(pieces))
    assert [item["embedding"] for item in joined["data"]] == vectors
    assert [item["index"] for item in joined["data"]] == list(range(len(inputs)))
    assert joined["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
    assert joined["extra"] == 1


@pytest.mark.parametrize("given", ["one text", [1, 2, 3]])
def test_one_input_is_not_taken_apart(given: Any) -> None:
    assert called(given).batch is None


@pytest.mark.parametrize(
    "whole",
    [
        b"{",
        b"[]",
        b"{}",
        answer([[1.0]], 1),
        answer([[1.0], [2.0], [3.0]], 1),
        b'{"data": [{"index": 0}, {"index": null}]}',
        b'{"data": [{"index": 1}, {}]}',
        b'{"data": [{"index": 0}, 7]}',
        b'{"data": {}}',
    ],
)
def test_an_answer_that_does_not_fit_is_malformed(whole: bytes) -> None:
    call = called(["a", "b"])
    with pytest.raises(MalformedResponse):
        batch_of(call).split_answer(batch_of(call).split(call), whole)


def numbered(*indices: Any) -> bytes:
    """Three embeddings whose vectors say their place in the answer; `...` leaves out the index."""
    items = [{"embedding": [float(i)], "index": index} for i, index in enumerate(indices)]
    data = [{key: value for key, value in item.items() if value is not ...} for item in items]
    return orjson.dumps({"object": "list", "data": data, "model": "m"})


@pytest.mark.parametrize(
    ("indices", "places"),
    [
        ((..., ..., ...), [0, 1, 2]),
        ((None, None, None), [0, 1, 2]),
        ((0, 0, 0), [0, 1, 2]),
        ((1, 1, 1), [0, 1, 2]),
        (("", "", ""), [0, 1, 2]),
        ((0, 1, 2), [0, 1, 2]),
        ((2, 0, 1), [1, 2, 0]),
        ((3, 1, 2), [1, 2, 0]),
        ((2.0, 0.0, 1.0), [1, 2, 0]),
        ((0, 2, 5), [0, 1, 2]),
        (("2", "0", "1"), [1, 2, 0]),
        (("2", "10", "1"), [2, 0, 1]),
    ],
)
def test_embeddings_are_in_order_by_index_if_each_has_its_own(indices: tuple[Any, ...], places: list[int]) -> None:
    call = called(["a", "b", "c"])
    pieces = batch_of(call).split_answer(batch_of(call).split(call), numbered(*indices))
    items = [orjson.loads(piece)["data"] for piece in pieces]
    assert items == [[{"embedding": [float(place)], "index": 0}] for place in places]


@pytest.mark.parametrize("indices", [(0, 0, 1), (0, None, 1), (..., 1, 2), (2, 2, 0)])
def test_embeddings_of_which_only_some_have_their_own_index_are_malformed(indices: tuple[Any, ...]) -> None:
    call = called(["a", "b", "c"])
    with pytest.raises(MalformedResponse, match="repeated indices"):
        batch_of(call).split_answer(batch_of(call).split(call), numbered(*indices))


@pytest.mark.parametrize("count", [0, 2, 4])
def test_a_wrong_number_of_embeddings_is_named(count: int) -> None:
    call = called(["a", "b", "c"])
    with pytest.raises(MalformedResponse, match=f"has {count} embeddings: expected 3"):
        batch_of(call).split_answer(batch_of(call).split(call), numbered(*range(count)))


def test_an_input_without_an_embedding_is_named() -> None:
    call = called(["a", "b"])
    with pytest.raises(MalformedResponse, match="has 0 embeddings: expected 1"):
        batch_of(call).join_answers([numbered(0), numbered()])
