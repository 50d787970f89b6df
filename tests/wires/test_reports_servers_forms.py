"""What public reports say of the forms of answers, whole and in streams. `LOG.md` names the reports."""

from __future__ import annotations

import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest

from tests.fixtures.wire import connected
from tests.wires.scripted import (
    DONE,
    STOP,
    Pair,
    before_raw,
    chunk,
    completion,
    data,
    deltas_of,
    is_hit,
    message,
    sse,
    values_of,
    whole,
)

BODY = json.dumps(completion({"content": "Hello"})).encode()


def texts(*pieces: str, **fields: Any) -> list[bytes]:
    return [data(chunk({"content": piece}, **fields)) for piece in pieces]


@pytest.mark.parametrize(
    ("pieces", "text"),
    [
        (["Hel", "Hello", "Hello you", "Hello you"], "Hello you"),
        (["a", "ab", "abc"], "abc"),
        (["na", "na", "na"], "nanana"),
        (["a", "ab"], "aab"),
        (["a", "ab", "c", "cd"], "aabccd"),
        (["go", " go", " go on"], "go go go on"),
    ],
)
async def test_deltas_that_each_have_the_whole_text_so_far_are_told_from_pieces(
    pair: Pair, pieces: list[str], text: str
) -> None:
    served, raw = pair
    raw.answer(sse(*texts(*pieces), STOP, DONE))
    assert deltas_of((await served.chat("hi", stream=True)).body) == "".join(pieces), "streams go on as they come"
    assert (await served.chat("hi")).text == text
    assert len(raw.requests) == 1


@pytest.mark.parametrize("last", ["beside", "alone"])
async def test_a_chunk_with_the_whole_message_repeats_the_deltas(pair: Pair, last: str) -> None:
    served, raw = pair
    frames, said = [], ""
    for piece in ("Hel", "lo"):
        said += piece
        each = chunk({"role": "assistant", "content": piece})
        if last == "beside":
            each["choices"][0]["message"] = {"role": "assistant", "content": said}
        frames.append(data(each))
    end = chunk({}, "stop")
    end["choices"][0] |= {"message": {"role": "assistant", "content": said}}
    raw.answer(sse(*frames, data(end), DONE))
    for _ in range(2):
        assert (await served.chat("hi")).text == "Hello"
    assert len(raw.requests) == 1
    streamed = await message(served, stream=True)
    assert streamed.body.count(b"text_delta") == 2


async def test_a_text_with_the_end_marker_in_it_is_no_end(pair: Pair) -> None:
    served, raw = pair
    raw.answer(sse(*texts("data: [DONE]", "\n\n[DONE]", " go on"), STOP, DONE))
    for stream in (True, False):
        answer = await served.chat("hi", stream=stream)
        assert "data: [DONE]\n\n[DONE] go on" in (deltas_of(answer.body) if stream else answer.text)
    assert len(raw.requests) == 1


USAGE = {"input_tokens": 1, "output_tokens": 1}
START = {
    "type": "message_start",
    "message": {"id": "msg_1", "type": "message", "role": "assistant", "model": "m", "content": [], "usage": USAGE},
}
BLOCK = [
    {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
    {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}},
    {"type": "content_block_stop", "index": 0},
]
END = {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {"output_tokens": 2}}
STOPPED = {"type": "message_stop"}
COUNTS = {"type": "message_delta", "usage": {"output_tokens": 2}}


@pytest.mark.parametrize(
    "events",
    [
        [START, *BLOCK, END],
        [START, *BLOCK, {**END, "usage": None}, STOPPED],
        [START, *BLOCK, END, COUNTS, STOPPED],
        [START, *BLOCK[:2], END, STOPPED],
    ],
    ids=["no stop", "no usage", "no delta", "no block's stop"],
)
async def test_an_anthropic_stream_that_lacks_what_says_nothing_is_complete(
    tmp_path: Path, events: list[dict[str, Any]]
) -> None:
    async with before_raw(tmp_path, adapter="anthropic") as (served, raw):
        raw.answer(sse(*(b"event: %b\n" % event["type"].encode() + data(event) for event in events)))
        assert b'"error"' not in (await message(served, stream=True)).body
        joined = await message(served)
        assert is_hit(joined)
        assert joined.json["content"] == [{"type": "text", "text": "Hi"}]
        streamed = await served.chat("hi", stream=True)
        assert deltas_of(streamed.body) == "Hi"
        assert all("error" not in value for value in values_of(streamed.body))
        assert (await served.chat("hi")).text == "Hi"
        assert len(raw.requests) == 2


@pytest.mark.parametrize("path", [b"/", b"/v1/models", b"/v1/messages", b"/v1/chat/completions"])
async def test_a_head_request_is_passed_on_and_its_answer_has_no_body(either: Pair, path: bytes) -> None:
    served, raw = either
    raw.answer(
        b"HTTP/1.1 405 Method Not Allowed\r\nAllow: POST\r\nContent-Type: text/plain\r\nContent-Length: 42\r\n\r\n"
    )
    async with connected(served.url) as wire:
        for _ in range(2):
            await wire.send(b"HEAD %b HTTP/1.1\r\nHost: g\r\n\r\n" % path)
            answer = await wire.message(headless=True)
            assert (answer.status, answer.all("allow"), answer.all("content-length")) == (405, ["POST"], ["42"])
    assert [request.start for request in raw.requests] == [f"HEAD {path.decode()} HTTP/1.1"] * 2


@pytest.mark.parametrize("encoding", ["identity", "gzip", "deflate"])
async def test_compressed_tensors_keep_the_length_of_their_header(tmp_path: Path, encoding: str) -> None:
    head = {"name": "a", "shape": [2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}
    asked = json.dumps({"inputs": [head], "outputs": [{"name": "o", "parameters": {"binary_data": True}}]}).encode()
    body = asked + bytes(8)
    told = {"name": "o", "shape": [1], "datatype": "BYTES", "parameters": {"binary_data_size": 7}}
    header = json.dumps({"model_name": "m", "model_version": "1", "outputs": [told]}).encode()
    tensor = b"\x03\x00\x00\x00a\xffb"
    sent = {"identity": body, "gzip": gzip.compress(body), "deflate": zlib.compress(body)}[encoding]
    headers = {"Inference-Header-Content-Length": str(len(asked)), "Content-Encoding": encoding}
    async with before_raw(tmp_path, adapter="kserve") as (served, raw):
        binary = b"Content-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n" % len(header)
        raw.answer(whole(header + tensor, headers=binary))
        for _ in range(2):
            answer = await served.post("/v2/models/m/infer", sent, headers)
            assert answer.status == 200, answer.body
            assert answer.body[int(answer.headers["Inference-Header-Content-Length"]) :] == tensor
        assert len(raw.requests) == 1


@pytest.mark.parametrize("encoding", [b"gzip", b"x-gzip", b"GZIP"])
async def test_an_answer_that_is_compressed_unasked_is_read(either: Pair, encoding: bytes) -> None:
    served, raw = either
    head = b"Content-Type: application/json\r\nContent-Encoding: %b\r\n" % encoding
    raw.answer(whole(gzip.compress(BODY), headers=head))
    assert (await served.chat("hi")).text == "Hello"
    assert is_hit(await served.chat("hi", stream=True))
    assert (await message(served)).json["content"] == [{"type": "text", "text": "Hello"}]


async def test_an_error_that_is_compressed_unasked_can_be_read(either: Pair) -> None:
    served, raw = either
    head = b"Content-Type: application/json\r\nContent-Encoding: gzip\r\n"
    refusal = gzip.compress(b'{"error":{"message":"temperature is not in its range","type":"invalid_request_error"}}')
    raw.answer(whole(refusal, status=b"400 Bad Request", headers=head))
    assert (await served.chat("hi")).json["error"]["message"] == "temperature is not in its range"
    translated = await message(served)
    assert (translated.status, translated.json["error"]["message"]) == (400, "temperature is not in its range")


def response_events(*, indices: bool, output: bool) -> list[dict[str, Any]]:
    """A stream of responses as llama.cpp and Lemonade write it: without places, ids and numbers."""
    item = {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Hello"}]}
    done = {
        "id": "resp_1",
        "object": "response",
        "status": "completed",
        "model": "m",
        "output": [item] if output else [],
    }
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": {**done, "status": "in_progress", "output": []}},
        {"type": "response.output_item.added", "item": {**item, "content": []}},
        {"type": "response.output_text.delta", "delta": "Hello"},
        {"type": "response.output_item.done", "item": item},
        {"type": "response.completed", "response": done},
    ]
    return [{**event, "output_index": 0} if indices and "item" in event else event for event in events]


@pytest.mark.parametrize("output", [True, False], ids=["output", "no output"])
@pytest.mark.parametrize("indices", [True, False], ids=["indices", "no indices"])
async def test_a_stream_of_responses_that_lacks_places_and_numbers_is_read(
    pair: Pair, indices: bool, output: bool
) -> None:
    served, raw = pair
    events = response_events(indices=indices, output=output)
    raw.answer(sse(*(b"event: %b\n" % event["type"].encode() + data(event) for event in events)))
    body = {"model": "m", "input": "hi"}
    streamed = await served.post("/v1/responses", {**body, "stream": True})
    lines = [line.removeprefix(b"data: ") for line in streamed.body.split(b"\n") if line.startswith(b"data: ")]
    assert [json.loads(line) for line in lines] == events
    joined = await served.post("/v1/responses", body)
    assert joined.status == 200, joined.body
    assert is_hit(joined)
    assert joined.json["output"][0]["content"][0]["text"] == "Hello"
    assert len(raw.requests) == 1


USAGES: list[Any] = [None, [], {}, "x", {"prompt_tokens": None}, {"prompt_tokens": "12"}, {"prompt_tokens": 1.5}]
USAGES += [
    {"prompt_tokens": 1, "prompt_tokens_details": "y", "completion_tokens_details": "x"},
    {"prompt_tokens": 10**30},
]


@pytest.mark.parametrize("usage", USAGES, ids=str)
async def test_a_usage_of_any_form_spoils_no_answer(pair: Pair, usage: Any) -> None:
    served, raw = pair
    raw.answer(whole(json.dumps(completion({"content": "Hello"}, usage=usage)).encode()))
    for stream in (False, True):
        assert (await served.chat("hi", stream=stream)).status == 200
    assert (await message(served)).status == 200
    raw.answer(sse(*texts("Hel", "lo"), data(chunk({}, "stop", usage=usage)), DONE))
    assert b"message_stop" in (await message(served, "ho", stream=True)).body
    assert (await served.chat("ho")).text == "Hello"
