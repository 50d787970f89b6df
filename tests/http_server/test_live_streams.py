"""Live streams, byte by byte on both sides: each event a chunk of its own, at once, at each client's own pace; whoever
reads the requests and whoever asks the backend."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import AsyncIterator
from itertools import pairwise
from pathlib import Path

import pytest

from gateway.dialects.openai.dialect import OpenAI
from gateway.messages import Event
from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, Served, config_of, gateway_of
from tests.fixtures.waiting import until
from tests.fixtures.wire import Message, Wire, WireUpstream, connected, wire_upstream

STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
DONE = Event(b"[DONE]")
USAGE = Event(b'{"id": "x", "choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}')
END = b"0\r\n\r\n"


def token(text: str, finish: str | None = None) -> Event:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    head = {"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m"}
    return Event(json.dumps({**head, "choices": [choice]}).encode())


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


TOKENS = [token(f"word {number} ") for number in range(20)]
ANSWER = [*TOKENS, token("", "stop"), USAGE, DONE]
SHOWN = [event.frame() for event in ANSWER if event is not USAGE]
WIRED = [chunked(event.frame()) for event in ANSWER]


def asked(question: str = "Tell me a story") -> bytes:
    body = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": question}]}).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)


@pytest.fixture
async def endpoint() -> AsyncIterator[WireUpstream]:
    async with wire_upstream() as endpoint:
        yield endpoint


@pytest.fixture(params=["relayed", "stored", "by aiohttp's server", "by aiohttp's client"])
async def served(request: pytest.FixtureRequest, tmp_path: Path, endpoint: WireUpstream) -> AsyncIterator[Served]:
    backend = {"adapter": "openai", "url": endpoint.url, "timeouts": {"idle": "120s"}}
    if request.param == "by aiohttp's client":
        backend["client"] = "aiohttp"
    policy = NO_CACHE if request.param == "relayed" else EXACT_CACHE
    async with gateway_of(config_of(tmp_path, {"main": backend}, server={"max_unread": "4MiB"}), policy) as served:
        served.gateway.data_port._connections.accepts_plain = request.param != "by aiohttp's server"
        yield served


def streaming(endpoint: WireUpstream, *writes: bytes, cut: bool = False) -> None:
    async def script(wire: Wire, _: Message) -> None:
        await wire.send(STREAM)
        for write in writes:
            await wire.send(write)
            await asyncio.sleep(0)
        if cut:
            wire.writer.close()

    endpoint.script = script


async def answer_of(served: Served, request: bytes) -> list[bytes]:
    """The chunks of one answer. Raises `PurgeIncomplete`."""
    async with connected(served.url) as wire:
        await wire.send(request)
        return [chunk async for chunk in wire.chunks(await wire.head())]


async def test_each_event_is_on_its_way_before_the_next_one_comes(served: Served, endpoint: WireUpstream) -> None:
    """The endpoint waits with each event until the client has the one before it."""
    seen = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(STREAM)
        for event, write in zip(ANSWER, WIRED, strict=True):
            await wire.send(write)
            if event is not USAGE:
                await asyncio.wait_for(seen.wait(), 120)
                seen.clear()
        await wire.send(END)

    endpoint.script = script
    async with connected(served.url) as wire:
        await wire.send(asked())
        got = []
        async for chunk in wire.chunks(await wire.head()):
            got.append(chunk)
            seen.set()
    assert got == SHOWN


async def test_however_the_bytes_are_cut_each_event_is_one_chunk(served: Served, endpoint: WireUpstream) -> None:
    draw, wired = random.Random(7), b"".join(WIRED) + END
    events = b"".join(event.frame() for event in ANSWER)
    for number in range(12):
        text = wired if number % 2 else b"".join(_in_pieces(draw, events, 9, chunked)) + END
        streaming(endpoint, *_in_pieces(draw, text, number))
        assert await answer_of(served, asked(f"question {number} of w{draw.getrandbits(40):x}")) == SHOWN


def _in_pieces(draw: random.Random, text: bytes, cuts: int, wrapped: type | None = None) -> list[bytes]:
    places = [0, *sorted(draw.sample(range(1, len(text)), cuts)), len(text)]
    pieces = [text[start:end] for start, end in pairwise(places)]
    return pieces if wrapped is None else [wrapped(piece) for piece in pieces]


async def test_what_came_before_a_break_comes_first_then_the_error_event(
    served: Served, endpoint: WireUpstream
) -> None:
    streaming(endpoint, b"".join(WIRED[:5]), cut=True)
    got = await answer_of(served, asked())
    assert got[:-1] == SHOWN[:5]
    (error,) = OpenAI().error_events("upstream_error", "backend 'main' broke off")
    assert got[-1].startswith(error.frame()[: error.frame().index(b"broke off")])


async def test_a_client_that_does_not_read_holds_back_the_backend_and_gets_all(
    served: Served, endpoint: WireUpstream
) -> None:
    big, count, sent = chunked(token("x" * 20_000).frame()), 1600, 0  # 32 MB
    end = chunked(b"data: [DONE]\n\n") + END

    async def script(wire: Wire, _: Message) -> None:
        nonlocal sent
        await wire.send(STREAM)
        for sent in range(1, count + 1):  # noqa: B007
            wire.writer.write(big)
            await wire.writer.drain()
        await wire.send(end)

    endpoint.script = script
    async with connected(served.url) as wire:
        await wire.send(asked())
        await wire.head()
        before = -1
        while sent != before:
            before = sent
            await asyncio.sleep(0.1)
        assert sent < count, "what is on its way is bounded"
        async with asyncio.timeout(120):
            assert await wire.reader.readexactly(count * len(big) + len(end)) == big * count + end


async def test_the_last_client_that_leaves_ends_the_call(served: Served, endpoint: WireUpstream) -> None:
    left = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(STREAM + WIRED[0])
        assert await wire.rest() == b""
        left.set()

    endpoint.script = script
    async with connected(served.url) as one:
        await one.send(asked())
        await anext(one.chunks(await one.head()))
    await asyncio.wait_for(left.wait(), 120)
    await until(lambda: not any(pool.inflight for pool in served.gateway.parts.pools.values()))


@pytest.mark.parametrize("served", ["stored", "by aiohttp's client"], indirect=True)
async def test_of_a_crowd_each_reads_at_its_own_pace(served: Served, endpoint: WireUpstream) -> None:
    go_on = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(STREAM + b"".join(WIRED[:5]))
        await go_on.wait()
        await wire.send(b"".join(WIRED[5:]) + END)

    endpoint.script = script
    async with connected(served.url) as slow, connected(served.url) as fast, connected(served.url) as late:
        await slow.send(asked())
        await until(lambda: endpoint.requests)
        await fast.send(asked())
        chunks = fast.chunks(await fast.head())
        got = [await anext(chunks) for _ in range(5)]
        await late.send(asked())
        of_late = late.chunks(await late.head())
        assert [await anext(of_late) for _ in range(5)] == got == SHOWN[:5]
        go_on.set()
        assert [chunk async for chunk in chunks] == [chunk async for chunk in of_late] == SHOWN[5:]
        assert [chunk async for chunk in slow.chunks(await slow.head())] == SHOWN
    assert len(endpoint.requests) == 1
