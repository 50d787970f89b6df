"""A whole answer that is asked for as a stream again and again is taken apart once."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.cache.hits import EVENT_BYTES, MAX_ANSWER_BYTES, SplitCache
from gateway.calls import Call
from gateway.dialects.known import DECLARED, DIALECTS, NO_PATH
from gateway.dialects.openai.dialect import OpenAI
from gateway.errors import MalformedResponse
from gateway.messages import Event

pytestmark = pytest.mark.slow  # starts nothing, takes seconds

CHAT = "/v1/chat/completions"


def call(**fields: object) -> Call:
    messages = [{"role": "user", "content": "hello"}]
    body = {"model": "m", "messages": messages, "stream": True, **fields}
    return OpenAI().parse(CHAT, orjson.dumps(body), {})


def answer(text: str) -> bytes:
    message = {"role": "assistant", "content": text}
    usage = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}
    choices = [{"index": 0, "message": message, "finish_reason": "stop"}]
    return orjson.dumps({"id": "1", "object": "chat.completion", "created": 1, "choices": choices, "usage": usage})


def test_it_gives_what_the_dialect_gives_and_asks_it_once() -> None:
    apart, asked = SplitCache(), call()
    whole = answer("one two three four five six seven eight nine ten")
    events = apart.events(asked, whole)
    assert events == OpenAI().events(asked, whole)
    assert apart.events(call(), bytes(bytearray(whole))) is events, "equal bytes, another object"
    assert apart.events(asked, answer("something else")) != events


def test_what_was_not_asked_for_longest_makes_room() -> None:
    asked, wholes = call(), [answer(f"answer number {i}") for i in range(4)]
    sizes = [len(w) + sum(EVENT_BYTES + len(e.data) for e in OpenAI().events(asked, w)) for w in wholes]
    apart = SplitCache(max_bytes=sum(sizes[:3]))
    first, second, _ = (apart.events(asked, whole) for whole in wholes[:3])
    assert apart.events(asked, wholes[0]) is first
    apart.events(asked, wholes[3])
    assert apart._cache.weight <= sum(sizes[:3])
    assert apart.events(asked, wholes[0]) is first
    assert apart.events(asked, wholes[1]) is not second


def test_a_huge_answer_pushes_nothing_out() -> None:
    apart, asked, small = SplitCache(), call(), answer("small")
    events = apart.events(asked, small)
    apart.events(asked, answer("word " * MAX_ANSWER_BYTES))
    assert apart.events(asked, small) is events
    assert apart._cache.weight < MAX_ANSWER_BYTES


def test_what_cannot_be_read_is_refused_each_time() -> None:
    apart = SplitCache()
    for _ in range(2):
        with pytest.raises(MalformedResponse):
            apart.events(call(), b'{"error": {"message": "no"}}')
    assert apart._cache.weight == 0


@given(st.lists(st.sampled_from((b"[DONE]", b'{"choices":[],"usage":{}}', b'{"choices":[{"usage":1}]}', b"{}", b"x"))))
def test_every_dialect_shows_of_all_events_what_it_shows_of_each(data: list[bytes]) -> None:
    events = tuple(map(Event, data))
    # Clients see events only of the dialects that they speak.
    clients = [dialect for name, dialect in DIALECTS.items() if DECLARED[name].path is not NO_PATH]
    for asked in (call(), call(stream_options={"include_usage": True}), call(stream_options={})):
        for dialect in clients:
            shown = tuple(event for event in events if dialect.shown(asked, event))
            assert tuple(dialect.visible_events(asked, events)) == shown
