"""A usage that no backend should report: it spoils no answer, no sum and no price."""

from __future__ import annotations

import json
from typing import Any

import pytest

from gateway.calls import Call
from gateway.dialects.json_body import MAX_TOKENS, count_of, load_json
from gateway.dialects.known import find_dialect
from gateway.dialects.usage import UsageReader, usage_in
from gateway.messages import Event
from gateway.outcomes import Admission
from gateway.prices import Price, Tokens
from tests.dialects.test_translation import through, to_claude, to_openai

NO_COUNTS = (
    *("null", '"abc"', "-5", '"-5"', "Infinity", "-Infinity", "NaN", "true", "[]", "[1]", "{}", '"1e5"', '"NaN"'),
    *("1e300", "9223372036854775807", "99999999999999999999999", str(MAX_TOKENS + 1)),
)
COUNTS = {"12": 12, "12.0": 12, "12.7": 12, '"12"': 12, '" 12.0 "': 12, "0": 0, str(MAX_TOKENS): MAX_TOKENS}
MESSAGE = {"id": "m", "type": "message", "role": "assistant", "model": "m"}
ANSWERS: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}]
    },
    "/v1/messages": {**MESSAGE, "stop_reason": "end_turn", "content": [{"type": "text", "text": "hi"}]},
    "/v1/responses": {
        "object": "response", "status": "completed", "id": "r", "created_at": 1, "model": "m",
        "output": [{"type": "message", "id": "i", "role": "assistant", "status": "completed",
                    "content": [{"type": "output_text", "text": "hi", "annotations": []}]}],
    },
}  # fmt: skip


def call_of(path: str) -> Call:
    dialect = find_dialect("POST", path)
    assert dialect is not None
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "q"}], "input": "q"}
    return dialect.parse(path, json.dumps(body).encode(), {})


def answer_with(path: str, usage: str) -> bytes:
    return json.dumps({**ANSWERS[path], "usage": "USAGE"}).replace('"USAGE"', usage).encode()


def usage_with(count: str, details: str = "null") -> str:
    counts = ("prompt_tokens", "input_tokens", "completion_tokens", "output_tokens", "total_tokens")
    parts = ("prompt_tokens_details", "input_tokens_details", "completion_tokens_details", "output_tokens_details")
    fields = [f'"{name}": {count}' for name in counts] + [f'"{name}": {details}' for name in parts]
    return f"{{{', '.join(fields)}}}"


@pytest.mark.parametrize("count", COUNTS)
def test_a_count_may_be_a_float_or_a_text(count: str) -> None:
    assert count_of(load_json(count)) == COUNTS[count]


@pytest.mark.parametrize("path", ANSWERS)
@pytest.mark.parametrize("count", NO_COUNTS)
def test_what_is_no_count_counts_as_not_reported(path: str, count: str) -> None:
    details = f'{{"cached_tokens": {count}, "reasoning_tokens": {count}}}'
    for usage in (
        usage_with(count),
        usage_with(count, details),
        usage_with("7", details),
        usage_with("7", count),
        count,
    ):
        data = answer_with(path, usage)
        call = call_of(path)
        read = call.dialect.inspect(call, [data], False)
        assert read.admission is Admission.STORED
        assert read.tokens[:2] in ((0, 0), (7, 7)), usage
        assert read.tokens[2:] == (0, 0, 0)
        reader = UsageReader("application/json")
        reader.feed(data)
        assert reader.result() == usage_in(load_json(data))
        reported = reader.result().tokens
        assert reported is None or reported[:2] == (7, 7)


@pytest.mark.parametrize("count", [*NO_COUNTS, *COUNTS])
def test_an_odd_usage_fails_no_translation(count: str) -> None:
    for usage in (count, usage_with(count), usage_with("7", count)):
        assert json.loads(to_openai().whole(answer_with("/v1/chat/completions", usage)))["content"][0]["text"] == "hi"
        choice = json.loads(to_claude().whole(answer_with("/v1/messages", usage)))["choices"][0]
        assert choice["message"]["content"] == "hi"
        delta = {"choices": [{"index": 0, "delta": {"content": "hi"}, "finish_reason": "stop"}]}
        chunks = [json.dumps(delta).encode(), f'{{"choices": [], "usage": {usage}}}'.encode(), b"[DONE]"]
        assert b"message_stop" in through(to_openai(stream=True), map(Event, chunks))[-1]
        begun = json.dumps({"type": "message_start", "message": {**MESSAGE, "content": [], "usage": "USAGE"}})
        ended = json.dumps({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": "USAGE"})
        events = [each.replace('"USAGE"', usage).encode() for each in (begun, ended, '{"type": "message_stop"}')]
        assert through(to_claude(stream=True), map(Event, events))[-1] == b"[DONE]"


COHERE = {"billed_units": {"input_tokens": 5, "output_tokens": 3}, "tokens": {"input_tokens": 80, "output_tokens": 3}}
FORMS: list[tuple[dict[str, Any], Tokens]] = [
    ({"meta": COHERE}, Tokens(5, 3)),
    ({"meta": {"billed_units": {"search_units": 1}, "tokens": {"input_tokens": 80}}}, Tokens(80, 0)),
    ({"usage": COHERE}, Tokens(5, 3)),
    ({"type": "message-end", "delta": {"finish_reason": "COMPLETE", "usage": COHERE}}, Tokens(5, 3)),
    (
        {"usage": {"inputTokens": 10, "outputTokens": 5, "cacheReadInputTokens": 80, "cacheWriteInputTokens": 20}},
        Tokens(110, 5, cached=80, written=20),
    ),
    (
        {"usage": {"input_tokens": 10, "output_tokens": 5, "cache_read_input_tokens": 80}},
        Tokens(90, 5, cached=80),
    ),
    (
        {"usage": {"prompt_tokens": 100, "completion_tokens": 5, "cache_read_input_tokens": 80}},
        Tokens(100, 5, cached=80),
    ),
]


@pytest.mark.parametrize(("answer", "tokens"), FORMS)
def test_tokens_count_as_their_provider_bills_them(answer: dict[str, Any], tokens: Tokens) -> None:
    """langchain-ai/langsmith-sdk #1858: what Bedrock counts apart was taken for a part of the input."""
    assert usage_in(answer).tokens == tokens


@pytest.mark.parametrize("cached", [0, 90, 110, 10**9])
def test_more_cached_tokens_than_input_cost_no_less_than_nothing(cached: int) -> None:
    price = Price(input_per_million=10.0, output_per_million=10.0, cached_input_per_million=1.0)
    assert 1e-4 <= price.of(100, 0, cached) <= 1e-3
