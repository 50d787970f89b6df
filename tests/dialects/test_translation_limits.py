"""What a translation sends is accepted on the other side: names, ids, users, stop sequences, empty turns, thinking."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.calls import TranslatedCall
from gateway.dialects.anthropic import answers as anthropic_answers
from gateway.dialects.anthropic.thinking import fit_thinking
from gateway.dialects.translation.stops import ChatStops, StopText
from gateway.errors import BadRequest
from gateway.messages import Event
from tests.dialects.test_anthropic_lossless import message
from tests.dialects.test_openai_answers import encoded
from tests.dialects.test_translation import completion, through, to_claude, to_openai

LONG_NAME = "mcp__" + "a_very_long_server_name__" * 4 + "look.up"
TOOL_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
USER = {"role": "user", "content": "hi"}


def sent(translated: TranslatedCall) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(translated.outgoing.body)
    return body


@pytest.mark.parametrize("field", ["user", "prompt_cache_key"])
def test_an_id_that_openai_refuses_for_its_length_becomes_an_opaque_one_of_64_characters(field: str) -> None:
    def asked(text: str) -> dict[str, Any]:
        return {"metadata": {"user_id": text}} if field == "user" else {field: text}

    long = "user_" + "0f" * 90
    assert sent(to_openai(**asked("u" * 64)))[field] == "u" * 64
    said = sent(to_openai(**asked(long)))[field]
    assert re.fullmatch("[0-9a-f]{64}", said)
    assert said == sent(to_openai(**asked(long)))[field] != sent(to_openai(**asked(long + "x")))[field]


@pytest.mark.parametrize("user", ["ann@example.org", "+49 30 1234567", "u" * 257])
def test_a_user_that_anthropic_refuses_becomes_an_opaque_one(user: str) -> None:
    assert re.fullmatch("[0-9a-f]{64}", sent(to_claude(user=user))["metadata"]["user_id"])
    assert sent(to_claude(user="user-17"))["metadata"] == {"user_id": "user-17"}
    assert sent(to_claude(safety_identifier="s"))["metadata"] == {"user_id": "s"}


def test_a_tool_has_a_name_that_openai_accepts_and_its_own_in_the_answer() -> None:
    tools = [{"name": LONG_NAME, "input_schema": {"type": "object"}}, {"name": "f", "input_schema": {"type": "object"}}]
    turns = [
        USER,
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "toolu_" + "x" * 60, "name": LONG_NAME, "input": {}}],
        },
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_" + "x" * 60, "content": "5"}]},
    ]
    translated = to_openai(tools=tools, tool_choice={"type": "tool", "name": LONG_NAME}, messages=turns)
    request = sent(translated)
    name = request["tools"][0]["function"]["name"]
    assert TOOL_NAME.fullmatch(name)
    assert request["tools"][1]["function"] == {"name": "f", "parameters": {"type": "object", "properties": {}}}
    assert request["tool_choice"]["function"]["name"] == name
    _, uses, told = request["messages"]
    assert uses["tool_calls"][0]["function"]["name"] == name
    assert uses["tool_calls"][0]["id"] == told["tool_call_id"]
    assert len(told["tool_call_id"]) <= 40

    body = completion({}, [{"id": "c", "name": name, "input": {}}, {"id": "d", "name": "f", "input": {}}], "tool_calls")
    whole = json.loads(translated.whole(encoded(body)))
    assert [block["name"] for block in whole["content"]] == [LONG_NAME, "f"]
    streamed = json.loads(anthropic_answers.assemble(through(translated, stream_of(body))))
    assert [block["name"] for block in streamed["content"]] == [LONG_NAME, "f"]


def stream_of(body: dict[str, Any], size: int = 3) -> list[Event]:
    """Return a stream of a completion, its text in pieces of `size` characters."""
    choice = body["choices"][0]
    text = choice["message"].get("content") or ""
    deltas: list[dict[str, Any]] = [{"content": text[at : at + size]} for at in range(0, len(text), size)]
    deltas += [{"tool_calls": [{"index": i, **call}]} for i, call in enumerate(choice["message"].get("tool_calls", ()))]
    framed: list[dict[str, Any]] = [{"index": 0, "delta": delta, "finish_reason": None} for delta in deltas]
    framed.append({"index": 0, "delta": {}, "finish_reason": choice["finish_reason"]})
    chunks = [{"id": body["id"], "model": "m", "choices": [each]} for each in framed]
    return [*(Event(encoded(chunk)) for chunk in chunks), Event(b"[DONE]")]


def test_a_tool_has_a_name_and_an_id_that_anthropic_accepts_and_its_own_name_in_the_answer() -> None:
    named = "functions.weather:" + "x" * 130
    call = {"id": "functions.weather:0", "type": "function", "function": {"name": named, "arguments": "{}"}}
    turns = [
        USER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "user", "content": "wait"},
        {"role": "tool", "tool_call_id": "functions.weather:0", "content": "  "},
    ]
    translated = to_claude(messages=turns, tools=[{"type": "function", "function": {"name": named, "parameters": {}}}])
    request = sent(translated)
    name = request["tools"][0]["name"]
    assert re.fullmatch("[A-Za-z0-9_-]{1,128}", name)
    assert request["tools"][0]["input_schema"] == {"type": "object", "properties": {}}
    (use,), told = (turn["content"] for turn in request["messages"][1:])
    assert (use["name"], use["id"]) == (name, told[0]["tool_use_id"])
    assert re.fullmatch("[A-Za-z0-9_-]+", use["id"])
    assert [block["type"] for block in told] == ["tool_result", "text"]  # results come first
    assert told[0]["content"] == []
    answer = encoded(message({"type": "tool_use", "id": "t", "name": name, "input": {}}, stop="tool_use"))
    assert json.loads(translated.whole(answer))["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == named
    chunks = map(json.loads, through(translated, anthropic_answers.split(answer))[:-1])
    started = [call for each in chunks for choice in each["choices"] for call in choice["delta"].get("tool_calls", ())]
    assert started[0]["function"]["name"] == named


@pytest.mark.parametrize("text", ["one STOP5 two", "one S", "one STOP1 two", "STOP5", "no end"])
def test_a_fifth_stop_sequence_ends_the_answer_although_openai_accepts_four(text: str) -> None:
    stops = [f"STOP{i}" for i in range(1, 6)]
    body = completion({"content": text}, [{"id": "c", "name": "f", "input": {}}], "tool_calls")
    for size in (1, 3, 100):
        whole = to_openai(stop_sequences=stops)
        assert sent(whole)["stop"] == stops[:4]
        said = json.loads(whole.whole(encoded(body)))
        streamed = json.loads(
            anthropic_answers.assemble(through(to_openai(stop_sequences=stops), stream_of(body, size)))
        )
        for answer in (said, streamed):
            texts = "".join(block["text"] for block in answer["content"] if block["type"] == "text")
            assert texts == text.partition("STOP5")[0]
            ended = ("stop_sequence", "STOP5", 0) if "STOP5" in text else ("tool_use", None, 1)
            calls = sum(block["type"] == "tool_use" for block in answer["content"])
            assert (answer["stop_reason"], answer["stop_sequence"], calls) == ended


def test_text_that_was_held_for_a_stop_sequence_is_sent_at_the_end_of_a_stream_without_a_finish_reason() -> None:
    body = completion({"content": "one ST"}, [], "stop")
    *events, _, done = stream_of(body)
    payload = through(to_openai(stop_sequences=[*"abcd", "STOP"]), [*events, done])
    assert json.loads(anthropic_answers.assemble(payload))["content"] == [{"type": "text", "text": "one ST"}]


@pytest.mark.parametrize("text", ["one\n\ntwo", "one\ntwo", "one\n"])
def test_a_stop_sequence_of_white_space_ends_the_answer_although_anthropic_accepts_none(text: str) -> None:
    asked = {"stop": ["\n\n", "END"]}
    answer = encoded(message({"type": "text", "text": text}, {"type": "tool_use", "id": "t", "name": "f", "input": {}}))
    assert sent(to_claude(**asked))["stop_sequences"] == ["END"]
    assert "stop_sequences" not in sent(to_claude(stop="\n"))
    said = json.loads(to_claude(**asked).whole(answer))["choices"][0]
    chunks = [*map(json.loads, through(to_claude(**asked), anthropic_answers.split(answer))[:-1])]
    deltas = [choice for each in chunks for choice in each["choices"]]
    assert said["message"]["content"] == text.partition("\n\n")[0]
    assert "".join(choice["delta"].get("content") or "" for choice in deltas) == text.partition("\n\n")[0]
    ended = "\n\n" in text
    assert bool(said["message"].get("tool_calls")) is not ended
    assert any(choice["delta"].get("tool_calls") for choice in deltas) is not ended
    if ended:
        assert said["finish_reason"] == deltas[-1]["finish_reason"] == "stop"


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=4), min_size=1, max_size=3), st.data())
def test_a_text_in_pieces_ends_where_the_whole_text_ends(text: str, stops: list[str], draw: Any) -> None:
    cut = StopText(stops)
    said, rest = "", text
    while rest:
        size = draw.draw(st.integers(1, len(rest)))
        said, rest = said + cut.feed(rest[:size]), rest[size:]
    said += cut.rest()
    ends = [text.find(each) for each in stops if each in text]
    first = min((text.find(each) + len(each) for each in stops if each in text), default=None)
    assert (cut.found is None) is (first is None)
    # A sequence that ends first is found first, even if a longer one began before it.
    assert text.startswith(said)
    assert len(said) <= (len(text) if first is None else first)
    assert ends or said == text


def test_stop_sequences_that_would_cost_too_much_to_look_for_are_refused() -> None:
    for stops in (["x"] * 3 + [str(i) for i in range(70)], ["a", "b", "c", "d", "e" * 300]):
        with pytest.raises(BadRequest, match="stop sequences"):
            to_openai(stop_sequences=stops)
    assert not ChatStops(())


THOUGHT = {"type": "thinking", "thinking": "hm", "signature": ""}
SIGNED = {**THOUGHT, "signature": "c2lnbmVk"}
EMPTY = {"type": "text", "text": ""}
USE = {"type": "tool_use", "id": "t", "name": "f", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "t", "content": []}


@pytest.mark.parametrize(
    "content", ["", [], [THOUGHT], [EMPTY], [THOUGHT, EMPTY], [{"type": "redacted_thinking", "data": "x"}]]
)
def test_a_turn_of_nothing_that_openai_knows_is_left_out(content: Any) -> None:
    turns = [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": content},
        {"role": "user", "content": "two"},
    ]
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert sent(to_openai(messages=turns))["messages"] == [{"role": "user", "content": parts}]
    assert sent(to_openai(messages=turns[:2]))["messages"] == [{"role": "user", "content": "one"}]


def test_empty_systems_texts_and_results_are_no_messages_to_openai() -> None:
    turns = [
        {"role": "user", "content": [EMPTY, {"type": "text", "text": "go"}]},
        {"role": "assistant", "content": [{"type": "text", "text": "I call"}]},
        {"role": "user", "content": []},
        {"role": "assistant", "content": [{"type": "text", "text": "now"}, USE]},
        {"role": "user", "content": [RESULT, EMPTY]},
    ]
    for system in ("", [], [EMPTY]):
        said = sent(to_openai(system=system, messages=turns))["messages"]
        assert [turn["role"] for turn in said] == ["user", "assistant", "tool"]
        assert [turn["content"] for turn in said] == ["go", "I call\n\nnow", ""]
    assert sent(to_openai(messages=[{"role": "user", "content": ""}]))["messages"] == [{"role": "user", "content": ""}]


def test_turns_of_nothing_are_left_out_for_anthropic() -> None:
    turns: list[Any] = [
        {"role": "system", "content": " "},
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": None},
        {"role": "user", "content": [{"type": "text", "text": "\n"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": "Once upon "},
    ]
    request = sent(to_claude(messages=turns))
    assert "system" not in request
    texts = [[block["text"] for block in turn["content"]] for turn in request["messages"]]
    assert texts == [["one", "two"], ["Once upon"]]  # Anthropic refuses white space at the end of a prefilled answer
    alone = sent(to_claude(messages=[{"role": "system", "content": "Say hi."}]))
    assert alone["messages"] == [{"role": "user", "content": [{"type": "text", "text": "Say hi."}]}]


ENABLED = {"type": "enabled", "budget_tokens": 2000}


def asked_of_anthropic(*turns: Any, thinking: Any = ENABLED, max_tokens: int = 5000) -> dict[str, Any]:
    return {"model": "m", "max_tokens": max_tokens, "thinking": thinking, "messages": [USER, *turns]}


def assistant(*content: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": list(content)}


def user(*content: Any) -> dict[str, Any]:
    return {"role": "user", "content": list(content)}


TEXT = {"type": "text", "text": "so"}
UNSEALED = {"type": "redacted_thinking", "data": ""}


@pytest.mark.parametrize(
    ("turns", "sent_turns", "thinks"),
    [
        ([assistant(THOUGHT, TEXT), USER], [assistant(TEXT), USER], True),
        ([assistant(UNSEALED, TEXT), USER], [assistant(TEXT), USER], True),
        ([assistant({"type": "thinking", "thinking": "hm"}, TEXT), USER], [assistant(TEXT), USER], True),
        ([assistant(THOUGHT), USER], [USER], True),  # a turn of thinking alone
        ([assistant(THOUGHT, USE), user(RESULT)], [assistant(USE), user(RESULT)], False),
        ([assistant(TEXT, USE), user(RESULT)], [assistant(TEXT, USE), user(RESULT)], False),
        ([assistant(SIGNED, USE), user(RESULT)], [assistant(SIGNED, USE), user(RESULT)], True),
        (  # the turn began with thinking, and goes on
            [assistant(SIGNED, USE), user(RESULT), assistant(USE), user(RESULT)],
            [assistant(SIGNED, USE), user(RESULT), assistant(USE), user(RESULT)],
            True,
        ),
        (  # an earlier turn without thinking is over
            [assistant(USE), user(RESULT), assistant(TEXT), USER],
            [assistant(USE), user(RESULT), assistant(TEXT), USER],
            True,
        ),
        (
            [assistant(SIGNED, TEXT), USER, assistant(THOUGHT, USE), user(RESULT, TEXT)],
            [assistant(SIGNED, TEXT), USER, assistant(USE), user(RESULT, TEXT)],
            False,
        ),
    ],
)
def test_thinking_of_another_model_does_not_reach_anthropic(turns: Any, sent_turns: Any, thinks: bool) -> None:
    fitted = fit_thinking(asked_of_anthropic(*turns))
    assert fitted["messages"] == [USER, *sent_turns]
    assert ("thinking" in fitted) is thinks
    assert fit_thinking(asked_of_anthropic(*turns, thinking={"type": "adaptive"}))["thinking"] == {"type": "adaptive"}


def test_a_request_that_anthropic_accepts_stays_the_same_object() -> None:
    for asked in (asked_of_anthropic(), asked_of_anthropic(assistant(SIGNED, TEXT), USER), {"messages": [USER]}):
        assert fit_thinking(asked) is asked


def test_a_budget_that_reaches_max_tokens_raises_it() -> None:
    over = asked_of_anthropic(max_tokens=2000)
    assert fit_thinking(over)["max_tokens"] == 4000
    assert fit_thinking(over, interleaved=True) is over
    request = sent(to_claude(thinking=ENABLED, max_tokens=300))
    assert (request["max_tokens"], request["thinking"]) == (2300, ENABLED)
    assert sent(to_claude(thinking={**ENABLED, "budget_tokens": 9000}))["max_tokens"] == 9000 + 4096


def test_sampling_settings_that_exclude_thinking_are_left_out_of_a_translated_request() -> None:
    request = sent(to_claude(thinking=ENABLED, temperature=0.2, top_k=5, top_p=0.5))
    assert request.keys().isdisjoint({"temperature", "top_k", "top_p"})
    assert sent(to_claude(thinking=ENABLED, temperature=1, top_p=0.97))["top_p"] == 0.97
    tools = [{"type": "function", "function": {"name": "f"}}]
    forced = sent(to_claude(thinking=ENABLED, tools=tools, tool_choice="required", temperature=0.2))
    assert "thinking" not in forced
    assert forced["temperature"] == 0.2


def test_a_chat_whose_tool_call_came_without_thinking_goes_on_without_it() -> None:
    call = {"id": "t", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    turns = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "t", "content": "5"}]
    assert "thinking" not in sent(to_claude(messages=turns, thinking=ENABLED))
