"""Calls and answers between OpenAI's protocol and Anthropic's: both forms of an answer say the same, and what a
protocol cannot say is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import TranslatedCall
from gateway.dialects.anthropic import answers as anthropic_answers
from gateway.dialects.anthropic.dialect import Anthropic
from gateway.dialects.anthropic.models import anthropic_model
from gateway.dialects.anthropic.translation.chat_as_message import ChatAnswer
from gateway.dialects.anthropic.translation.chat_to_messages import messages_request
from gateway.dialects.anthropic.translation.message_as_chat import MessageAnswer
from gateway.dialects.anthropic.translation.messages_to_chat import chat_request
from gateway.dialects.model_objects import neutral_model
from gateway.dialects.openai import answers as openai_answers
from gateway.dialects.openai.dialect import OpenAI
from gateway.dialects.prompt_tokens import count_tokens
from gateway.errors import BadRequest, MalformedResponse
from gateway.messages import Event
from gateway.outcomes import Admission
from gateway.upstream.header_filter import own_headers, translated_headers
from tests.dialects.test_anthropic_lossless import MESSAGES as ANY_MESSAGES
from tests.dialects.test_anthropic_lossless import cut, message, uses_at
from tests.dialects.test_openai_answers import data_of, encoded

CHAT = "chat.completions"
WORDS = st.text(min_size=1, max_size=30)
INPUTS = st.dictionaries(st.text(max_size=5), st.integers(-9, 9) | WORDS, max_size=3)


def to_claude(**fields: Any) -> TranslatedCall:
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], **fields}
    call = OpenAI().parse("/v1/chat/completions", orjson.dumps(body), {})
    return MessageAnswer(call, model=None, created=5)


def to_openai(*, cache_control: bool = False, **fields: Any) -> TranslatedCall:
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}], **fields}
    return ChatAnswer(
        Anthropic().parse("/v1/messages", orjson.dumps(body), {}), model="other", created=5, cache_control=cache_control
    )


def through(translated: TranslatedCall, events: Iterable[Event]) -> list[bytes]:
    return [said.data for event in events for said in translated.events(event)]


BLOCKS = st.one_of(
    st.fixed_dictionaries({"type": st.just("text"), "text": WORDS}),
    st.fixed_dictionaries({"type": st.just("thinking"), "thinking": WORDS, "signature": WORDS}),
    st.fixed_dictionaries({"type": st.just("redacted_thinking"), "data": WORDS}),
    st.fixed_dictionaries({"type": st.just("tool_use"), "id": WORDS, "name": WORDS, "input": INPUTS}),
)
STOPS = st.sampled_from(["end_turn", "stop_sequence", "max_tokens", "tool_use", "refusal", "pause_turn"])


@given(st.lists(BLOCKS, min_size=1, max_size=5), STOPS)
def test_both_forms_of_claudes_answer_are_one_chat_completion(content: list[Any], stop: str) -> None:
    data = encoded(message(*content, stop=stop))
    whole = to_claude().whole(data)
    payload = through(to_claude(), anthropic_answers.split(data))
    body, put_together = json.loads(whole), json.loads(openai_answers.assemble(CHAT, payload))
    for each in (body, put_together):  # of nothing said, one form has null and the other the empty text
        each["choices"][0]["message"]["content"] = each["choices"][0]["message"]["content"] or None
    arguments = [
        [json.loads(call["function"].pop("arguments")) for call in each["choices"][0]["message"].get("tool_calls", [])]
        for each in (body, put_together)
    ]
    assert arguments[0] == arguments[1] == [block["input"] for block in content if block["type"] == "tool_use"]
    assert body == put_together
    assert body["usage"] == {
        "prompt_tokens": 12, "completion_tokens": 7, "total_tokens": 19,
        "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 5},
    }  # fmt: skip
    judged = openai_answers.inspect(CHAT, payload, True).admission
    assert judged is openai_answers.inspect(CHAT, [whole], False).admission
    assert (judged is Admission.STORED) <= (stop in ("end_turn", "stop_sequence"))


CALLS = st.lists(
    st.fixed_dictionaries({"id": WORDS, "name": WORDS, "input": INPUTS}), max_size=3, unique_by=lambda call: call["id"]
)
SAID = st.fixed_dictionaries({}, optional={"reasoning_content": WORDS, "content": WORDS})


def completion(said: dict[str, Any], calls: list[Any], finish: str) -> dict[str, Any]:
    functions = [
        {
            "id": call["id"],
            "type": "function",
            "function": {"name": call["name"], "arguments": json.dumps(call["input"])},
        }
        for call in calls
    ]
    given = {"role": "assistant", "content": None, **said, **({"tool_calls": functions} if calls else {})}
    usage = {"prompt_tokens": 7, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}}
    head = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "usage": usage}
    return {**head, "choices": [{"index": 0, "message": given, "finish_reason": finish, "logprobs": None}]}


def interleaved(body: dict[str, Any], draw: random.Random) -> list[Event]:
    """A stream of it in which tool calls come in between each other, cut anywhere."""
    choice, chunks = body["choices"][0], list[dict[str, Any]]()
    given = choice["message"]
    for key in ("reasoning_content", "content"):
        chunks += [{key: piece} for piece in cut(given.get(key) or "", draw)]
    queues = []
    for index, call in enumerate(given.get("tool_calls") or ()):
        function = call["function"]
        first = {"index": index, **call, "function": {**function, "arguments": ""}}
        more = [{"index": index, "function": {"arguments": piece}} for piece in cut(function["arguments"], draw)]
        queues.append([first, *more])
    while any(queues):
        queue = draw.choice([queue for queue in queues if queue])
        chunks.append({"tool_calls": [queue.pop(0)]})
    framed = [{"index": 0, "delta": delta, "finish_reason": None} for delta in chunks]
    framed.append({"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]})
    head = {"id": body["id"], "object": "chat.completion.chunk", "model": body["model"]}
    events = [Event(encoded({**head, "choices": [each]})) for each in framed]
    return [*events, Event(encoded({**head, "choices": [], "usage": body["usage"]})), Event(b"[DONE]")]


@given(SAID, CALLS, st.sampled_from(["stop", "length", "tool_calls", "content_filter"]), st.randoms())
def test_both_forms_of_openais_answer_are_one_message(
    said: dict[str, Any], calls: list[Any], finish: str, draw: random.Random
) -> None:
    body = completion(said, calls, finish)
    whole = json.loads(to_openai().whole(encoded(body)))
    for events in (openai_answers.split(CHAT, encoded(body)), interleaved(body, draw)):
        payload = through(to_openai(), events)
        put_together = json.loads(anthropic_answers.assemble(payload))
        if put_together["content"] != whole["content"]:  # calls that began in another order come in that order
            order = {call["id"]: i for i, call in enumerate(calls)}
            put_together["content"].sort(key=lambda block: order.get(block.get("id"), -1))
        assert put_together == whole
        assert anthropic_answers.inspect(payload, True) == anthropic_answers.inspect([encoded(put_together)], False)
    uses = [block for block in whole["content"] if block["type"] == "tool_use"]
    assert [(use["id"], use["name"], use["input"]) for use in uses] == [
        (call["id"], call["name"], call["input"]) for call in calls
    ]
    assert count_tokens(whole["usage"]) == (7, 5)


@given(SAID, CALLS)
def test_blocks_of_a_translated_stream_are_open_one_at_a_time(said: dict[str, Any], calls: list[Any]) -> None:
    events = interleaved(completion(said, calls, "stop"), random.Random(3))
    opened: int | None = None
    for data in through(to_openai(), events):
        event = json.loads(data)
        if event["type"] == "content_block_start":
            assert opened is None
            opened = event["index"]
        elif event["type"].startswith("content_block"):
            assert event["index"] == opened
            opened = None if event["type"] == "content_block_stop" else opened
    assert opened is None


@given(ANY_MESSAGES)
def test_any_message_of_claudes_is_translated_or_malformed(body: dict[str, Any]) -> None:
    for attempt in (
        lambda: to_claude().whole(encoded(body)),
        lambda: through(to_claude(), anthropic_answers.split(encoded(body))),
    ):
        try:
            attempt()
        except MalformedResponse:
            assert any(block["type"] not in ("text", "thinking", "redacted_thinking") for block in body["content"])


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"choices": [{}]}', b'{"content": [5]}', b"null", b"<html>"])
def test_what_is_no_answer_is_malformed(data: bytes) -> None:
    for translated in (to_claude(), to_openai()):
        with pytest.raises(MalformedResponse):
            translated.whole(data)
        said = json.loads(translated.error(502, data))["error"]
        assert said["message"] == "the backend answered with status 502"


def test_an_answer_that_is_an_error_is_malformed_and_says_so() -> None:
    for translated in (to_claude(), to_openai()):
        with pytest.raises(MalformedResponse, match="out of memory"):
            translated.whole(b'{"type": "error", "error": {"type": "api_error", "message": "out of memory"}}')


PNG = "data:image/png;base64,aGk="


def test_a_chat_request_is_said_in_anthropics_words() -> None:
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]},
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "what are these?"},
                {"type": "image_url", "image_url": {"url": PNG}},
                {"type": "image_url", "image_url": {"url": "https://host/a.png"}},
                {"type": "file", "file": {"filename": "a.pdf", "file_data": "data:application/pdf;base64,aGk="}},
                {"type": "text", "text": ""},
            ],
        },
        {"role": "assistant", "content": ""},
        {"role": "system", "content": "In French."},
        {"role": "user", "name": "Ann", "content": "so?"},
    ]
    fields = {"stop": "END", "reasoning_effort": "minimal", "seed": 5, "frequency_penalty": 1, "top_k": 3}
    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}, "strict": True}}
    asked = {"model": "m", "messages": messages, "max_tokens": 7, "response_format": schema, **fields}
    assert messages_request(asked, "other") == {
        "model": "other",
        "max_tokens": 7,
        "system": [{"type": "text", "text": "Be brief."}, {"type": "text", "text": "In French."}],
        "messages": [
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "what are these?"},
                    {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}},
                    {"type": "image", "source": {"type": "url", "url": "https://host/a.png"}},
                    {
                        "type": "document",
                        "source": {"type": "base64", "media_type": "application/pdf", "data": "aGk="},
                        "title": "a.pdf",
                    },
                    {"type": "text", "text": "so?"},
                ],
            }
        ],
        "top_k": 3,
        "stop_sequences": ["END"],
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    }


def test_a_message_request_is_said_in_openais_words() -> None:
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "a page"}}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "see"}, image, document]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "I call"},
                {"type": "tool_use", "id": "t", "name": "f", "input": {"a": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "text", "text": "there"},
                {"type": "tool_result", "tool_use_id": "t", "is_error": True, "content": [image]},
            ],
        },
    ]
    fields = {"thinking": {"type": "enabled", "budget_tokens": 2000}, "top_k": 3, "output_config": {"effort": "max"}}
    asked = {"model": "m", "max_tokens": 7, "system": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    shown = {"type": "image_url", "image_url": {"url": PNG}}
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": '{"a":1}'}}
    assert chat_request({**asked, "messages": messages, **fields}, None) == {
        "model": "m",
        "messages": [
            {"role": "system", "content": "a\nb"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "see"}, shown, {"type": "text", "text": "a page"}],
            },
            {"role": "assistant", "content": "I call", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "t", "content": ""},
            {"role": "user", "content": [{"type": "text", "text": "there"}, shown]},
        ],
        "max_completion_tokens": 7,
        "reasoning_effort": "xhigh",
    }


def said_by(role: str, *parts: Any, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(parts), **more}]}


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 2},
        {"top_logprobs": 3},
        {"modalities": ["text", "audio"]},
        {"functions": [{"name": "f"}]},
        {"web_search_options": {"search_context_size": "low"}},
        {"response_format": {"type": "json_object"}},
        {"tools": [{"type": "custom", "custom": {"name": "f"}}]},
        {"tools": [{"type": "function"}]},
        {"tools": [{"type": "function", "function": {"name": "f"}}], "tool_choice": {"type": "allowed_tools"}},
        said_by("user", {"type": "input_audio", "input_audio": {}}),
        said_by("user", {"type": "image_url", "image_url": {"url": "data:text,hello"}}),
        said_by("user", {"type": "file", "file": {"file_id": "f"}}),
        said_by("user", {"type": "image_url"}),
        said_by("function"),
        said_by("assistant", tool_calls=[{"id": "t", "function": {"name": "f", "arguments": "[1]"}}]),
        said_by("assistant", tool_calls=[{"id": "t", "function": {"name": "f", "arguments": "{"}}]),
        said_by("assistant", tool_calls=[5]),
    ],
)
def test_what_anthropic_cannot_say_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        to_claude(**fields)


@pytest.mark.parametrize(
    "fields",
    [
        {"container": "c"},
        {"mcp_servers": [{"url": "https://host"}]},
        {"tools": [{"type": "web_search_20250305", "name": "web_search"}]},
        {"tools": [{"name": "f"}]},
        {"tools": [{"name": "f", "input_schema": {}}], "tool_choice": {"type": "of_the_future"}},
        {"output_config": {"format": {"type": "grammar"}}},
        {"system": [{"type": "image", "source": {}}]},
        said_by("user", {"type": "document", "source": {"type": "url", "url": "https://host"}}),
        said_by("user", {"type": "image", "source": {"type": "file", "file_id": "f"}}),
        said_by("user", {"type": "image", "source": 5}),
        said_by("user", {"type": "search_result"}),
        said_by("assistant", {"type": "server_tool_use", "id": "t", "name": "web_search", "input": {}}),
        said_by("assistant", {"type": "tool_use"}),
        said_by("of_the_future"),
    ],
)
def test_what_openai_cannot_say_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(BadRequest):
        to_openai(**fields)


OPENAI, CLAUDE = OpenAI.endpoint, Anthropic.endpoint


def test_a_key_and_what_only_one_protocol_has_of_headers() -> None:
    bearer, key, beta = ("Authorization", "Bearer sk"), ("X-Api-Key", "sk"), ("anthropic-beta", "b")
    version, other = ("anthropic-version", "2023-06-01"), ("x-app", "a")
    assert translated_headers([bearer, other, ("OpenAI-Project", "p")], OPENAI, CLAUDE) == [other, ("x-api-key", "sk")]
    assert translated_headers([("Authorization", "Basic x"), other], OPENAI, CLAUDE) == [
        ("Authorization", "Basic x"),
        other,
    ]
    assert translated_headers([key, version, beta, other], CLAUDE, OPENAI) == [other, bearer]
    assert translated_headers([bearer, version], CLAUDE, OPENAI) == [bearer]
    assert own_headers([other], CLAUDE, "k") == [("x-api-key", "k"), version]
    assert own_headers([("Anthropic-Version", "2")], CLAUDE, None) == []
    assert own_headers([], OPENAI, "k") == [("Authorization", "Bearer k")]


def test_a_model_is_listed_in_either_shape() -> None:
    claude = {"type": "model", "id": "c", "display_name": "C", "created_at": "2026-01-02T00:00:00Z"}
    assert neutral_model(claude) == {**claude, "object": "model", "created": 1767312000, "owned_by": "anthropic"}
    assert neutral_model({"id": "m", "object": "model"}) == {"id": "m", "object": "model"}
    assert anthropic_model(neutral_model(claude)) == neutral_model(claude)
    listed = anthropic_model({"id": "m", "object": "model", "created": 1767312000})
    assert (listed["type"], listed["display_name"], listed["created_at"]) == ("model", "m", "2026-01-02T00:00:00Z")
    assert neutral_model({**claude, "created_at": "soon"})["created"] == 0


def test_blocks_of_one_index_are_as_many_tool_calls() -> None:
    payload = through(to_claude(), (Event(encoded(event), event["type"]) for event in uses_at(0, 0, 0)))
    calls = json.loads(openai_answers.assemble(CHAT, payload))["choices"][0]["message"]["tool_calls"]
    assert [(call["id"], call["function"]["arguments"]) for call in calls] == [
        (f"t{n}", f'{{"n":{n}}}') for n in range(3)
    ]


def test_events_of_the_other_end_that_say_nothing_are_told_nothing_of() -> None:
    assert to_claude().events(Event(b'{"type": "ping"}')) == []
    assert to_claude().events(Event(b"[DONE]")) == []
    with pytest.raises(MalformedResponse):
        to_openai().events(Event(b"[DONE]"))
    assert data_of(tuple(to_claude().events(Event(b'{"type": "error", "error": {"message": "no"}}'))))
