"""The events by which each protocol ends a stream. A stream that ends after any other event was cut."""

from __future__ import annotations

import orjson
import pytest

from gateway.calls import Dialect
from gateway.dialects.anthropic.dialect import Anthropic
from gateway.dialects.openai.dialect import OpenAI
from gateway.dialects.openai.responses import OpenAIResponses
from gateway.features.kserve.dialect import KServe
from gateway.messages import Event

USAGE = {"choices": [], "usage": {"prompt_tokens": 1}}
STOPPED = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}


def finished(index: int) -> dict[str, object]:
    return {"index": index, "delta": {}, "finish_reason": "stop"}


def spoken(index: int) -> dict[str, object]:
    return {"index": index, "delta": {"content": "a"}, "finish_reason": None}


OVER = [
    (OpenAI(), [b"[DONE]"]),
    (OpenAI(), [{"choices": [{"delta": {}, "finish_reason": "length"}]}, USAGE]),
    (OpenAI(), [{"choices": [{"delta": {"content": "a"}}]}, {"error": {"message": "overloaded"}}]),
    (OpenAI(), [{"choices": [finished(0), finished(1)]}]),
    (OpenAI(), [{"choices": [spoken(1)]}, {"choices": [finished(0)]}, {"choices": [finished(1)]}]),
    (OpenAI(), [{"choices": [finished(0)]}, {"choices": [{"index": 0, "content_filter_results": {}}]}]),
    (Anthropic(), [{"type": "message_stop"}, {"type": "ping"}]),
    (Anthropic(), [STOPPED, {"type": "ping"}]),
    (Anthropic(), [{"type": "error", "error": {"type": "overloaded_error"}}]),
    (OpenAIResponses(), [{"type": "response.completed"}, b"[DONE]"]),
    (OpenAIResponses(), [{"type": "response.failed"}]),
    (OpenAIResponses(), [{"type": "error"}]),
    (KServe(), [{"text_output": "a"}]),
    (KServe(), []),
]
CUT = [
    (OpenAI(), []),
    (OpenAI(), [{"choices": [{"delta": {"content": "a"}, "finish_reason": None}]}, USAGE]),
    (OpenAI(), [b'{"choices": [{"finish_reason": "st']),
    (OpenAI(), [b"[1]", b"null", b'{"choices": [7]}', b'{"choices": 7}']),
    (OpenAI(), [{"choices": [spoken(1)]}, {"choices": [finished(0)]}]),
    (Anthropic(), [{"type": "content_block_delta"}, {"type": "message_delta"}]),
    (Anthropic(), [{"type": "message_delta", "delta": {"stop_reason": None}}]),
    (Anthropic(), []),
    (OpenAIResponses(), [{"type": "response.output_text.delta"}]),
    (KServe(), [b'{"text_output": "a']),
]


def events(data: list[object]) -> list[Event]:
    return [Event(each if isinstance(each, bytes) else orjson.dumps(each)) for each in data]


@pytest.mark.parametrize(("dialect", "data"), OVER)
def test_these_end_a_stream(dialect: Dialect, data: list[object]) -> None:
    assert dialect.is_over(events(data))


@pytest.mark.parametrize(("dialect", "data"), CUT)
def test_these_do_not(dialect: Dialect, data: list[object]) -> None:
    assert not dialect.is_over(events(data))


@pytest.mark.parametrize(
    ("dialect", "data", "missing"),
    [
        (OpenAI(), [{"choices": [finished(0)]}, USAGE], [b"[DONE]"]),
        (OpenAI(), [{"choices": [finished(0)]}, b"[DONE]", {"cost": 1}], []),
        (OpenAI(), [{"error": {"message": "overloaded"}}], []),
        (Anthropic(), [STOPPED], [b'{"type":"message_stop"}']),
        (Anthropic(), [STOPPED, {"type": "message_stop"}], []),
        (Anthropic(), [{"type": "error", "error": {}}], []),
        (OpenAIResponses(), [{"type": "response.completed"}], []),
        (KServe(), [], []),
    ],
)
def test_an_end_marker_that_a_server_left_out_is_added(
    dialect: Dialect, data: list[object], missing: list[bytes]
) -> None:
    assert [event.data for event in dialect.missing_end(events(data))] == missing
