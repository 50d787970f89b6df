"""What decides the answer of a call that is cached by exact match, and what its answer must have, as pure functions."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.calls import Call
from gateway.features.exact_calls.moderation import Moderation
from gateway.features.exact_calls.rerank import Rerank
from gateway.outcomes import Admission
from gateway.prices import Unit

RERANK, MODERATION = Rerank(), Moderation()


def reranked(**fields: Any) -> Call:
    body = {"model": "r", "query": "q", "documents": ["a", "b"], **fields}
    return RERANK.parse("/v1/rerank", json.dumps(body).encode(), {})


@pytest.mark.parametrize(
    ("one", "other"),
    [({"top_n": None}, {}), ({"top_n": 2.0}, {"top_n": 2}), ({"user": "me"}, {}), ({"raw_scores": False}, {})],
)
def test_what_decides_nothing_is_no_part_of_the_key(one: Any, other: Any) -> None:
    assert reranked(**one).canonical == reranked(**other).canonical


def test_the_text_of_a_call_is_that_of_its_query_and_its_documents() -> None:
    call = reranked(query={"content": [{"type": "text", "text": "q"}]}, documents=["a", {"text": "b", "id": 7}])
    assert call.prompt == "q\na\nb"
    judged = MODERATION.parse("/v1/moderations", b'{"input": ["a", {"type": "text", "text": "b"}, 7]}', {})
    assert judged.prompt == "a\nb"


@pytest.mark.parametrize(
    ("answer", "billed"),
    [
        ({"results": []}, 3.0),
        ({"results": [], "meta": {"billed_units": {"search_units": 2}}}, 2.0),
        ({"results": [], "meta": {"billed_units": {"search_units": "two"}}}, 3.0),
    ],
)
def test_an_answer_bills_the_search_units_that_it_reports_or_those_of_its_documents(answer: Any, billed: float) -> None:
    inspection = RERANK.inspect(reranked(documents=["d"] * 201), [json.dumps(answer).encode()], False)
    assert (inspection.admission, inspection.billed) == (Admission.STORED, (Unit.SEARCH, billed))


def test_the_tokens_of_a_ranking_count() -> None:
    answer = {"results": [], "usage": {"total_tokens": 9}}
    assert RERANK.inspect(reranked(), [json.dumps(answer).encode()], False).input_tokens == 9
