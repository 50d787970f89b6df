"""What public reports say that model servers send. `LOG.md` names the reports."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.fixtures.gateways import Answer, Served
from tests.fixtures.wire import Message, Wire
from tests.wires.scripted import (
    DONE,
    HELLO,
    SSE_HEAD,
    STOP,
    USAGE,
    Pair,
    chunk,
    chunked,
    completion,
    cut,
    data,
    deltas_of,
    is_hit,
    scripted,
    sse,
    values_of,
    whole,
)

PATIENCE_S = 20.0  # only ends a failed test


@pytest.mark.parametrize("extra", [{"choices": None}, {}], ids=["null", "absent"])
async def test_a_usage_chunk_with_null_or_no_choices_is_hidden_from_who_did_not_ask(
    pair: Pair, extra: dict[str, Any]
) -> None:
    served, raw = pair
    usage = {"id": "c1", "object": "chat.completion.chunk", "created": 7, "model": "m", "usage": USAGE, **extra}
    raw.answer(sse(*HELLO, STOP, data(usage), DONE))
    for hit in (False, True):
        answer = await served.chat("hi", stream=True)
        assert deltas_of(answer.body) == "Hello"
        assert is_hit(answer) is hit
        assert all(value.get("choices") for value in values_of(answer.body)), answer.body
    asked = await served.chat("hi", stream=True, stream_options={"include_usage": True})
    assert values_of(asked.body)[-1]["usage"] == USAGE


async def embed(served: Served, given: Any, **fields: Any) -> Answer:
    return await served.post("/v1/embeddings", {"model": "m", "input": given, **fields})


def vectors(*lists: Any) -> bytes:
    items = [{"object": "embedding", "index": i, "embedding": values} for i, values in enumerate(lists)]
    return whole(json.dumps({"object": "list", "data": items, "model": "m", "usage": USAGE}).encode())


@pytest.mark.parametrize("given", ["a", ["a", "b"]])
async def test_vectors_of_nulls_are_passed_on_and_not_stored(pair: Pair, given: Any) -> None:
    served, raw = pair
    lists = [[None, None], [0.5, 1.0]][: 1 if isinstance(given, str) else len(given)]
    raw.answer(vectors(*lists))
    for calls in (1, 2):
        answer = await embed(served, given)
        assert answer.status == 200
        assert [item["embedding"] for item in answer.json["data"]] == lists
        assert len(raw.requests) == calls


async def test_events_that_end_in_bare_carriage_returns_are_not_held_back(either: Pair) -> None:
    served, raw = either
    seen = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(SSE_HEAD)
        for frame in (HELLO[0], HELLO[1]):
            await wire.send(chunked(frame.replace(b"\n", b"\r"))[:-5])
        async with asyncio.timeout(PATIENCE_S):
            await seen.wait()
        await wire.send(chunked(HELLO[2].replace(b"\n", b"\r"), STOP.replace(b"\n", b"\r"), DONE.replace(b"\n", b"\r")))

    raw.script = script
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    received = b""
    async with served.session.post(served.url + "/v1/chat/completions", json=body) as response:
        async for piece in response.content.iter_any():
            received += piece
            if b'"Hel"' in received:
                seen.set()
    assert seen.is_set()
    assert deltas_of(received) == "Hello"
    assert is_hit(await served.chat("hi", stream=True))


async def test_a_line_end_that_two_packets_share_is_one_line_end(either: Pair) -> None:
    served, raw = either
    text = json.dumps(chunk({"content": "Hello"})).encode()
    first, second = text.split(b', "choices"')
    parts = [b"data: " + first + b",\r", b'\ndata: "choices"' + second + b"\r", b"\n\r", b"\n"]

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(SSE_HEAD)
        for part in parts:
            await wire.send(chunked(part)[:-5])
            await asyncio.sleep(0)
        await wire.send(chunked(STOP.replace(b"\n", b"\r\n"), DONE.replace(b"\n", b"\r\n")))

    raw.script = script
    answer = await served.chat("hi", stream=False)
    assert answer.text == "Hello", answer.body


@pytest.mark.parametrize("space", [b"", b" "])
async def test_data_without_a_space_after_the_colon_is_data(either: Pair, space: bytes) -> None:
    served, raw = either
    raw.answer(sse(*(frame.replace(b"data: ", b"data:" + space) for frame in (*HELLO, STOP, DONE))))
    assert deltas_of((await served.chat("hi", stream=True)).body) == "Hello"
    assert (await served.chat("hi")).text == "Hello"
    assert len(raw.requests) == 1


LOGPROBS = b'{"content":[{"token":"Hi","logprob":-Infinity,"bytes":[72,105],"top_logprobs":[]}]}'


async def test_a_logprob_of_minus_infinity_in_a_stream_reaches_the_client(pair: Pair) -> None:
    served, raw = pair
    first = json.dumps(chunk({"role": "assistant", "content": "Hi"})).encode()
    first = first.replace(b'"finish_reason": null', b'"finish_reason": null, "logprobs": ' + LOGPROBS)
    raw.answer(sse(data(first), STOP, DONE))
    for stream in (True, False):
        answer = await served.chat("hi", stream=stream, logprobs=True)
        assert answer.status == 200, answer.body
        assert b"-Infinity" in answer.body
    gathered = await asyncio.gather(*(served.chat("joined", stream=s, logprobs=True) for s in (True, False, False)))
    assert [answer.status for answer in gathered] == [200] * 3


async def test_a_logprob_of_minus_infinity_in_a_whole_answer_reaches_the_client(pair: Pair) -> None:
    served, raw = pair
    body = json.dumps(completion({"content": "Hi"})).encode()
    raw.answer(whole(body.replace(b'"finish_reason"', b'"logprobs": ' + LOGPROBS + b', "finish_reason"')))
    for stream in (False, True, False):
        answer = await served.chat("hi", stream=stream, logprobs=True)
        assert answer.status == 200, answer.body
        assert b"-Infinity" in answer.body


async def test_an_interim_response_is_not_the_answer_and_the_connection_stays_in_step(either: Pair) -> None:
    served, raw = either
    hint = b"HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n"
    scripted(
        raw,
        [hint + hint + whole(json.dumps(completion({"content": text})).encode()) for text in ("one", "two", "three")],
    )
    for text in ("one", "two", "three"):
        assert (await served.chat(text)).text == text


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_that_is_shorter_than_its_length_is_an_error_and_not_stored(either: Pair, stream: bool) -> None:
    served, raw = either
    body = json.dumps(completion({"content": "Hi"})).encode()
    cut(raw, whole(body)[:-9])
    assert (await served.chat("hi", stream=stream)).status == 502
    raw.answer(whole(body))
    assert deltas_of((await served.chat("hi", stream=True)).body) == "Hi"


@pytest.mark.parametrize("status", [b"500 Oops", b"503 Busy", b"429 Slow"])
async def test_a_server_that_forbids_a_retry_is_called_once(pair: Pair, status: bytes) -> None:
    served, raw = pair
    raw.answer(whole(b'{"error":{"message":"no"}}', status=status, headers=b"x-should-retry: false\r\n"))
    answer = await served.chat("hi")
    assert answer.headers["x-should-retry"] == "false"
    assert len(raw.requests) == 1
