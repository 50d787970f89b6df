"""Content that comes as lists of parts, then as texts, as Mistral's servers send thinking: one list, in order."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.dialects.anthropic import answers as anthropic_answers
from gateway.dialects.openai.answers import CHAT, DONE, assemble, inspect, split
from gateway.errors import MalformedResponse
from gateway.messages import Event
from gateway.outcomes import Admission
from tests.dialects.test_openai_answers import chunk, data_of, encoded, part, whole
from tests.dialects.test_translation import through, to_openai


def thought(text: str, **fields: Any) -> dict[str, Any]:
    return {"type": "thinking", "thinking": [said(text)], **fields}


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def stream_of(*contents: Any) -> list[bytes]:
    return [*(chunk(part(content=content)) for content in contents), chunk(part("stop")), DONE]


def content_of(*contents: Any) -> Any:
    return json.loads(assemble(CHAT, stream_of(*contents)))["choices"][0]["message"]["content"]


REFERENCE = {"type": "reference", "reference_ids": [3]}


@pytest.mark.parametrize(
    ("contents", "joined"),
    [
        (["", [thought("so")], [thought(" it is")], "it ", "is"], [thought("so it is"), said("it is")]),
        ([[thought("so")], [said("it ")], "is", [said(" so")]], [thought("so"), said("it is so")]),
        (["it ", [thought("hm")], "is"], [said("it "), thought("hm"), said("is")]),
        (["it ", [REFERENCE], "is"], [said("it "), REFERENCE, said("is")]),
        ([[thought("a")], [thought("b", closed=True)], [thought("c")]], [thought("ab", closed=True), thought("c")]),
        ([[said("a"), said("b")]], [said("a"), said("b")]),
        ([[thought("so"), said("it")], " is"], [thought("so"), said("it is")]),
        ([None, "it", None, " is", ""], "it is"),
        ([[], "it"], "it"),
    ],
)
def test_lists_and_texts_are_joined_in_order(contents: list[Any], joined: Any) -> None:
    assert content_of(*contents) == joined


def test_a_list_of_parts_survives_its_stream() -> None:
    body = whole(content=[thought("so"), said("a"), said("b"), REFERENCE])
    assert json.loads(assemble(CHAT, data_of(split(CHAT, encoded(body))))) == body


def test_content_that_has_no_whole_form_is_not_stored() -> None:
    payload = stream_of("it", {"is": "so"})
    assert inspect(CHAT, payload, True).admission is Admission.MALFORMED


ANSWERS = [
    ["", [thought("so")], [thought(" it is")], "it ", "is"],
    [[thought("so it is"), said("it ")], [said("is")]],
    [[{"type": "thinking", "thinking": "so it is"}], [REFERENCE], [{"type": "refusal", "refusal": "it is"}]],
]


@pytest.mark.parametrize("contents", ANSWERS)
def test_anthropics_client_gets_the_thinking_and_the_text(contents: list[Any]) -> None:
    blocks = [
        {"type": "thinking", "thinking": "so it is", "signature": ""},
        {"type": "text", "text": "it is"},
    ]
    payload = stream_of(*contents)
    streamed = anthropic_answers.assemble(through(to_openai(), map(Event, payload)))
    assert json.loads(streamed)["content"] == blocks
    assert json.loads(to_openai().whole(assemble(CHAT, payload)))["content"] == blocks


def test_a_part_that_anthropic_lacks_is_an_error() -> None:
    picture = {"type": "image_url", "image_url": {"url": "https://a/b.png"}}
    with pytest.raises(MalformedResponse):
        to_openai().whole(encoded(whole(content=[picture])))
