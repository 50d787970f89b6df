"""The events by which each protocol ends a stream. A stream that ends after any other event was cut."""

from __future__ import annotations

import orjson
import pytest

from gateway.dialects.anthropic import Anthropic
from gateway.dialects.kserve import KServe
from gateway.dialects.openai import OpenAI
from gateway.dialects.openai_responses import OpenAIResponses
from gateway.messages import Dialect, Event

USAGE = {"choices": [], "usage": {"prompt_tokens": 1}}
OVER = [
    (OpenAI(), [b"[DONE]"]),
    (OpenAI(), [{"choices": [{"delta": {}, "finish_reason": "length"}]}, USAGE]),
    (OpenAI(), [{"error": {"message": "overloaded"}}]),
    (Anthropic(), [{"type": "message_stop"}, {"type": "ping"}]),
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
    (Anthropic(), [{"type": "content_block_delta"}, {"type": "message_delta"}]),
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
