"""Servers number the deltas of tool calls in their own ways. What is put together are the calls that the server made,
or nothing."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest

from gateway.dialects.openai.answers import CHAT, DONE, assemble, inspect
from gateway.errors import MalformedResponse
from gateway.messages import Event
from gateway.outcomes import Admission
from tests.dialects.test_openai_answers import chunk, part
from tests.dialects.test_translation import through, to_openai

OSLO, CET = '{"city":"Oslo"}', '{"tz":"CET"}'
BOTH = [("a", "get_weather", OSLO), ("b", "get_time", CET)]
SAME = [("a", "get_weather", OSLO), ("b", "get_weather", '{"city":"Rome"}')]


def delta(
    call_id: Any = None, name: Any = None, arguments: Any = None, *, key: str = "function", **fields: Any
) -> dict[str, Any]:
    """A delta with the fields that are given."""
    said = {"name": name, "arguments": arguments}
    function = {field: value for field, value in said.items() if value is not None}
    known = {"id": call_id} if call_id is not None else {}
    return {**fields, **known, **({key: function} if function else {})}


def stream_of(*deltas: dict[str, Any] | list[dict[str, Any]], finish: str = "tool_calls") -> list[bytes]:
    lists = [each if isinstance(each, list) else [each] for each in deltas]
    return [*(chunk(part(tool_calls=calls)) for calls in lists), chunk(part(finish)), DONE]


def calls_of(payload: list[bytes]) -> list[tuple[Any, ...]]:
    (choice,) = json.loads(assemble(CHAT, payload))["choices"]
    calls = choice["message"]["tool_calls"]
    assert all("index" not in call for call in calls)
    return [(call.get("id"), call["function"]["name"], call["function"]["arguments"]) for call in calls]


def uses_of(payload: list[bytes]) -> list[tuple[Any, ...]]:
    """The calls as Anthropic's client reads them."""
    blocks: dict[int, list[Any]] = {}
    for data in through(to_openai(), map(Event, payload)):
        event = json.loads(data)
        if event["type"] == "content_block_start":
            blocks[event["index"]] = [event["content_block"]["id"], event["content_block"]["name"], ""]
        elif event["type"] == "content_block_delta":
            blocks[event["index"]][2] += event["delta"]["partial_json"]
    return [tuple(block) for block in blocks.values()]


TOLD_APART: dict[str, tuple[list[Any], list[Any]]] = {
    "one-index": ([delta("a", "get_weather", OSLO, index=0), delta("b", "get_time", CET, index=0)], BOTH),
    "one-index-in-one-list": ([[delta("a", "get_weather", OSLO, index=0), delta("b", "get_time", CET, index=0)]], BOTH),
    "no-index": ([delta("a", "get_weather", OSLO), delta("b", "get_time", CET)], BOTH),
    "null-index": ([delta("a", "get_weather", OSLO, index=None), delta("b", "get_time", CET, index=None)], BOTH),
    "no-index-in-one-list": ([[delta("a", "get_weather", OSLO), delta("b", "get_time", CET)]], BOTH),
    "one-index-one-name": (
        [delta("a", "get_weather", OSLO, index=0), delta("b", "get_weather", '{"city":"Rome"}', index=0)],
        SAME,
    ),
    "one-index-in-pieces": (
        [
            delta("a", "get_weather", "", index=0), delta(None, None, '{"city":', index=0),
            delta(None, None, '"Oslo"}', index=0),
            delta("b", "get_time", "", index=0), delta(None, None, '{"tz":', index=0),
            delta(None, None, '"CET"}', index=0),
        ],
        BOTH,
    ),
    "no-index-in-pieces": (
        [
            delta("a", "get_weather", ""), delta(None, None, '{"city":'), delta(None, None, '"Oslo"}'),
            delta("b", "get_time", ""), delta(None, None, CET),
        ],
        BOTH,
    ),
    "one-index-interleaved-by-id": (
        [
            delta("a", "get_weather", '{"ci', index=0), delta("b", "get_time", '{"t', index=0),
            delta("a", None, 'ty":"Oslo"}', index=0), delta("b", None, 'z":"CET"}', index=0),
        ],
        BOTH,
    ),
    "no-index-interleaved-by-id": (
        [delta("a", "get_weather", '{"ci'), delta("b", "get_time", '{"t'), delta("a", None, 'ty":"Oslo"}'),
         delta("b", None, 'z":"CET"}')],
        BOTH,
    ),
    "everything-repeated": (
        [
            delta("a", "get_weather", '{"city":', index=0, type="function"),
            delta("a", "get_weather", '"Oslo"}', index=0, type="function"),
            delta("b", "get_time", CET, index=1, type="function"),
        ],
        BOTH,
    ),
    "empty-ids-and-names-after-the-first": (
        [
            delta("a", "get_weather", "", index=0), delta("", "", OSLO, index=0),
            delta("b", "get_time", "", index=1), delta("", "", CET, index=1),
        ],
        BOTH,
    ),
    "another-id-with-each-piece": (
        [
            delta("a", "get_weather", "", index=0), delta("x", "", '{"city":', index=0),
            delta("y", None, '"Oslo"}', index=0), delta("b", "get_time", CET, index=1),
        ],
        BOTH,
    ),
    "another-id-with-each-piece-and-the-name": (
        [delta("a", "get_weather", '{"city":', index=0), delta("x", "get_weather", '"Oslo"}', index=0)], BOTH[:1]
    ),
    "the-id-comes-later": (
        [delta(None, "get_weather", '{"city":', index=0), delta("a", None, '"Oslo"}', index=0)], BOTH[:1]
    ),
    "from-one": ([delta("a", "get_weather", OSLO, index=1), delta("b", "get_time", CET, index=2)], BOTH),
    "with-gaps": (
        [delta("a", "get_weather", OSLO, index=3), delta("b", "get_time", "", index=7),
         delta(None, None, CET, index=7)],
        BOTH,
    ),
    "as-texts": (
        [delta("a", "get_weather", '{"city":', index="0"), delta(None, None, '"Oslo"}', index="0"),
         delta("b", "get_time", CET, index="1")],
        BOTH,
    ),
    "as-fractions": (
        [delta("a", "get_weather", '{"city":', index=0.0), delta(None, None, '"Oslo"}', index=0),
         delta("b", "get_time", CET, index=1.0)],
        BOTH,
    ),
    "counted-deltas": (
        [delta("a", "get_weather", '{"city":', index=0), delta(None, None, '"Oslo"}', index=1)], BOTH[:1]
    ),
    "one-id-for-two-indexes": (
        [delta("a", "get_weather", OSLO, index=0), delta("a", "get_time", CET, index=1)],
        [BOTH[0], ("a", *BOTH[1][1:])],
    ),
    "arguments-as-a-value": (
        [delta("a", "get_weather", {"city": "Oslo"}, index=0), delta("b", "get_time", {"tz": "CET"}, index=0)],
        [("a", "get_weather", {"city": "Oslo"}), ("b", "get_time", {"tz": "CET"})],
    ),
}  # fmt: skip


@pytest.mark.parametrize("shape", TOLD_APART)
def test_calls_are_told_apart_however_they_are_numbered(shape: str) -> None:
    deltas, calls = TOLD_APART[shape]
    assert calls_of(stream_of(*deltas)) == calls


@pytest.mark.parametrize("shape", TOLD_APART)
def test_anthropics_client_gets_the_same_calls(shape: str) -> None:
    deltas, calls = TOLD_APART[shape]
    texts = [(*call[:2], call[2] if isinstance(call[2], str) else orjson.dumps(call[2]).decode()) for call in calls]
    assert [use[1:] for use in uses_of(stream_of(*deltas))] == [text[1:] for text in texts]
    if len({text[0] for text in texts}) == len(texts):  # ids that repeat are changed for Anthropic's clients
        assert [use[0] for use in uses_of(stream_of(*deltas))] == [text[0] for text in texts]


UNCLEAR: dict[str, list[Any]] = {
    "no-ids-one-index": [delta(None, "get_weather", OSLO, index=0), delta(None, "get_time", CET, index=0)],
    "empty-ids-one-index": [delta("", "get_weather", OSLO, index=0), delta("", "get_time", CET, index=0)],
    "no-ids-no-index": [delta(None, "get_weather", OSLO), delta(None, "get_time", CET)],
    "no-ids-one-index-one-name": [delta(None, "get_weather", OSLO, index=0)] * 2,
    "one-id-one-index": [delta("a", "get_weather", OSLO, index=0), delta("a", "get_time", CET, index=0)],
    "arguments-of-two": [delta("a", "get_weather", OSLO, index=0), delta(None, None, CET, index=0)],
    "a-name-in-pieces": [delta("a", "get_", "", index=0), delta(None, "weather", OSLO, index=0)],
    "another-id-with-each-piece-of-two": [
        delta("a", "get_weather", "", index=0), delta("x", "get_weather", '{"city":', index=0),
        delta("y", "get_weather", '"Oslo"}', index=0),
    ],
    "a-call-without-a-name": [delta("a", "get_weather", OSLO, index=0), delta("b", None, CET, index=1)],
}  # fmt: skip


@pytest.mark.parametrize("shape", UNCLEAR)
def test_calls_that_cannot_be_told_apart_are_neither_stored_nor_put_together(shape: str) -> None:
    payload = stream_of(*UNCLEAR[shape])
    assert inspect(CHAT, payload, True).admission is Admission.MALFORMED
    with pytest.raises(MalformedResponse):
        assemble(CHAT, payload)


def test_two_complete_calls_stay_two_for_anthropics_client() -> None:
    assert [use[1:] for use in uses_of(stream_of(*UNCLEAR["empty-ids-one-index"]))] == [call[1:] for call in BOTH]


def test_a_call_of_two_names_is_an_error_for_anthropics_client() -> None:
    with pytest.raises(MalformedResponse, match="two names"):
        uses_of(stream_of(*UNCLEAR["a-name-in-pieces"]))


def test_each_choice_has_its_own_calls() -> None:
    first, second = [delta("a", "get_weather", OSLO, index=0)], [delta("b", "get_time", CET, index=0)]
    payload = [
        chunk(part(tool_calls=first), part(index=1, tool_calls=second)),
        chunk(part("tool_calls"), part("tool_calls", index=1)),
        DONE,
    ]
    choices = json.loads(assemble(CHAT, payload))["choices"]
    assert [choice["message"]["tool_calls"] for choice in choices] == [
        [delta("a", "get_weather", OSLO)],
        [delta("b", "get_time", CET)],
    ]


def test_the_name_of_the_older_function_call_may_be_repeated() -> None:
    pieces = [{"name": "get_weather", "arguments": '{"city":'}, {"name": "get_weather", "arguments": '"Oslo"}'}]
    payload = [*(chunk(part(function_call=piece)) for piece in pieces), chunk(part("function_call")), DONE]
    message = json.loads(assemble(CHAT, payload))["choices"][0]["message"]
    assert message["function_call"] == {"name": "get_weather", "arguments": OSLO}
    assert [use[1:] for use in uses_of(payload)] == [("get_weather", OSLO)]


def test_custom_tools_repeat_their_names_and_keep_their_input() -> None:
    pieces = [("c", "SELECT "), ("c", "1")]
    calls = [{"index": 0, "id": "c", "type": "custom", "custom": {"name": "sql", "input": text}} for _, text in pieces]
    (choice,) = json.loads(assemble(CHAT, stream_of(*calls)))["choices"]
    assert choice["message"]["tool_calls"] == [
        {"id": "c", "type": "custom", "custom": {"name": "sql", "input": "SELECT 1"}}
    ]
