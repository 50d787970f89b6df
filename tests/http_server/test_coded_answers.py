"""Answers of backends in a coding that nobody asked for, or with a byte order mark, are read like any other."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import brotli
import pytest
from backports import zstd

from gateway.errors import UpstreamStreamError
from gateway.upstream.content_decoding import MAX_EXPANDED_BYTES, ContentDecoder, decode_whole
from tests.fixtures.gateways import EXACT_CACHE
from tests.fixtures.wire import Message, Wire, WireUpstream, connected, wire_upstream
from tests.http_server.test_end_markers import BY_DIALECT, CALL_TOOL, TOOLS, stored
from tests.http_server.test_large_events import BOTH, CLIENTS, events_of, gateway_before, request_of
from tests.http_server.test_live_streams import END, asked, chunked

MARK = "\ufeff".encode()
CHAT = {
    "id": "x", "object": "chat.completion", "created": 1, "model": "m",
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi"}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3},
}  # fmt: skip


@pytest.fixture
async def endpoint() -> AsyncIterator[WireUpstream]:
    async with wire_upstream() as endpoint:
        yield endpoint


class Compressor:
    def __init__(self, wbits: int) -> None:
        self.state = zlib.compressobj(wbits=wbits)

    def piece(self, data: bytes) -> bytes:
        return self.state.compress(data) + self.state.flush(zlib.Z_SYNC_FLUSH)

    def end(self) -> bytes:
        return self.state.flush()


class BrotliCompressor(Compressor):
    def __init__(self) -> None:
        self.coder = brotli.Compressor()

    def piece(self, data: bytes) -> bytes:
        return self.coder.process(data) + self.coder.flush()

    def end(self) -> bytes:
        return self.coder.finish()


class ZstdCompressor(Compressor):
    def __init__(self) -> None:
        self.coder = zstd.ZstdCompressor()

    def piece(self, data: bytes) -> bytes:
        return self.coder.compress(data, zstd.ZstdCompressor.FLUSH_BLOCK)

    def end(self) -> bytes:
        return self.coder.flush()


CODINGS: list[tuple[str, Callable[[], Compressor]]] = [
    ("br", BrotliCompressor),
    ("zstd", ZstdCompressor),
    ("gzip", lambda: Compressor(31)),
    ("x-gzip", lambda: Compressor(31)),
    ("deflate", lambda: Compressor(15)),
    ("deflate", lambda: Compressor(-15)),
]


def head_of(kind: str, coding: str, length: int | None = None) -> bytes:
    framing = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
    return f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Encoding: {coding}\r\n{framing}\r\n\r\n".encode()


@BOTH
@CLIENTS
@pytest.mark.parametrize(("coding", "compressor"), CODINGS)
@pytest.mark.parametrize("speaks", ["openai", "responses"])
async def test_a_compressed_stream_is_decoded(
    endpoint: WireUpstream,
    tmp_path: Path,
    policy: str,
    client: str,
    coding: str,
    compressor: Callable[[], Compressor],
    speaks: str,
) -> None:
    events = BY_DIALECT[speaks]

    async def script(wire: Wire, _: Message) -> None:
        compressing = compressor()
        await wire.send(head_of("text/event-stream", coding))
        for event in events:
            await wire.send(chunked(compressing.piece(event.frame())))
            await asyncio.sleep(0)
        await wire.send(chunked(compressing.end()) + END)

    endpoint.script = script
    async with gateway_before(endpoint, tmp_path, policy, client=client) as served:
        for _ in range(2):
            async with connected(served.url) as wire:
                await wire.send(request_of(speaks))
                head = await wire.head()
                assert head.all("content-encoding") == []
                body = b"".join([chunk async for chunk in wire.chunks(head)])
                assert events[-1].data in body
        assert stored(served) == (1 if policy is EXACT_CACHE else 0)
    assert len(endpoint.requests) == (1 if policy is EXACT_CACHE else 2)


@BOTH
@CLIENTS
@pytest.mark.parametrize("coding", ["gzip", "br", "zstd", "identity", "mark"])
@pytest.mark.parametrize("speaks", ["openai", "anthropic"])
async def test_a_compressed_or_marked_whole_answer_is_read(
    endpoint: WireUpstream, tmp_path: Path, policy: str, client: str, coding: str, speaks: str
) -> None:
    """Also where it is translated, or split into a stream."""
    whole = json.dumps(CHAT).encode()
    coded = {"gzip": gzip.compress, "br": brotli.compress, "zstd": zstd.compress, "mark": MARK.__add__}
    data = coded.get(coding, bytes)(whole)
    said = "identity" if coding == "mark" else coding
    endpoint.answer(head_of("application/json", said, len(data)) + data)
    body: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "a"}]}
    body |= {"max_tokens": 9} if speaks == "anthropic" else {}
    path = "/v1/messages" if speaks == "anthropic" else "/v1/chat/completions"
    async with gateway_before(endpoint, tmp_path, policy, client=client) as served:
        for _ in range(2):
            answer = await served.post(path, body)
            assert answer.body.startswith(b"{")
            assert "Hi" in json.dumps(answer.json)
        assert stored(served) == (1 if policy is EXACT_CACHE else 0)


async def test_a_whole_answer_to_a_request_for_a_stream_may_be_marked(endpoint: WireUpstream, tmp_path: Path) -> None:
    data = MARK + json.dumps(CHAT).encode()
    endpoint.answer(head_of("application/json", "identity", len(data)) + data)
    async with gateway_before(endpoint, tmp_path, EXACT_CACHE) as served, connected(served.url) as wire:
        await wire.send(asked())
        *_, last = await events_of(wire)
        assert last.data == b"[DONE]"


async def test_a_compressed_stream_with_other_bytes_ends_with_an_error_event(
    endpoint: WireUpstream, tmp_path: Path
) -> None:
    begun = asyncio.Event()

    async def script(wire: Wire, _: Message) -> None:
        compressing = Compressor(31)
        await wire.send(head_of("text/event-stream", "gzip"))
        await wire.send(chunked(compressing.piece(BY_DIALECT["openai"][0].frame())))
        await begun.wait()
        await wire.send(chunked(b"\xff\xfe\0" * 9) + END)

    endpoint.script = script
    async with gateway_before(endpoint, tmp_path, EXACT_CACHE) as served, connected(served.url) as wire:
        await wire.send(asked())
        head = await wire.head()
        begun.set()
        *_, last = [chunk async for chunk in wire.chunks(head)]
        assert last.startswith(b'data: {"error"')
        assert stored(served) == 0


@CLIENTS
async def test_a_stream_of_an_mcp_server_with_other_bytes_is_an_error_of_the_server(
    endpoint: WireUpstream, tmp_path: Path, client: str
) -> None:
    endpoint.answer(head_of("text/event-stream", "gzip") + chunked(b"data: {}\n\n") + END)
    async with gateway_before(endpoint, tmp_path, TOOLS, "mcp", client) as served:
        answer = await served.post("/mcp", CALL_TOOL)
        assert answer.status == 502
        assert "Content-Encoding" in answer.json["error"]["message"]
        assert not served.gateway.parts.flights


@pytest.mark.parametrize(
    ("coding", "compress"),
    [("gzip", gzip.compress), ("deflate", zlib.compress), ("br", brotli.compress), ("zstd", zstd.compress)],
)
def test_what_expands_to_too_much_is_refused(coding: str, compress: Callable[[bytes], bytes]) -> None:
    bomb = compress(bytes(2 * MAX_EXPANDED_BYTES))
    with pytest.raises(UpstreamStreamError, match="exceeds"):
        ContentDecoder(coding).decode(bomb)
    assert decode_whole(bomb, coding) is None


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_body_is_decoded_however_it_is_cut(size: int) -> None:
    text = b"".join(b"data: %d\n\n" % number for number in range(3_000))
    for coding, data in (
        ("gzip", gzip.compress(text)),
        ("gzip", gzip.compress(text[:999]) + gzip.compress(text[999:])),
        ("gzip", gzip.compress(text) + bytes(20)),
        ("deflate", zlib.compress(text)),
        ("deflate", zlib.compress(text)[2:-4]),
        ("br", brotli.compress(text)),
        ("zstd", zstd.compress(text)),
        ("zstd", zstd.compress(text[:999]) + zstd.compress(text[999:])),
    ):
        decoder = ContentDecoder(coding)
        pieces = [data[start : start + size] for start in range(0, len(data), size)]
        assert b"".join([decoder.decode(piece) for piece in pieces]) == text
        assert decoder.is_complete
