"""One entry serves stream and whole, whichever was stored: arbitrary answers, unknown fields at every level, chunks cut
anywhere and interleaved."""

from __future__ import annotations

import json
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.dialects.conversation import split_pieces
from gateway.dialects.openai.answers import DONE, assemble, inspect, renew, split
from gateway.outcomes import Admission
from tests.dialects.test_openai_answers import (
    CHAT,
    CHAT_ANSWERS,
    FINISHES,
    JSON,
    LOGPROBS,
    MESSAGES,
    TEXT,
    TEXTS,
    USAGE,
    chunk,
    data_of,
    encoded,
    part,
)

# What the protocol names keeps its meaning; every other name may hold anything.
NAMES = {"id", "object", "created", "model", "choices", "usage", "error", "index", "message", "delta", "text"}
NAMES |= {"logprobs", "finish_reason", "role", "content", "tool_calls", "function_call"}
UNKNOWN = st.dictionaries(TEXTS.filter(lambda name: name not in NAMES), JSON, max_size=3)


def joined(known: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    return st.builds(lambda unknown, known: {**unknown, **known}, UNKNOWN, known)


TOOL_CALLS = st.lists(
    joined(
        st.fixed_dictionaries(
            {"id": TEXTS, "type": st.just("function"), "function": joined(st.fixed_dictionaries({"arguments": TEXTS}))}
        )
    ),
    max_size=3,
)
CHAT_CHOICE = joined(
    st.fixed_dictionaries(
        {
            "message": joined(
                st.builds(lambda m, calls: {**m, **calls}, MESSAGES, st.fixed_dictionaries({"tool_calls": TOOL_CALLS}))
                | MESSAGES
            ),
            "logprobs": LOGPROBS,
            "finish_reason": FINISHES,
        }
    )
)
TEXT_CHOICE = joined(st.fixed_dictionaries({"text": TEXTS, "logprobs": st.none() | JSON, "finish_reason": FINISHES}))
HEADS = joined(
    st.fixed_dictionaries(
        {"id": TEXTS, "created": st.integers(0, 2**40), "model": TEXTS},
        optional={"usage": st.none() | st.just(USAGE), "system_fingerprint": st.none() | TEXTS, "service_tier": JSON},
    )
)


def answers(choice: st.SearchStrategy[dict[str, Any]], kind: str) -> st.SearchStrategy[dict[str, Any]]:
    def numbered(head: dict[str, Any], choices: list[dict[str, Any]]) -> dict[str, Any]:
        return {**head, "object": kind, "choices": [{"index": i, **each} for i, each in enumerate(choices)]}

    return st.builds(numbered, HEADS, st.lists(choice, min_size=1, max_size=3))


CHATS, COMPLETIONS = answers(CHAT_CHOICE, "chat.completion"), answers(TEXT_CHOICE, "text_completion")


@given(CHATS)
def test_a_chat_answer_with_unknown_fields_everywhere_survives_its_stream(body: dict[str, Any]) -> None:
    assert json.loads(assemble(CHAT, data_of(split(CHAT, encoded(body))))) == body


@given(COMPLETIONS)
def test_a_completion_with_unknown_fields_everywhere_survives_its_stream(body: dict[str, Any]) -> None:
    assert json.loads(assemble(TEXT, data_of(split(TEXT, encoded(body))))) == body


def cut(text: str, draw: random.Random) -> list[str]:
    """Anywhere, empty pieces included."""
    places = sorted(draw.randint(0, len(text)) for _ in range(draw.randint(0, 3)))
    return [text[i:j] for i, j in zip([0, *places], [*places, len(text)], strict=True)]


def said(message: dict[str, Any], draw: random.Random) -> list[dict[str, Any]]:
    """A message as deltas that are cut anywhere, as a server of its own mind would."""
    deltas: list[dict[str, Any]] = [{"role": message["role"]}]
    for key, value in message.items():
        if key == "tool_calls" and value:
            for place, call in enumerate(value):
                first, *rest = cut(call["function"]["arguments"], draw)
                name = {**call["function"], "arguments": first}
                deltas.append({key: [{**call, "index": place, "function": name}]})
                deltas += [{key: [{"index": place, "function": {"arguments": more}}]} for more in rest]
        elif isinstance(value, str) and key in ("content", "reasoning", "reasoning_content", "refusal"):
            deltas += [{key: piece} for piece in cut(value, draw)]
        elif key != "role":
            deltas.append({key: value})
    return deltas


def own_chunks(choice: dict[str, Any], draw: random.Random) -> list[dict[str, Any]]:
    """The chunk choices of one choice, in their order."""
    framed = {"index": choice["index"], "logprobs": None, "finish_reason": None}
    parts = [{**framed, "delta": delta} for delta in said(choice["message"], draw)]
    for key, value in (choice["logprobs"] or {}).items():
        places = [[each] for each in value or []] or [value]
        parts += [{**framed, "delta": {}, "logprobs": {key: place}} for place in places]
    if choice["logprobs"] == {}:
        parts.append({**framed, "delta": {}, "logprobs": {}})
    rest = {key: value for key, value in choice.items() if key not in ("message", "logprobs")}
    return [*parts, {**framed, "delta": {}, **rest}]


def streamed(body: dict[str, Any], draw: random.Random) -> list[bytes]:
    """One of the streams that `body` could have come as."""
    queues = [own_chunks(choice, draw) for choice in body["choices"]]
    head = {key: body[key] for key in ("id", "created", "model")} | {"object": "chat.completion.chunk"}
    # Some servers begin and end with chunks about filters, with no id of their own.
    chunks = [{"id": "", "created": 0, "model": "", "object": "", "choices": []}] if draw.random() < 0.3 else []
    chunks.append({**head, **{k: v for k, v in body.items() if k not in ("usage", "object")}, "choices": []})
    while any(queues):
        at = draw.choice([i for i, queue in enumerate(queues) if queue])
        together = [queues[at].pop(0)]
        changed = {"system_fingerprint": body["system_fingerprint"]} if "system_fingerprint" in body else {}
        chunks.append({**head, **(changed if draw.random() < 0.5 else {}), "choices": together})
        if draw.random() < 0.1:
            chunks.append({**head, "choices": []})
    if "usage" in body:
        chunks.append({**head, "choices": [], "usage": body["usage"]})
    if draw.random() < 0.3:
        chunks.append({"id": "", "created": 0, "model": "", "object": "", "choices": [], "usage": None})
        if "usage" not in body:
            chunks[-1].pop("usage")
    return [*map(encoded, chunks), DONE]


@given(CHATS, st.randoms(use_true_random=False))
def test_any_stream_of_an_answer_is_put_together_to_it(body: dict[str, Any], draw: random.Random) -> None:
    """Choices interleaved, deltas cut anywhere, chunks without choices, fingerprints that come and go."""
    payload = streamed(body, draw)
    whole = assemble(CHAT, payload)
    assert json.loads(whole) == body
    assert json.loads(assemble(CHAT, data_of(split(CHAT, whole)))) == body


@given(CHATS | COMPLETIONS | CHAT_ANSWERS)
def test_what_may_be_stored_can_be_served_in_both_forms(body: dict[str, Any]) -> None:
    operation = TEXT if body["object"] == "text_completion" else CHAT
    judged = inspect(operation, [encoded(body)], False)
    assert inspect(operation, data_of(split(operation, encoded(body))), True) == judged


@given(st.recursive(JSON, lambda inner: st.fixed_dictionaries(
    {"choices": st.lists(st.fixed_dictionaries({"finish_reason": st.just("stop"), "message": inner, "text": inner}))}
), max_leaves=8))  # fmt: skip
def test_no_oddity_is_stored_that_one_form_cannot_say(body: Any) -> None:
    for operation in (CHAT, TEXT):
        if inspect(operation, [encoded(body)], False).admission is Admission.STORED:
            assemble(operation, data_of(split(operation, encoded(body))))


@given(TEXTS | st.text(alphabet="\u4e2d\u6587a \n", max_size=400))
def test_pieces_are_the_text_and_none_is_giant(text: str) -> None:
    assert "".join(split_pieces(text)) == text
    assert all(0 < len(piece) <= 224 for piece in split_pieces(text))


def test_a_text_without_spaces_comes_in_pieces_too() -> None:
    assert len(split_pieces("\u4e2d" * 1000)) > 10


def test_what_filters_say_around_an_answer_takes_nothing_back() -> None:
    found = {"hate": {"filtered": False, "severity": "safe"}}
    payload = [
        encoded({"id": "", "created": 0, "model": "", "object": "", "choices": [], "prompt_filter_results": [found]}),
        chunk({**part(role="assistant", content=""), "content_filter_results": {}}),
        chunk({**part(content="one "), "content_filter_results": found}),
        chunk({**part(content="two"), "content_filter_results": found}),
        chunk({**part("stop"), "content_filter_results": {}}, usage=USAGE),
        encoded({"id": "", "created": 0, "model": "", "object": "", "choices": [part()]}),
        DONE,
    ]
    body = json.loads(assemble(CHAT, payload))
    assert (body["id"], body["created"], body["model"]) == ("chatcmpl-1", 1700000000, "m")
    assert body["prompt_filter_results"] == [found]
    assert body["usage"] == USAGE
    assert body["choices"][0]["content_filter_results"] == found
    assert (body["choices"][0]["message"]["content"], body["choices"][0]["finish_reason"]) == ("one two", "stop")


def test_what_is_repeated_with_every_piece_is_said_once() -> None:
    def thought(text: str) -> dict[str, Any]:
        return {"type": "reasoning.text", "text": text, "format": "f-v1", "index": 0}

    def call(**fields: Any) -> dict[str, Any]:
        return {"index": 0, "id": "", "type": "function", **fields}

    payload = [
        chunk({**part(reasoning_details=[thought("a")]), "token_ids": [1, 2]}, citations=["x"]),
        chunk({**part(reasoning_details=[thought("b")]), "token_ids": [3]}, citations=["x"]),
        chunk(part(tool_calls=[{**call(function={"name": "f", "arguments": "{"}), "id": "c"}])),
        chunk(part("tool_calls", tool_calls=[call(function={"arguments": "}"})])),
        DONE,
    ]
    body = json.loads(assemble(CHAT, payload))
    (choice,) = body["choices"]
    assert body["citations"] == ["x"]
    assert choice["token_ids"] == [1, 2, 3]
    assert choice["message"]["reasoning_details"] == [thought("ab")]
    function = {"name": "f", "arguments": "{}"}
    assert choice["message"]["tool_calls"] == [{"id": "c", "type": "function", "function": function}]


def test_choices_that_are_not_told_apart_are_numbered() -> None:
    said = [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"} for text in ("a", "b")]
    body = json.loads(assemble(CHAT, data_of(split(CHAT, encoded({"choices": said})))))
    assert [(choice["index"], choice["message"]["content"]) for choice in body["choices"]] == [(0, "a"), (1, "b")]


def test_a_tool_call_is_streamed_with_its_name_first_and_its_arguments_in_pieces() -> None:
    function = {"name": "f", "arguments": json.dumps({"words": "one two three four " * 10})}
    message = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c", "type": "function", "function": function}],
    }
    events = split(CHAT, encoded({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}))
    deltas = [json.loads(data)["choices"][0]["delta"] for data in data_of(events)[:-1]]
    first, *rest = [delta["tool_calls"][0] for delta in deltas if "tool_calls" in delta]
    assert first == {"index": 0, "id": "c", "type": "function", "function": {"name": "f", "arguments": ""}}
    assert len(rest) > 5
    assert "".join(call["function"]["arguments"] for call in rest) == function["arguments"]


def test_what_is_said_of_the_whole_answer_comes_once() -> None:
    message = {"role": "assistant", "content": "one two three " * 20}
    body = {"id": "i", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], "citations": ["x" * 50]}
    assert sum(b"citations" in data for data in data_of(split(CHAT, encoded(body)))) == 1


@pytest.mark.parametrize("data", [DONE, b"", b"[1]", b'{"a": 1}', b"{"])
def test_only_what_has_an_id_gets_another(data: bytes) -> None:
    assert renew(data, "chatcmpl-2", 7) is data


@given(CHATS)
def test_a_new_id_changes_nothing_else(body: dict[str, Any]) -> None:
    anew = json.loads(renew(encoded(body), "chatcmpl-2", 7))
    assert anew == {**body, "id": "chatcmpl-2", "created": 7}
