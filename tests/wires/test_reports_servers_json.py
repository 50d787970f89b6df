"""What public reports say of the JSON that model servers write. `LOG.md` names the reports."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.openai.dialect import OpenAI
from tests.wires.scripted import (
    DONE,
    HELLO,
    STOP,
    Pair,
    before_raw,
    chunk,
    completion,
    data,
    deltas_of,
    is_hit,
    message,
    scripted,
    sse,
    values_of,
    whole,
)


def escaped(text: str, **fields: Any) -> bytes:
    """Return a chunk whose text is these characters of JSON, escapes included."""
    return data(json.dumps(chunk({"content": "@"}, **fields)).encode().replace(b"@", text.encode()))


HALVES = sse(escaped("A \\ud83d"), escaped("\\ude00 B"), STOP, DONE)
ALONE = sse(escaped("A \\udcaf"), escaped(" B"), STOP, DONE)


async def test_an_emoji_whose_halves_two_events_have_is_an_emoji_in_the_whole_answer(pair: Pair) -> None:
    served, raw = pair
    raw.answer(HALVES)
    streamed, joined = await asyncio.gather(served.chat("hi", stream=True), served.chat("hi"))
    assert b"\\ud83d" in streamed.body and b"\\ude00" in streamed.body
    assert joined.status == 200, joined.body
    assert joined.text == "A \U0001f600 B"
    stored = await served.chat("hi")
    assert stored.status == 200
    assert stored.text == "A \U0001f600 B"


async def test_half_a_character_reaches_every_client_and_harms_no_lookup(pair: Pair) -> None:
    served, raw = pair
    raw.answer(ALONE)
    for stream in (True, False):
        answer = await served.chat("Tell me of alone halves", stream=stream)
        assert answer.status == 200, answer.body
        assert b"\\udcaf" in answer.body
    for words in ("Tell me of alone half", "Tell me of alone halves please"):
        assert (await served.chat(words)).status == 200
    translated = await message(served, "Tell me of it")
    assert translated.status == 200, translated.body
    assert b"\\udcaf" in translated.body


@pytest.mark.parametrize(
    ("texts", "read"), [(["\\ud83d", "\\ude00"], "\U0001f600"), (["a \\udcaf", " b"], "a \ufffd b")]
)
def test_a_text_with_halves_is_read_as_unicode(texts: list[str], read: str) -> None:
    """What judges answers encodes them, and must not fail on half a character."""
    call = OpenAI().parse("/v1/chat/completions", b'{"model": "m", "messages": [{"role": "user"}]}', {})
    frames = [escaped(text) for text in texts]
    payload = [*(frame.removeprefix(b"data: ").strip() for frame in (*frames, STOP)), b"[DONE]"]
    assert OpenAI().answer_text(call, payload, True) == read


@pytest.mark.parametrize("error", [b'"no \\udcaf"', b'{"message": "no \\udcaf", "type": "x"}'], ids=["text", "object"])
@pytest.mark.parametrize("stream", [False, True])
async def test_half_a_character_in_an_error_is_no_fault_of_the_gateway(
    tmp_path: Path, stream: bool, error: bytes
) -> None:
    for adapter in ("openai", "anthropic"):
        async with before_raw(tmp_path / adapter, adapter=adapter) as (served, raw):
            for status in (b"200 OK", b"400 Bad Request"):
                raw.answer(whole(b'{"type": "error", "error": %b}' % error, status=status))
                for answer in (
                    await served.chat("hi", stream=stream),
                    await message(served, stream=stream),
                    await served.post("/v1/responses", {"model": "m", "input": "hi", "stream": stream}),
                ):
                    assert answer.status in (200, 400, 502), answer.body
                    assert b"internal" not in answer.body
                raw.answer(sse(data(b'{"type": "error", "error": %b}' % error)))
                for answer in (await served.chat("ho", stream=stream), await message(served, "ho", stream=stream)):
                    assert b"internal" not in answer.body


async def test_half_a_character_in_a_request_is_refused_with_its_place(pair: Pair) -> None:
    served, raw = pair
    body = b'{"model": "m", "messages": [{"role": "user", "content": "a \\ud83d b"}]}'
    answer = await served.post("/v1/chat/completions", body)
    assert answer.status == 400
    assert answer.json["error"]["type"] == "invalid_request_error"
    assert "surrogate" in answer.json["error"]["message"]
    assert "column" in answer.json["error"]["message"]
    assert raw.requests == []


async def test_tool_calls_of_null_are_none(pair: Pair) -> None:
    served, raw = pair
    raw.answer(whole(json.dumps(completion({"content": "Hello", "tool_calls": None, "refusal": None})).encode()))
    first = await served.chat("hi")
    assert first.json["choices"][0]["message"] == {
        "role": "assistant", "content": "Hello", "tool_calls": None, "refusal": None,
    }  # fmt: skip
    streamed = await served.chat("hi", stream=True)
    assert is_hit(streamed), "it called no tool"
    assert deltas_of(streamed.body) == "Hello"
    translated = await message(served)
    assert translated.json["content"] == [{"type": "text", "text": "Hello"}]


async def test_an_empty_role_in_the_deltas_is_no_role_of_the_whole_answer(pair: Pair) -> None:
    served, raw = pair
    deltas = [{"role": "", "content": "Hel"}, {"role": "", "content": "lo"}]
    raw.answer(sse(*(data(chunk(delta)) for delta in deltas), STOP, DONE))
    assert (await served.chat("hi")).json["choices"][0]["message"] == {"role": "assistant", "content": "Hello"}
    assert (await message(served)).json["role"] == "assistant"


@pytest.mark.parametrize("last", [None, {}], ids=["null", "empty"])
async def test_a_delta_of_null_says_nothing(pair: Pair, last: Any) -> None:
    served, raw = pair
    raw.answer(sse(*HELLO, data(chunk(last, "stop", content_filter_results={})), DONE))
    assert deltas_of((await served.chat("hi", stream=True)).body) == "Hello"
    assert (await served.chat("hi")).text == "Hello"
    assert len(raw.requests) == 1
    assert (await message(served)).json["content"] == [{"type": "text", "text": "Hello"}]
    streamed = await message(served, "ho", stream=True)
    assert b"message_stop" in streamed.body


@pytest.mark.parametrize(
    ("adapter", "path", "request_body"),
    [
        ("tfserving", "/v1/models/half:predict", b'{"instances": [1.0, 2.0]}'),
        ("torchserve", "/predictions/half", b'{"data": 1}'),
    ],
)
@pytest.mark.parametrize(
    "said", [b'{"predictions": [6e-07.0, 1.0]}', b'{"number": NaN}', b'{"predictions": [Infinity]}']
)
async def test_numbers_that_json_does_not_have_come_through_to_the_byte(
    tmp_path: Path, adapter: str, path: str, request_body: bytes, said: bytes
) -> None:
    async with before_raw(tmp_path, adapter=adapter) as (served, raw):
        raw.answer(whole(said))
        for _ in range(2):
            answer = await served.post(path, request_body)
            assert (answer.status, answer.body) == (200, said)


async def test_two_choices_that_come_in_any_order_stay_apart(pair: Pair) -> None:
    served, raw = pair
    words = [(1, "B"), (0, "A"), (1, "b"), (0, "a")]
    deltas = [{"index": index, "delta": {"content": text}, "finish_reason": None} for index, text in words]
    ends = [{"index": index, "delta": {}, "finish_reason": "stop"} for index in (1, 0)]
    both = [chunk({}) | {"choices": [each]} for each in deltas] + [chunk({}) | {"choices": ends}]
    raw.answer(sse(*map(data, both), DONE))
    for stored in (False, True):
        choices = (await served.chat("hi", n=2)).json["choices"]
        assert [(each["index"], each["message"]["content"]) for each in choices] == [(0, "Aa"), (1, "Bb")]
        assert len(raw.requests) == 1, stored
    streamed = values_of((await served.chat("hi", n=2, stream=True)).body)
    assert streamed == both


async def test_a_choice_that_never_finishes_is_not_stored(pair: Pair) -> None:
    served, raw = pair
    deltas = [
        {"index": index, "delta": {"content": text}, "finish_reason": None} for index, text in ((0, "A"), (1, "B"))
    ]
    ends = [{"index": 0, "delta": {}, "finish_reason": "stop"}] * 2
    raw.answer(sse(*(data(chunk({}) | {"choices": [each]}) for each in deltas + ends), DONE))
    for calls in (1, 2):
        answer = await served.chat("hi", n=2)
        assert answer.status == 200
        assert [each["finish_reason"] for each in answer.json["choices"]] == ["stop", None]
        assert len(raw.requests) == calls


async def test_a_key_that_occurs_twice_in_a_request_is_refused_by_name(pair: Pair) -> None:
    served, raw = pair
    body = b'{"model": "m", "tools": [], "messages": [{"role": "user", "content": "hi"}], "tools": [{"type": "x"}]}'
    answer = await served.post("/v1/chat/completions", body)
    assert answer.status == 400
    assert answer.json["error"]["param"] == "tools"
    assert raw.requests == []


async def test_events_without_a_blank_line_between_them_are_not_stored(pair: Pair) -> None:
    served, raw = pair
    raw.answer(sse(HELLO[1].strip() + b"\n" + HELLO[2], STOP, DONE))
    for calls in (1, 2):
        answer = await served.chat("hi", stream=True)
        assert (answer.status, not is_hit(answer), len(raw.requests)) == (200, True, calls)
        assert b'"Hel"' in answer.body and b'"lo"' in answer.body
        assert answer.body.endswith(DONE)


@pytest.mark.parametrize("joined", [False, True], ids=["whole", "stream"])
async def test_an_event_of_several_data_lines_is_one_event(pair: Pair, joined: bool) -> None:
    served, raw = pair
    frames = []
    for frame in (*HELLO, STOP):
        pretty = json.dumps(json.loads(frame.removeprefix(b"data: ")), indent=1).encode()
        frames.append(b"event: message\n" + b"".join(b"data: %b\n" % line for line in pretty.split(b"\n")) + b"\n")
    raw.answer(sse(*frames, DONE))
    for _ in range(2):
        answer = await served.chat("hi", stream=joined)
        if joined:
            lines = [line.removeprefix(b"data: ") for line in answer.body.split(b"\n") if line.startswith(b"data: ")]
            assert b"".join(lines).count(b'"content"') == 3
        else:
            assert answer.text == "Hello"
    assert len(raw.requests) == 1


async def test_logprobs_of_chunks_without_text_are_kept(pair: Pair) -> None:
    served, raw = pair
    tokens = [{"token": token, "logprob": -0.5, "bytes": None, "top_logprobs": []} for token in ("<t>", "Hel", "lo")]
    chunks = [chunk(delta) for delta in ({"role": "assistant"}, {"content": "Hel"}, {"content": "lo"})]
    for each, token in zip(chunks, tokens, strict=True):
        each["choices"][0]["logprobs"] = {"content": [token]}
    raw.answer(sse(*map(data, chunks), STOP, DONE))
    for _ in range(2):
        answer = await served.chat("hi", logprobs=True)
        assert answer.json["choices"][0]["logprobs"]["content"] == tokens
    assert len(raw.requests) == 1


@pytest.mark.parametrize("fields", [{"choices": None}, {}, {"choices": []}], ids=["null", "absent", "empty"])
async def test_an_error_with_status_200_is_passed_on_and_not_stored(pair: Pair, fields: dict[str, Any]) -> None:
    served, raw = pair
    said = {"id": None, "object": None, "error": {"message": "no such thing", "code": 400}, **fields}
    raw.answer(whole(json.dumps(said).encode()))
    for calls in (1, 2):
        answer = await served.chat("hi")
        assert (answer.status, answer.json, len(raw.requests)) == (200, said, calls)
    streamed = await served.chat("hi", stream=True)
    assert b"no such thing" in streamed.body
    translated = await message(served)
    assert translated.status >= 400
    assert "no such thing" in translated.json["error"]["message"]


@pytest.mark.parametrize("finish", ["error", "", "guardrail_intervened"])
async def test_a_reason_that_no_library_knows_is_passed_on_and_not_stored(pair: Pair, finish: str) -> None:
    served, raw = pair
    odd = completion({"content": "Hel"})
    odd["choices"][0]["finish_reason"] = finish
    raw.answer(whole(json.dumps(odd).encode()))
    for calls in (1, 2):
        answer = await served.chat("hi")
        assert (answer.status, answer.json, len(raw.requests)) == (200, odd, calls)
    assert values_of((await served.chat("hi", stream=True)).body)[-1]["choices"][0]["finish_reason"] == finish


async def test_choices_without_an_index_are_numbered_in_a_stream(pair: Pair) -> None:
    served, raw = pair
    call = {"id": "t1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
    choices = [{"message": {"role": "assistant", "content": text}, "finish_reason": "stop"} for text in "AB"]
    choices[1]["message"] |= {"content": None, "tool_calls": [call]}
    raw.answer(whole(json.dumps(completion({}) | {"choices": choices}).encode()))
    streamed = values_of((await served.chat("hi", stream=True)).body)
    said = [(choice["index"], choice["delta"]) for value in streamed for choice in value["choices"]]
    assert {index for index, delta in said if delta.get("content")} == {0}
    assert {index for index, delta in said if delta.get("tool_calls")} == {1}


async def test_more_inputs_than_a_server_takes_at_once_are_the_clients_affair(pair: Pair) -> None:
    served, raw = pair
    refusal = whole(b'{"error":{"message":"at most 2 inputs"}}', status=b"413 Payload Too Large")
    items = [{"object": "embedding", "index": i, "embedding": [0.5, 1.0]} for i in range(2)]
    taken = whole(json.dumps({"object": "list", "data": items, "model": "m"}).encode())
    scripted(raw, [refusal, taken])
    answer = await served.post("/v1/embeddings", {"model": "m", "input": ["a", "b", "c"]})
    assert (answer.status, answer.json["error"]["message"]) == (413, "at most 2 inputs")
    two = await asyncio.gather(*(served.post("/v1/embeddings", {"model": "m", "input": [t, t + t]}) for t in "xy"))
    assert [each.status for each in two] == [200, 200]
    assert max(len(json.loads(request.body)["input"]) for request in raw.requests[1:]) == 2
