"""One entry serves stream and whole, whichever was stored: arbitrary messages, unknown fields, blocks and deltas, texts
cut anywhere."""

from __future__ import annotations

import json
import random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.anthropic.answers import (
    AnthropicTextAnswer,
    assemble,
    inspect,
    renew,
    split,
    text,
)
from gateway.dialects.prompt_tokens import count_tokens
from gateway.dialects.sse import with_event_name
from gateway.errors import MalformedResponse
from gateway.outcomes import Admission
from tests.dialects.test_openai_answers import JSON, TEXTS, data_of, encoded

OBJECTS = st.dictionaries(TEXTS, JSON, max_size=3)
NAMES = {
    "id",
    "type",
    "role",
    "model",
    "content",
    "stop_reason",
    "stop_sequence",
    "usage",
    "text",
    "citations",
    "error",
}
NAMES |= {"thinking", "signature", "input", "stop_details", "container", "context_management"}
UNKNOWN = st.dictionaries(TEXTS.filter(lambda name: name not in NAMES), JSON, max_size=2)


def joined(known: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda unknown, known: {**unknown, **known}, UNKNOWN, known)


def block(kind: str, fields: dict[str, Any], optional: dict[str, Any] | None = None) -> st.SearchStrategy[Any]:
    return joined(st.fixed_dictionaries({"type": st.just(kind), **fields}, optional=optional))


BLOCKS = st.one_of(
    block("text", {"text": TEXTS}, {"citations": st.none() | st.lists(OBJECTS, max_size=3)}),
    block("thinking", {"thinking": TEXTS}, {"signature": TEXTS}),
    block("redacted_thinking", {"data": TEXTS}),
    block("tool_use", {"id": TEXTS, "name": TEXTS, "input": OBJECTS}),
    block("server_tool_use", {"id": TEXTS, "name": TEXTS, "input": OBJECTS}),
    block("web_search_tool_result", {"tool_use_id": TEXTS, "content": JSON}),
    block("of_the_future", {"content": JSON}),
)
USAGES = joined(
    st.fixed_dictionaries(
        {"input_tokens": st.integers(0, 10**6), "output_tokens": st.integers(0, 10**6)},
        optional={"cache_read_input_tokens": st.none() | st.integers(0, 9), "service_tier": st.just("standard")},
    )
)
MESSAGES = joined(
    st.fixed_dictionaries(
        {
            "id": TEXTS,
            "type": st.just("message"),
            "role": st.just("assistant"),
            "model": TEXTS,
            "content": st.lists(BLOCKS, max_size=4),
            "stop_reason": st.sampled_from(["end_turn", "stop_sequence", "tool_use", "max_tokens", "refusal", None]),
            "stop_sequence": st.none() | TEXTS,
            "usage": USAGES,
        },
        optional={"stop_details": st.none() | OBJECTS, "container": st.none() | OBJECTS, "context_management": JSON},
    )
)


@given(MESSAGES)
def test_a_message_with_unknown_fields_everywhere_survives_its_stream(body: dict[str, Any]) -> None:
    assert json.loads(assemble(data_of(split(encoded(body))))) == body


def cut(said: str, draw: random.Random) -> list[str]:
    """Anywhere, empty pieces included."""
    places = sorted(draw.randint(0, len(said)) for _ in range(draw.randint(0, 3)))
    return [said[i:j] for i, j in zip([0, *places], [*places, len(said)], strict=True)]


def deltas_of(given: dict[str, Any], draw: random.Random) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    start, deltas = dict(given), []
    for field, kind in (("text", "text_delta"), ("thinking", "thinking_delta")):
        if given["type"] == field:
            start[field] = ""
            deltas += [{"type": kind, field: piece, "estimated_tokens": 3} for piece in cut(given[field], draw)]
    if given["type"] == "text" and given.get("citations"):
        start["citations"] = None
        deltas += [{"type": "citations_delta", "citation": citation} for citation in given["citations"]]
    if given["type"] == "thinking" and "signature" in given:
        start.pop("signature")
        deltas.append({"type": "signature_delta", "signature": given["signature"]})
    if given["type"].endswith("tool_use"):
        start["input"] = {}
        pieces = cut(json.dumps(given["input"]), draw)
        deltas += [{"type": "input_json_delta", "partial_json": piece} for piece in pieces]
    return start, deltas


def streamed(body: dict[str, Any], draw: random.Random) -> list[bytes]:
    """One of the streams that `body` could have come as: pings and events of the future anywhere."""
    late = {key: body[key] for key in ("stop_reason", "stop_sequence", "stop_details", "container") if key in body}
    begun = {**body, **dict.fromkeys(late), "content": [], "usage": {**body["usage"], "output_tokens": 1}}
    begun.pop("context_management", None)
    events: list[dict[str, Any]] = [{"type": "message_start", "message": begun}]
    for index, each in enumerate(body["content"]):
        start, deltas = deltas_of(each, draw)
        events.append({"type": "content_block_start", "index": index, "content_block": start})
        events += [{"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas]
        events.append({"type": "content_block_stop", "index": index})
    beside = {key: body[key] for key in ("context_management",) if key in body}
    usage = {key: body["usage"][key] for key in ("input_tokens", "output_tokens")}
    events += [{"type": "message_delta", "delta": late, "usage": usage, **beside}, {"type": "message_stop"}]
    payload = []
    for event in events:
        payload.append(encoded(event))
        if draw.random() < 0.2:
            payload.append(encoded({"type": draw.choice(["ping", "of_the_future"]), "index": 99}))
    return payload


@given(MESSAGES, st.randoms(use_true_random=False))
def test_any_stream_of_a_message_is_put_together_to_it(body: dict[str, Any], draw: random.Random) -> None:
    whole = assemble(streamed(body, draw))
    assert json.loads(whole) == body
    assert json.loads(assemble(data_of(split(whole)))) == body


@given(MESSAGES)
def test_both_forms_of_a_message_are_judged_alike(body: dict[str, Any]) -> None:
    assert inspect(data_of(split(encoded(body))), True) == inspect([encoded(body)], False)


@given(st.recursive(JSON, lambda inner: st.fixed_dictionaries({
    "role": st.just("assistant"), "stop_reason": st.just("end_turn"),
    "content": st.lists(st.fixed_dictionaries({"type": st.sampled_from(["text", "thinking"]), "text": inner})),
}), max_leaves=8))  # fmt: skip
def test_no_oddity_is_stored_that_one_form_cannot_say(body: Any) -> None:
    if inspect([encoded(body)], False).admission is Admission.STORED:
        assemble(data_of(split(encoded(body))))


def message(*content: dict[str, Any], stop: str | None = "end_turn", **fields: Any) -> dict[str, Any]:
    head = {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": list(content)}
    usage = {"input_tokens": 3, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 5, "output_tokens": 7}
    return {**head, "stop_reason": stop, "stop_sequence": None, "usage": usage, **fields}


SAID = {"type": "text", "text": "yes"}
TOOL = {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}}


@pytest.mark.parametrize(
    ("body", "admission"),
    [
        (message(SAID), Admission.STORED),
        (message(SAID, stop="stop_sequence"), Admission.STORED),
        (message({"type": "thinking", "thinking": "hm", "signature": "s"}, SAID), Admission.STORED),
        (message(SAID, TOOL, stop="tool_use"), Admission.TOOLS),
        (message({**TOOL, "type": "server_tool_use"}, SAID), Admission.TOOLS),
        (message({"type": "web_search_tool_result", "content": []}, SAID), Admission.TOOLS),
        (message(SAID, stop="max_tokens"), Admission.INCOMPLETE),
        (message(SAID, stop="pause_turn"), Admission.INCOMPLETE),
        (message(SAID, stop="refusal"), Admission.REFUSED),
        (message(SAID, stop="of_the_future"), Admission.INCOMPLETE),
        (message(SAID, stop=None), Admission.INCOMPLETE),
        (message(), Admission.EMPTY),
        ({"type": "error", "error": {"type": "overloaded_error", "message": "no"}}, Admission.ERROR_STATUS),
        ({"content": [SAID]}, Admission.MALFORMED),
        ([], Admission.MALFORMED),
    ],
)
def test_only_what_is_complete_is_stored(body: Any, admission: Admission) -> None:
    judged = inspect([encoded(body)], False)
    assert judged.admission is admission
    if admission is Admission.STORED:
        assert (judged.input_tokens, judged.output_tokens) == (12, 7)


def test_a_stream_without_its_last_event_is_cut() -> None:
    payload = data_of(split(encoded(message(SAID, TOOL, stop="tool_use"))))
    assert inspect(payload, True).admission is Admission.TOOLS
    assert inspect([*payload, encoded({"type": "ping"}), b"[DONE]"], True).admission is Admission.TOOLS
    for end in range(len(payload)):
        assert inspect(payload[:end], True).admission is Admission.CUT


def test_an_error_in_a_stream_is_not_stored_and_no_answer() -> None:
    error = encoded({"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}})
    payload = [*data_of(split(encoded(message(SAID))))[:3], error]
    assert inspect(payload, True).admission is Admission.ERROR_STATUS
    with pytest.raises(MalformedResponse, match="Overloaded"):
        assemble(payload)


@pytest.mark.parametrize(
    "events",
    [
        [{"type": "message_stop"}],
        [{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "a"}}],
        [{"type": "message_start", "message": message(SAID)}],
        [{"type": "message_start", "message": message()}] * 2,
    ],
)
def test_what_is_no_stream_of_a_message_is_malformed(events: list[Any]) -> None:
    with pytest.raises(MalformedResponse):
        assemble(map(encoded, events))


def test_a_delta_of_an_unknown_kind_continues_its_block() -> None:
    begun = {"type": "compaction", "content": None, "parts": [1]}
    payload = [
        {"type": "message_start", "message": message(stop=None)},
        {"type": "content_block_start", "index": 0, "content_block": begun},
        *(
            {"type": "content_block_delta", "index": 0, "delta": {"type": "new", "content": t, "parts": [2], "n": 1}}
            for t in ("so", " far")
        ),
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 9}},
        {"type": "message_stop", "vendor": {"ms": 5}},
    ]
    body = json.loads(assemble(map(encoded, payload)))
    assert body["content"] == [{"type": "compaction", "content": "so far", "parts": [1, 2, 2], "n": 1}]
    assert (body["stop_reason"], body["usage"]["output_tokens"], body["vendor"]) == ("end_turn", 9, {"ms": 5})


@given(MESSAGES)
def test_every_event_is_named_by_its_type(body: dict[str, Any]) -> None:
    for event in split(encoded(body)):
        assert event.name == json.loads(event.data)["type"] == with_event_name(event.data).name
        assert with_event_name(encoded(dict(reversed(json.loads(event.data).items())))).name == event.name
    assert (
        with_event_name(b"[DONE]").name
        is with_event_name(b'{"a": 1}').name
        is with_event_name(b'{"type": "a\\nb"}').name
        is None
    )


def test_an_answer_is_told_again_under_another_id() -> None:
    whole = encoded(message(SAID))
    assert json.loads(renew(whole, "msg_2")) == {**message(SAID), "id": "msg_2"}
    events = [renew(data, "msg_2") for data in data_of(split(whole))]
    assert json.loads(assemble(events)) == {**message(SAID), "id": "msg_2"}
    assert renew(b"[DONE]", "msg_2") == b"[DONE]"


def test_the_text_of_an_answer_is_what_its_text_blocks_say() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    assert text(encoded(message(thought, SAID, {"type": "text", "text": " and no"}))) == "yes and no"
    assert text(encoded(message(SAID, TOOL))) is None
    assert text(encoded(message(thought))) is None


def test_plain_text_becomes_a_message() -> None:
    answer = AnthropicTextAnswer("1", "m")
    events = [*answer.start(), answer.delta("one "), answer.delta("two"), *answer.finish("length", 5, 2)]
    body = orjson.loads(assemble(data_of(tuple(events))))
    assert body["content"] == [{"type": "text", "text": "one two"}]
    assert (body["id"], body["stop_reason"], count_tokens(body["usage"])) == ("msg_1", "max_tokens", (5, 2))


def uses_at(*indices: int, stops: bool = True) -> list[dict[str, Any]]:
    """A stream of tool calls whose blocks have these indices."""
    events: list[dict[str, Any]] = [{"type": "message_start", "message": message()}]
    for number, index in enumerate(indices):
        block = {"type": "tool_use", "id": f"t{number}", "name": "f", "input": {}}
        delta = {"type": "input_json_delta", "partial_json": f'{{"n":{number}}}'}
        events.append({"type": "content_block_start", "index": index, "content_block": block})
        events.append({"type": "content_block_delta", "index": index, "delta": delta})
        events += [{"type": "content_block_stop", "index": index}] if stops else []
    ended = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}, "usage": {"output_tokens": 3}}
    return [*events, ended, {"type": "message_stop"}]


def test_blocks_of_one_index_are_as_many_as_have_begun() -> None:
    content = json.loads(assemble(map(encoded, uses_at(0, 0, 0))))["content"]
    assert [(use["id"], use["input"]) for use in content] == [(f"t{n}", {"n": n}) for n in range(3)]


@pytest.mark.parametrize("events", [uses_at(0, 0, stops=False), uses_at(0, 1, 0)])
def test_blocks_of_one_index_that_cannot_be_told_apart_are_malformed(events: list[dict[str, Any]]) -> None:
    with pytest.raises(MalformedResponse):
        assemble(map(encoded, events))
