"""When the lightest model is tried first, and how sure one may be of its answer."""

from __future__ import annotations

import json
import math
from pathlib import Path
from statistics import median
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.adapters.onnx.encoder import OnnxEncoder
from gateway.adapters.onnx.model_files import ModelCorrupt, ModelMissing, default_model_dir
from gateway.cache.answer_similarity import combine_vectors, passages
from gateway.calls import Call
from gateway.config.policy.load import policy_from_text
from gateway.dialects.known import DIALECTS
from gateway.dialects.openai.dialect import CHAT, OpenAI
from gateway.dialects.openai.logprobs import OpenAILogprobs
from gateway.features.cascade.checks import MAX_CHARACTERS, grade_prompt, parse_grade
from gateway.features.cascade.policy import (
    SAMPLE_TEMPERATURE,
    agreement,
    is_applicable,
    is_non_answer,
    is_repetitive,
    sample_call,
    token_confidence,
)
from gateway.features.cascade.rule import CascadeRule
from gateway.latency_forecast import Prediction, RemainingBudget
from gateway.outcomes import Choice
from gateway.routing.selection import Decision, with_trial
from tests.config.documents import config

HARD = Decision(("big", "small"), "large", Choice.COMPLEX)


def call_of(path: str = CHAT, **fields: Any) -> Call:
    turns = [{"role": "user", "content": "Why?"}]
    with_logprobs: dict[str, Any] = {"messages": turns} if path == CHAT else {"prompt": "Why?"}
    body = {"model": "m", **with_logprobs, **fields}
    return OpenAI().parse(path, orjson.dumps(body), {})


# Whether it is tried


def test_without_a_budget_it_is_tried() -> None:
    assert with_trial(HARD, "small", RemainingBudget(), None, None).trial == "small"


@pytest.mark.parametrize(
    "decision",
    [
        Decision(("small", "big"), "light", Choice.SIMPLE),
        Decision(("small", "big"), "light", Choice.BUDGET),
        Decision(("big", "small"), "large", Choice.OVERLOADED),
        Decision(("small",), "light", Choice.LIMIT),
        Decision(("small", "big"), "large", Choice.COMPLEX),  # one backend for both
        Decision(("big", "small"), "large", Choice.COMPLEX, late=True),
    ],
)
def test_only_what_asks_for_a_better_model_is_tried(decision: Decision) -> None:
    assert with_trial(decision, "small", RemainingBudget(), None, None) == decision


SECONDS = st.floats(0.001, 100.0)
PREDICTION = st.builds(Prediction, SECONDS, SECONDS, SECONDS)
LEFT = st.none() | st.floats(0.001, 200.0)


@given(st.none() | PREDICTION, st.none() | PREDICTION, LEFT, LEFT)
def test_a_trial_is_never_begun_that_the_numbers_rule_out(
    light: Prediction | None, large: Prediction | None, total_s: float | None, ttft_s: float | None
) -> None:
    """With what is known, the light answer to its end and then the large one keep what is left."""
    decision = with_trial(HARD, "small", RemainingBudget(total_s, ttft_s), light, large)
    spent = 0.0 if light is None else light.total_s
    then = Prediction(0.0, 0.0, 0.0) if large is None else large
    fits = (total_s is None or spent + then.total_s <= total_s) and (ttft_s is None or spent + then.ttft_s <= ttft_s)
    assert (decision.trial == "small") == fits
    assert decision.trial_skipped == (not fits)
    assert decision.backends == HARD.backends


def test_while_somebody_finds_out_how_long_it_takes_nobody_is_tried() -> None:
    untold = Prediction(math.inf, math.inf, math.inf)
    assert with_trial(HARD, "small", RemainingBudget(1.0), untold, None).trial_skipped
    assert with_trial(HARD, "small", RemainingBudget(1.0), None, untold).trial_skipped


@pytest.mark.parametrize(
    ("fields", "logprobs", "consistency", "verifier", "judged"),
    [
        ({}, True, True, True, True),
        ({"n": 2}, False, False, False, False),
        ({"n": 1}, True, True, True, True),
        ({"tools": [{"type": "function"}]}, False, False, False, False),
        ({"tools": []}, True, True, True, True),
        ({"functions": [{}]}, False, False, False, False),
        ({"modalities": ["text", "audio"]}, False, False, False, False),
        ({"response_format": {"type": "text"}}, True, True, True, True),
        ({"response_format": {"type": "json_object"}}, True, True, False, True),
        ({"response_format": {"type": "json_schema"}}, True, True, False, True),
        ({"messages": [{"role": "tool", "content": "7"}]}, True, True, False, False),
    ],
)
def test_a_check_is_used_where_it_can_say_something(
    fields: dict[str, Any], logprobs: bool, consistency: bool, verifier: bool, judged: bool
) -> None:
    call = call_of(**fields)
    assert is_applicable("logprobs", call, judged=False) is logprobs
    assert is_applicable("consistency", call, judged=False) is consistency
    assert is_applicable("verifier", call, judged=False) is verifier
    assert is_applicable("verifier", call, judged=True) is judged


def test_embeddings_are_no_answers_to_check() -> None:
    assert not is_applicable(
        "logprobs", OpenAI().parse("/v1/embeddings", b'{"model": "m", "input": "hi"}', {}), judged=False
    )


# Log probabilities


@given(st.lists(st.floats(-9999.0, 0.0), min_size=1, max_size=50))
def test_confidence_is_between_the_least_and_the_most_sure_token(logprobs: list[float]) -> None:
    confidence = token_confidence(logprobs)
    assert confidence is not None
    assert math.exp(min(logprobs)) * (1 - 1e-9) <= confidence <= math.exp(max(logprobs)) * (1 + 1e-9)


def test_length_alone_is_no_doubt() -> None:
    assert token_confidence([math.log(0.9)] * 5) == pytest.approx(0.9)
    assert token_confidence([math.log(0.9)] * 500) == pytest.approx(0.9)
    assert token_confidence([]) is None


def test_they_are_asked_for_and_hidden_again() -> None:
    odds, call = OpenAILogprobs(), call_of()
    assert odds.with_logprobs(call).body["logprobs"] is True
    assert odds.with_logprobs(call).canonical == call.canonical, "the key stays what the client asked for"
    choice: dict[str, Any] = {"index": 0, "message": {"content": "hi"}, "logprobs": {"content": []}, "extra": 1}
    told = {"id": "x", "choices": [choice]}
    shown = orjson.loads(odds.strip_logprobs(call, orjson.dumps(told)))
    assert shown == {"id": "x", "choices": [{**choice, "logprobs": None}]}
    for data in (b"[DONE]", b"not json", b'{"choices": []}', b'["logprobs"]'):
        assert odds.strip_logprobs(call, data) == data


def test_a_client_that_asks_for_them_keeps_them() -> None:
    call = call_of(logprobs=True, top_logprobs=5)
    assert OpenAILogprobs().with_logprobs(call) is call
    completion = call_of("/v1/completions", logprobs=0)
    assert OpenAILogprobs().with_logprobs(completion) is completion
    assert OpenAILogprobs().with_logprobs(call_of("/v1/completions")).body["logprobs"] == 1


def chunk(token: str, logprob: float | None, **choice: Any) -> bytes:
    logprobs = None if logprob is None else {"content": [{"token": token, "logprob": logprob, "top_logprobs": []}]}
    return orjson.dumps({"choices": [{"index": 0, "delta": {"content": token}, "logprobs": logprobs, **choice}]})


def test_they_are_read_from_wholes_and_streams() -> None:
    odds, call = OpenAILogprobs(), call_of()
    stream = [chunk("a", -0.1), chunk("b", -0.2), chunk("", None, finish_reason="stop"), b"[DONE]"]
    assert list(odds.read(call, stream, True)) == [-0.1, -0.2]
    whole = {"choices": [{"message": {"content": "ab"}, "logprobs": {"content": [{"token": "ab", "logprob": -0.3}]}}]}
    assert list(odds.read(call, [orjson.dumps(whole)], False)) == [-0.3]
    text = {"choices": [{"text": "ab", "logprobs": {"token_logprobs": [None, -0.4]}}]}
    assert list(odds.read(call_of("/v1/completions"), [orjson.dumps(text)], False)) == [-0.4]


@pytest.mark.parametrize(
    "body", [b"{}", b'{"choices": []}', b'{"choices": [{"logprobs": 7}]}', b"x", b'{"choices": 1}']
)
def test_an_answer_without_any_has_none(body: bytes) -> None:
    assert list(OpenAILogprobs().read(call_of(), [body], False)) == []


def test_other_dialects_have_none() -> None:
    assert DIALECTS["kserve"].logprobs is None


# Consistency


def test_agreement_is_the_share_that_agrees() -> None:
    assert agreement([True, False]) == 0.5
    assert agreement([]) is None


def test_samples_differ_where_the_clients_request_would_not() -> None:
    call = sample_call(call_of(temperature=0, seed=7, stream=True, stream_options={"include_usage": True}), 2)
    assert call.body["temperature"] == SAMPLE_TEMPERATURE
    assert call.body["seed"] == 9
    assert not call.stream
    assert not call.body.keys() & {"stream", "stream_options"}
    assert sample_call(call_of(temperature=1.2), 1).body["temperature"] == 1.2
    assert "temperature" not in sample_call(call_of(), 1).body, "the default is hot"


# What is plainly no answer


@pytest.mark.parametrize(
    "answer",
    [
        "",
        "  \n",
        "what is the boiling point of water",
        "I'm sorry, but I can't help with that.",
        "I\u2019m sorry, but I cannot assist with that request.",
        "As an AI language model, I do not have opinions.",
        "I don't know.",
        "I am not sure, but it may be 90 degrees.",
        "It is not possible to say without more context.",
        "the water boils and " * 30,
    ],
)
def test_what_is_plainly_no_answer_is_doubted(answer: str) -> None:
    assert is_non_answer("What is the  boiling point of water", answer)


@pytest.mark.parametrize(
    "answer",
    [
        "100 degrees Celsius at sea level.",
        "Sorry is a word of six letters in none of its forms.",
        "Water boils at 100 degrees. " + "A" * 300 + " I don't know of any exception.",
        "It depends on the pressure: at sea level 100 °C, on a mountain less, in a pressure cooker more. " * 1,
    ],
)
def test_a_wrong_answer_in_good_form_is_not(answer: str) -> None:
    assert not is_non_answer("What is the boiling point of water", answer)


def test_nearness_tells_an_answer_off_the_subject_and_no_wrong_one() -> None:
    """What the built-in verifier is worth, on 16 questions with answers written by hand: of those off the subject 15
    are held off at 0.2, at the price of no right one; wrong ones lie where right ones lie."""
    try:
        encoder = OnnxEncoder(default_model_dir() / "all-MiniLM-L6-v2")
    except (ModelMissing, ModelCorrupt) as reason:
        pytest.skip(str(reason))

    def nearness(question: str, answer: str) -> float:
        first, second = (
            combine_vectors([e.vector for e in encoder.encode(passages(text))]) for text in (question, answer)
        )
        return float(first @ second)

    lines = Path(__file__).with_name("answers_to_questions.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    found = {kind: [nearness(row["question"], row[kind]) for row in rows] for kind in ("right", "wrong", "astray")}
    assert sum(value > 0.2 for value in found["right"]) == len(rows) == 16
    assert sum(value > 0.2 for value in found["astray"]) <= 1
    assert sum(value > 0.2 for value in found["wrong"]) >= 12
    assert abs(median(found["right"]) - median(found["wrong"])) < 0.1


def test_a_table_of_like_lines_is_no_loop() -> None:
    assert not is_repetitive("\n".join(f"row {i} has the value {i * i}" for i in range(40)))
    assert is_repetitive("yes of course it is " * 20)


# Grades


@pytest.mark.parametrize(
    ("said", "grade"),
    [("7", 0.7), (" 10.", 1.0), ("0", 0.0), ("8/10", 0.8), ("11", None), ("7 of 10", None), ("", None), (None, None),
     ("Grade: 7", None), ("-1", None)],
)  # fmt: skip
def test_a_grade_is_a_number_and_nothing_else(said: str | None, grade: float | None) -> None:
    assert parse_grade(said) == grade


def test_what_is_too_long_or_knows_the_mark_is_not_graded() -> None:
    prompt = grade_prompt("Why?", "Because.", "m4rk")
    assert prompt is not None and prompt.count("m4rk") == 4
    assert grade_prompt("Why?", "x" * (MAX_CHARACTERS + 1), "m4rk") is None
    assert grade_prompt("Why m4rk?", "Because.", "m4rk") is None


def test_the_rule_is_read_as_written() -> None:
    route = (
        "light: light, large: large, cascade: {check: logprobs, accept_above: 70%, otherwise: consistency, samples: 5}"
    )
    text = f"version: 1\nroutes:\n  - name: default\n    match: {{}}\n    route: {{{route}}}\n"
    rule = policy_from_text(text, "policy.yaml", config()).routes[0].of(CascadeRule)
    assert rule == CascadeRule(check="logprobs", accept_above=0.7, samples=5, otherwise="consistency")
