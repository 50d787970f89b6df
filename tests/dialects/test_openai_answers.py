"""OpenAI answers taken apart and put together again: nothing is lost on the way, whatever a compatible server adds."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import Call
from gateway.dialects.openai.answers import DONE, assemble, inspect, split
from gateway.dialects.openai.dialect import OpenAI
from gateway.errors import MalformedResponse
from gateway.messages import Event
from gateway.outcomes import Admission

CHAT, TEXT = "chat.completions", "completions"
HEAD = {"id": "chatcmpl-1", "created": 1700000000, "model": "m", "system_fingerprint": None, "service_tier": "default"}
USAGE = {"prompt_tokens": 7, "completion_tokens": 5, "total_tokens": 12, "prompt_tokens_details": {"cached_tokens": 3}}

TEXTS = st.text(max_size=60) | st.lists(st.sampled_from(["word", " ", "\n\n", "ß€", "\u00a0", "\U0001f600"])).map(
    "".join
)
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | TEXTS
JSON = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3))
OBJECTS = st.dictionaries(st.sampled_from(["a", "b", "index", "id", "type"]), JSON, max_size=3)
LOGPROB = st.fixed_dictionaries({"token": TEXTS, "logprob": st.just(-0.5), "bytes": st.none() | st.just([104, 105])})
LOGPROBS = st.none() | st.fixed_dictionaries(
    {"content": st.none() | st.lists(LOGPROB, max_size=4), "refusal": st.none() | st.lists(LOGPROB, max_size=2)}
)
TOOL_CALL = st.fixed_dictionaries(
    {
        "id": st.text(max_size=8),
        "type": st.just("function"),
        "function": st.fixed_dictionaries({"name": st.text(max_size=8), "arguments": TEXTS}),
    }
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.just("assistant"), "content": st.none() | TEXTS},
    optional={
        "reasoning_content": st.none() | TEXTS,
        "reasoning": TEXTS,
        "refusal": st.none() | TEXTS,
        "tool_calls": st.none() | st.lists(TOOL_CALL, max_size=3),
        "function_call": st.none() | st.fixed_dictionaries({"name": TEXTS, "arguments": TEXTS}),
        "annotations": st.lists(OBJECTS, max_size=3),
        "audio": st.none() | OBJECTS,
        "id": TEXTS,
        "of_the_vendor": JSON,
    },
)
FINISHES = st.sampled_from(["stop", "length", "content_filter", "tool_calls", None])


def answers(choice: st.SearchStrategy[dict[str, Any]], kind: str) -> st.SearchStrategy[dict[str, Any]]:
    def with_choices(choices: list[dict[str, Any]], extra: dict[str, Any]) -> dict[str, Any]:
        numbered = [{"index": i, **choice} for i, choice in enumerate(choices)]
        return {**HEAD, "object": kind, **extra, "choices": numbered}

    extra = st.fixed_dictionaries({}, optional={"usage": st.none() | st.just(USAGE), "of_the_vendor": JSON})
    return st.builds(with_choices, st.lists(choice, min_size=1, max_size=3), extra)


CHAT_CHOICES = st.fixed_dictionaries(
    {"message": MESSAGES, "logprobs": LOGPROBS, "finish_reason": FINISHES},
    optional={"content_filter_results": OBJECTS, "stop_reason": SCALARS},
)
TEXT_CHOICES = st.fixed_dictionaries(
    {"text": TEXTS, "finish_reason": FINISHES, "logprobs": st.none() | OBJECTS}, optional={"stop_reason": SCALARS}
)
CHAT_ANSWERS = answers(CHAT_CHOICES, "chat.completion")
TEXT_ANSWERS = answers(TEXT_CHOICES, "text_completion")


def encoded(body: Any) -> bytes:
    return json.dumps(body).encode()


def data_of(events: tuple[Event, ...]) -> list[bytes]:
    return [event.data for event in events]


def chunk(*choices: dict[str, Any], **fields: Any) -> bytes:
    return encoded({**HEAD, "object": "chat.completion.chunk", "choices": list(choices), **fields})


def part(finish: str | None = None, index: int = 0, **delta: Any) -> dict[str, Any]:
    return {"index": index, "delta": delta, "finish_reason": finish}


@given(CHAT_ANSWERS)
def test_a_chat_answer_survives_its_stream(body: dict[str, Any]) -> None:
    assert json.loads(assemble(CHAT, data_of(split(CHAT, encoded(body))))) == body


@given(TEXT_ANSWERS)
def test_a_completion_survives_its_stream(body: dict[str, Any]) -> None:
    assert json.loads(assemble(TEXT, data_of(split(TEXT, encoded(body))))) == body


@given(CHAT_ANSWERS)
def test_a_stream_survives_being_stored_whole(body: dict[str, Any]) -> None:
    """Both ways round: what was assembled from a stream makes a stream that says the same."""
    once = split(CHAT, encoded(body))
    again = split(CHAT, assemble(CHAT, data_of(once)))
    assert assemble(CHAT, data_of(again)) == assemble(CHAT, data_of(once))


@given(CHAT_ANSWERS)
def test_every_chunk_has_the_shape_that_clients_rely_on(body: dict[str, Any]) -> None:
    *chunks, last = (event.data for event in split(CHAT, encoded(body)))
    assert last == DONE
    parsed = [json.loads(chunk) for chunk in chunks]
    assert {chunk["object"] for chunk in parsed} == {"chat.completion.chunk"}
    assert {chunk["id"] for chunk in parsed} == {"chatcmpl-1"}
    for choice in (choice for chunk in parsed for choice in chunk["choices"]):
        assert {"index", "delta", "finish_reason"} <= set(choice)
    for index in range(len(body["choices"])):
        own = [choice for chunk in parsed for choice in chunk["choices"] if choice["index"] == index]
        assert own[0]["delta"]["role"] == "assistant"
        assert all(choice["finish_reason"] is None for choice in own[:-1])
        assert own[-1]["finish_reason"] == body["choices"][index]["finish_reason"]
    usage = [chunk["usage"] for chunk in parsed if chunk.get("usage") is not None]
    assert usage == ([body["usage"]] if body.get("usage") else [])


def test_a_long_text_comes_in_pieces() -> None:
    message = {"role": "assistant", "content": "one two three " * 40, "reasoning_content": "hm " * 40}
    body = {**HEAD, "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    deltas = [json.loads(data)["choices"][0]["delta"] for data in data_of(split(CHAT, encoded(body)))[:-1]]
    thoughts = [i for i, delta in enumerate(deltas) if delta.get("reasoning_content")]
    words = [i for i, delta in enumerate(deltas) if delta.get("content")]
    assert len(thoughts) > 5
    assert len(words) > 10
    assert max(thoughts) < min(words)  # models think before they speak


def test_deltas_of_several_choices_and_tool_calls_are_put_together_by_their_index() -> None:
    def call(index: int, **fields: Any) -> dict[str, Any]:
        return {"index": index, **fields}

    name = {"name": "weather", "arguments": ""}
    payload = [
        chunk(part(role="assistant", content=None)),
        chunk(part(index=1, role="assistant", content="")),
        chunk(part(index=1, content="a "), part(tool_calls=[call(0, id="c0", type="function", function=name)])),
        chunk(part(tool_calls=[call(0, function={"arguments": '{"in": '})])),
        chunk(part(tool_calls=[call(1, id="c1", type="function", function=name)])),
        chunk(part(tool_calls=[call(1, function={"arguments": "{}"}), call(0, function={"arguments": '"Paris"}'})])),
        chunk(part(index=1, content="b")),
        chunk(part("stop", index=1), part("tool_calls")),
        chunk(usage=USAGE),
        DONE,
    ]
    body = json.loads(assemble(CHAT, payload))
    first, second = body["choices"]
    assert [(c["id"], c["function"]["arguments"]) for c in first["message"]["tool_calls"]] == [
        ("c0", '{"in": "Paris"}'),
        ("c1", "{}"),
    ]
    assert all("index" not in c for c in first["message"]["tool_calls"])
    assert (first["message"]["content"], first["finish_reason"]) == (None, "tool_calls")
    assert (second["message"]["content"], second["finish_reason"]) == ("a b", "stop")
    assert body["usage"] == USAGE
    assert body["object"] == "chat.completion"


def whole(finish: str | None = "stop", **message: Any) -> dict[str, Any]:
    message = {"role": "assistant", "content": "hi", **message}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": finish}
    return {**HEAD, "object": "chat.completion", "choices": [choice], "usage": USAGE}


CALLS = [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
VERDICTS: list[tuple[Any, Admission]] = [
    (whole(), Admission.STORED),
    ({**whole(), "error": None}, Admission.STORED),
    (whole("length"), Admission.INCOMPLETE),
    (whole("content_filter"), Admission.INCOMPLETE),
    (whole(None), Admission.INCOMPLETE),
    (whole("tool_calls", tool_calls=CALLS), Admission.TOOLS),
    (whole("stop", tool_calls=CALLS), Admission.TOOLS),
    (whole("function_call", function_call={"name": "f", "arguments": ""}), Admission.TOOLS),
    ({**whole(), "choices": [*whole()["choices"], *whole("length")["choices"]]}, Admission.INCOMPLETE),
    ({**whole(), "choices": []}, Admission.INCOMPLETE),
    ({"error": {"message": "no"}}, Admission.ERROR_STATUS),
    ({**whole(), "error": {"message": "no"}}, Admission.ERROR_STATUS),
]


@pytest.mark.parametrize(("body", "verdict"), VERDICTS)
def test_only_complete_answers_may_be_stored(body: Any, verdict: Admission) -> None:
    assert inspect(CHAT, [encoded(body)], False).admission is verdict


@pytest.mark.parametrize(("body", "verdict"), [v for v in VERDICTS if "error" not in v[0]])
def test_a_stream_is_judged_as_its_whole_is(body: Any, verdict: Admission) -> None:
    payload = data_of(split(CHAT, encoded(body)))
    inspection = inspect(CHAT, payload, True)
    assert inspection.admission is verdict
    assert (inspection.input_tokens, inspection.output_tokens) == (7, 5)
    assert inspect(CHAT, payload[:-1], True).admission is Admission.CUT


GARBAGE = [
    b"",
    b"null",
    b"[]",
    b"1",
    b'"x"',
    b"{}",
    b"<html>",
    b'{"choices": 1}',
    b'{"choices": [1]}',
    b'{"choices": {}}',
]
GARBAGE += [b'{"choices": [{"message": []}]}', b'{"choices": [{"message": 1, "finish_reason": "stop"}]}', b"[" * 2000]


@pytest.mark.parametrize("body", GARBAGE)
def test_garbage_is_judged_and_never_raises(body: bytes) -> None:
    for operation in (CHAT, TEXT, "embeddings"):
        assert inspect(operation, [body], False).admission is not Admission.STORED
        assert inspect(operation, [body, DONE], True).admission is not Admission.STORED


@given(st.binary(max_size=60) | JSON.map(encoded))
def test_whatever_comes_is_judged_and_at_most_malformed(body: bytes) -> None:
    for operation in (CHAT, TEXT):
        inspect(operation, [body], False)
        inspect(operation, [body, DONE], True)
        for attempt in (lambda op=operation: split(op, body), lambda op=operation: assemble(op, [body, DONE])):
            try:
                attempt()
            except MalformedResponse:
                continue


def call(**fields: Any) -> Call:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    return OpenAI().parse("/v1/chat/completions", encoded(body), {})


@pytest.mark.parametrize("options", [None, {}, {"include_usage": False}, {"include_usage": None}])
def test_the_usage_chunk_is_hidden_from_who_did_not_ask(options: dict[str, Any] | None) -> None:
    events = split(CHAT, encoded(whole()))
    shown = [event for event in events if OpenAI().shown(call(stream=True, stream_options=options), event)]
    assert [event for event in events if event not in shown] == [e for e in events if b"total_tokens" in e.data]
    assert len(shown) == len(events) - 1


def test_the_usage_chunk_is_shown_to_who_asked() -> None:
    asked = call(stream=True, stream_options={"include_usage": True})
    assert all(OpenAI().shown(asked, event) for event in split(CHAT, encoded(whole())))


def test_an_answer_that_talks_of_usage_is_shown() -> None:
    event = Event(chunk(part(content='say "usage" and "choices": []')))
    assert OpenAI().shown(call(stream=True), event)
