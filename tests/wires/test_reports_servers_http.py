"""What public reports say of HTTP between model servers, libraries and proxies. `LOG.md` names the reports."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.fixtures.gateways import BOTH_CACHES, NO_CACHE
from tests.fixtures.wire import Message, Wire, connected
from tests.wires.scripted import (
    DONE,
    HELLO,
    STOP,
    Pair,
    before_raw,
    chunked,
    completion,
    cut,
    deltas_of,
    is_hit,
    message,
    scripted,
    sse,
    whole,
)

BODY = json.dumps(completion({"content": "Hello"})).encode()
PATIENCE_S = 5.0  # only ends a failed test
ASKED = json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]}).encode()
HEAD = b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Type: application/json\r\n"


def stream_of(head: bytes) -> bytes:
    return b"HTTP/1.1 200 OK\r\n" + head + b"Transfer-Encoding: chunked\r\n\r\n" + chunked(*HELLO, STOP, DONE)


TYPES = pytest.mark.parametrize(
    "head", [b"Content-Type: text/plain; charset=utf-8\r\n", b"", b"Content-Type: application/octet-stream\r\n"],
    ids=["text", "none", "octets"],
)  # fmt: skip


@TYPES
@pytest.mark.parametrize("policy", [NO_CACHE, BOTH_CACHES], ids=["uncached", "cached"])
async def test_a_stream_with_another_type_or_none_is_a_stream(tmp_path: Path, head: bytes, policy: str) -> None:
    async with before_raw(tmp_path, policy) as (served, raw):
        raw.answer(stream_of(head))
        for _ in range(2):
            answer = await served.chat("hi", stream=True)
            assert answer.status == 200, answer.body
            assert deltas_of(answer.body) == "Hello"
            assert answer.body.endswith(DONE)
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        if policy is BOTH_CACHES:
            assert (await served.chat("hi")).text == "Hello"
        assert b"message_stop" in (await message(served, stream=True)).body


@TYPES
async def test_a_stream_with_another_type_is_live(either: Pair, head: bytes) -> None:
    served, raw = either
    seen = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\n" + head + b"Transfer-Encoding: chunked\r\n\r\n")
        await wire.send(chunked(HELLO[0], HELLO[1])[:-5])
        async with asyncio.timeout(PATIENCE_S):
            await seen.wait()
        await wire.send(chunked(HELLO[2], STOP, DONE))

    raw.script = script
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": True}
    received = b""
    async with served.session.post(served.url + "/v1/chat/completions", json=body) as response:
        async for piece in response.content.iter_any():
            received += piece
            if b'"Hel"' in received:
                seen.set()
    assert deltas_of(received) == "Hello"


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "sends"])
async def test_a_client_that_expects_100_continue_gets_it_or_an_answer(pair: Pair, waits: bool) -> None:
    served, raw = pair
    raw.answer(whole(BODY))
    async with connected(served.url) as wire:
        for _ in range(2):
            head = HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(ASKED)
            await wire.send(head if waits else head + ASKED)
            first = await wire.head()
            if first.status == 100:
                if waits:
                    await wire.send(ASKED)
                first = await wire.head()
            assert first.status == 200
            assert json.loads(await wire.reader.readexactly(int(first.all("content-length")[0]))) == json.loads(BODY)
    assert all(not request.all("expect") for request in raw.requests)


@pytest.mark.parametrize("line", [b"HTTP/1.1 200\r\n", b"HTTP/1.1 200 \r\n", b"HTTP/1.0 200 OK\r\n"])
async def test_a_status_line_without_a_reason_or_of_http_1_0_is_read(either: Pair, line: bytes) -> None:
    served, raw = either
    body = BODY.replace(b"Hello", b"Hello you")
    cut(raw, line + b"Content-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    assert (await served.chat("hi")).text == "Hello you"
    cut(raw, line + b"Content-Type: text/event-stream\r\n\r\n" + b"".join((*HELLO, STOP, DONE)))
    assert deltas_of((await served.chat("ho", stream=True)).body) == "Hello"
    assert is_hit(await served.chat("ho"))


async def test_trailers_and_chunk_extensions_of_an_answer_are_no_part_of_it(either: Pair) -> None:
    served, raw = either
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTrailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n"
    half = len(BODY) // 2
    pieces = b"".join(b'%X;name=v;q="a;b"\r\n%b\r\n' % (len(part), part) for part in (BODY[:half], BODY[half:]))
    scripted(raw, [head + pieces + b"0\r\nX-Sum: 1\r\n\r\n"])
    for text in ("a", "b", "c"):
        answer = await served.chat(text, headers={"TE": "trailers"})
        assert answer.text == "Hello"
        assert "X-Sum" not in answer.headers
    assert not any(request.all("te") for request in raw.requests), "it asks for what is not passed on"


async def test_trailers_of_a_request_are_no_part_of_its_body(pair: Pair) -> None:
    served, raw = pair
    raw.answer(whole(BODY))
    async with connected(served.url) as wire:
        for _ in range(2):
            sent = b"%x;e=1\r\n%b\r\n0\r\nX-Sum: 1\r\n\r\n" % (len(ASKED), ASKED)
            await wire.send(HEAD + b"Trailer: X-Sum\r\nTransfer-Encoding: chunked\r\n\r\n" + sent)
            assert (await wire.message()).status == 200
    assert json.loads(raw.requests[0].body) == json.loads(ASKED)


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_without_its_last_chunk_is_complete_if_it_says_so(either: Pair, stream: bool) -> None:
    served, raw = either
    cut(raw, sse(*HELLO, STOP, DONE).removesuffix(b"0\r\n\r\n"))
    answer = await served.chat("hi", stream=stream)
    assert answer.status == 200
    if stream:
        assert answer.body.endswith(DONE), answer.body
        assert deltas_of(answer.body) == "Hello"
    else:
        assert answer.text == "Hello"
    assert is_hit(await served.chat("hi", stream=stream))


async def test_a_response_header_of_many_kilobytes_is_passed_on(either: Pair) -> None:
    served, raw = either
    policy = "script-src 'self' " + "https://example.org " * 600
    raw.answer(whole(BODY, headers=b"Content-Type: application/json\r\nX-Policy: %b\r\n" % policy.encode()))
    async with connected(served.url) as wire:
        await wire.send(HEAD + b"Content-Length: %d\r\n\r\n%b" % (len(ASKED), ASKED))
        answer = await wire.message()
        assert (answer.status, answer.all("X-Policy")) == (200, [policy.strip()])


@pytest.mark.parametrize("after", ["0.5", "7", "Wed, 21 Oct 2065 07:28:00 GMT", "soon", "-1", "1e3"])
async def test_a_retry_after_of_any_form_reaches_the_client(pair: Pair, after: str) -> None:
    served, raw = pair
    head = b"Content-Type: application/json\r\nretry-after-ms: 500\r\nRetry-After: %b\r\n" % after.encode()
    raw.answer(whole(b'{"error":{"message":"slow down"}}', status=b"429 Too Many Requests", headers=head))
    answer = await served.chat("hi")
    assert answer.status == 429
    assert answer.headers["Retry-After"] == after
    assert answer.headers["retry-after-ms"] == "500"
    assert answer.json["error"]["message"] == "slow down"


async def test_lines_of_json_are_relayed_as_they_come(either: Pair) -> None:
    served, raw = either
    lines = [
        json.dumps({"model": "m", "response": text, "done": text == "lo"}).encode() + b"\n" for text in ("Hel", "lo")
    ]
    seen = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(b"HTTP/1.1 200 OK\r\nContent-Type: application/x-ndjson\r\nTransfer-Encoding: chunked\r\n\r\n")
        await wire.send(chunked(lines[0])[:-5])
        async with asyncio.timeout(PATIENCE_S):
            await seen.wait()
        await wire.send(chunked(lines[1]))

    raw.script = script
    received = b""
    async with served.session.post(served.url + "/api/generate", json={"model": "m", "prompt": "hi"}) as response:
        assert response.headers["Content-Type"] == "application/x-ndjson"
        async for piece in response.content.iter_any():
            received += piece
            seen.set()
    assert received == b"".join(lines)
