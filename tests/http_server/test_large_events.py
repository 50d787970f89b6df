"""One event of megabytes, such as an image, and streams that break within the callback that reads them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from gateway.dialects.sse import SSEParser
from gateway.messages import Event
from tests.fixtures.gateways import EXACT_CACHE, NO_CACHE, aboard, config_of, gateway_of
from tests.fixtures.waiting import until
from tests.fixtures.wire import Message, Wire, WireUpstream, connected, wire_upstream
from tests.http_server.test_end_markers import MESSAGE, RESPONSE, RESPONSES, stored, typed
from tests.http_server.test_live_streams import DONE, END, STREAM, TOKENS, asked, chunked, token

IMAGE = "A" * 4_500_000  # base64
CHAT = [*TOKENS[:2], token(IMAGE), token("", "stop"), DONE]
LARGE_ITEM = {"type": "image_generation_call", "id": "i", "status": "completed", "result": IMAGE}
LARGE_RESPONSE = [
    RESPONSES[0],
    typed("response.completed", sequence_number=1, response={**RESPONSE, "output": [LARGE_ITEM]}),
]
TOO_LARGE = b"longer than 1048576 bytes (server.max_event)"


@pytest.fixture
async def endpoint() -> AsyncIterator[WireUpstream]:
    async with wire_upstream() as endpoint:
        yield endpoint


def streaming(endpoint: WireUpstream, events: Sequence[Event], begins: bytes = b"", *, whole: bool = False) -> None:
    async def script(wire: Wire, _: Message) -> None:
        await wire.send(STREAM + (chunked(begins) if begins else b""))
        frames = [event.frame() for event in events]
        for write in [b"".join(frames)] if whole else frames:
            await wire.send(chunked(write))
            await asyncio.sleep(0)
        await wire.send(END)

    endpoint.script = script


def gateway_before(
    endpoint: WireUpstream, tmp_path: Path, policy: str, adapter: str = "openai", client: str = "own", **server: Any
) -> Any:
    backend = {"adapter": adapter, "url": endpoint.url} | ({"client": "aiohttp"} if client == "aiohttp" else {})
    return gateway_of(config_of(tmp_path, {"main": backend}, server=server), policy)


def request_of(speaks: str) -> bytes:
    if speaks == "openai":
        return asked()
    given = (
        {"max_tokens": 9, "messages": [{"role": "user", "content": "a"}]} if speaks == "anthropic" else {"input": "a"}
    )
    body = json.dumps({"model": "m", "stream": True, **given}).encode()
    path = b"messages" if speaks == "anthropic" else b"responses"
    return b"POST /v1/%s HTTP/1.1\r\nHost: g\r\nContent-Length: %d\r\n\r\n%s" % (path, len(body), body)


async def events_of(wire: Wire) -> list[Event]:
    """Return the events of an answer, which ends clean. Raise `Incomplete`."""
    parser = SSEParser()
    return parser.feed((await wire.message()).body) + parser.close()


BOTH = pytest.mark.parametrize("policy", [NO_CACHE, EXACT_CACHE], ids=["uncached", "cached"])
CLIENTS = pytest.mark.parametrize("client", ["own", "aiohttp"])


@BOTH
@CLIENTS
@pytest.mark.parametrize(("speaks", "events"), [("openai", CHAT), ("responses", LARGE_RESPONSE)])
async def test_an_event_that_is_too_large_to_be_stored_is_relayed(
    endpoint: WireUpstream, tmp_path: Path, policy: str, client: str, speaks: str, events: list[Event]
) -> None:
    streaming(endpoint, events)
    async with gateway_before(endpoint, tmp_path, policy, client=client) as served, connected(served.url) as wire:
        await wire.send(request_of(speaks))
        assert await events_of(wire) == events
        assert stored(served) == 0


async def test_all_who_wait_for_it_get_a_large_event(endpoint: WireUpstream, tmp_path: Path) -> None:
    gate = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        await wire.send(STREAM + chunked(CHAT[0].frame()))
        await gate.wait()
        await wire.send(b"".join(chunked(event.frame()) for event in CHAT[1:]) + END)

    endpoint.script = script
    async with gateway_before(endpoint, tmp_path, EXACT_CACHE) as served:

        async def one() -> list[Event]:
            async with connected(served.url) as wire:
                await wire.send(asked())
                return await events_of(wire)

        waiting = [asyncio.create_task(one()) for _ in range(4)]
        await until(lambda: aboard(served) == 4)
        gate.set()
        assert await asyncio.gather(*waiting) == [CHAT] * 4
        assert served.gateway.parts.unread.used == 0
    assert len(endpoint.requests) == 1


ERRORS = {"openai": b'{"error":', "anthropic": b'{"type":"error"', "responses": b'{"type":"error"'}


@BOTH
@CLIENTS
@pytest.mark.parametrize(
    ("speaks", "adapter"),
    [
        ("openai", "openai"),
        ("anthropic", "openai"),
        ("responses", "openai"),
        ("openai", "anthropic"),
        ("anthropic", "anthropic"),
    ],
)
async def test_a_stream_with_an_event_beyond_the_limit_ends_with_an_error_event(
    endpoint: WireUpstream, tmp_path: Path, policy: str, client: str, speaks: str, adapter: str, caplog: Any
) -> None:
    """In the client's own dialect, and whatever it got before that."""
    large = typed("content_block_delta", index=0, delta={"type": "text_delta", "text": IMAGE})
    events = [*MESSAGE[:2], large] if adapter == "anthropic" else LARGE_RESPONSE if speaks == "responses" else CHAT
    streaming(endpoint, events)
    limit = {"max_event": "1MiB"}
    async with gateway_before(endpoint, tmp_path, policy, adapter, client, **limit) as served:
        async with connected(served.url) as wire:
            await wire.send(request_of(speaks))
            *_, last = await events_of(wire)
        assert last.data.startswith(ERRORS[speaks])
        assert TOO_LARGE in last.data
        assert stored(served) == 0
    assert "InvalidStateError" not in caplog.text


@BOTH
@CLIENTS
async def test_an_event_that_cannot_be_translated_ends_the_stream_with_an_error_event(
    endpoint: WireUpstream, tmp_path: Path, policy: str, client: str, caplog: Any
) -> None:
    streaming(endpoint, [*TOKENS[:2], Event(b'{"choices": 5}'), DONE])
    async with gateway_before(endpoint, tmp_path, policy, client=client) as served, connected(served.url) as wire:
        await wire.send(request_of("anthropic"))
        *_, last = await events_of(wire)
        assert last.data.startswith(ERRORS["anthropic"])
        assert stored(served) == 0
    assert "InvalidStateError" not in caplog.text


MARK = "\ufeff".encode()


@BOTH
@CLIENTS
@pytest.mark.parametrize("begins", [MARK, MARK[:1], MARK[:2]])
@pytest.mark.parametrize("whole", [True, False])
async def test_a_stream_that_begins_with_a_byte_order_mark_keeps_its_first_event(
    endpoint: WireUpstream, tmp_path: Path, policy: str, client: str, begins: bytes, whole: bool
) -> None:
    first, *others = [*TOKENS[:2], token("", "stop"), DONE]

    class Rest(Event):
        def frame(self) -> bytes:
            return MARK[len(begins) :] + super().frame()

    streaming(endpoint, [Rest(first.data), *others], begins, whole=whole)
    async with gateway_before(endpoint, tmp_path, policy, client=client) as served:
        for _ in range(2):
            async with connected(served.url) as wire:
                await wire.send(asked())
                assert await events_of(wire) == [first, *others]
