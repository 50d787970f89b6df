"""Reads request bodies, bounded in size, time and rate. Decodes a body only if the gateway reads it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.config.schema import ServerConfig
from gateway.errors import BadRequest, PayloadTooLarge, RequestTimeout
from gateway.http_server.content_encoding import content_codings, decode_content
from gateway.ports import BodyReader
from gateway.streams import BufferedBody, once

# Bytes that are read of a body that passes through, before its request takes a permit of the backend. Until then a slow
# client holds nothing that others wait for.
BUFFER_BYTES = 256 * 1024


def read_buffered(http: web.BaseRequest) -> bytes | None:
    """Return the body if it arrived with its head, as most do, without waiting and without a timer."""
    content = http.content
    return content.read_nowait(-1) if content.is_eof() and content.exception() is None else None


class HttpBody:
    """The body of a request that aiohttp reads. `buffered_body` is the result of `read_buffered`.

    If the gateway reads the body, `server.max_body` bounds it before and after decoding, and `server.body_timeout`
    bounds the time. If the body streams through, its size has no bound. `server.body_timeout` bounds each wait for
    more, and `server.body_total` all waits together. After `server.body_timeout` the body has to arrive at
    `server.body_min_rate`. Only the time that the client takes counts."""

    def __init__(self, http: web.BaseRequest, buffered_body: bytes | None, config: ServerConfig) -> None:
        self._http = http
        # Note now whether there is a body: `can_read_body` is also False after it was read.
        self._body = b"" if buffered_body is None and not http.can_read_body else buffered_body
        self._config = config
        self._buffered: list[bytes] = []
        self._reader: BodyReader | None = None  # sees each piece of a body that streams
        self._received = 0  # bytes of a body that streams
        self._waited_s = 0.0  # time spent waiting for them

    async def read(self) -> bytes:
        body = self.read_nowait()
        return self._decoded(await self._read_body()) if body is None else body

    def read_nowait(self) -> bytes | None:
        length = self._http.content_length
        if length is not None and length > self._config.max_body:
            raise self._too_large()
        return None if self._body is None else self._decoded(self._body)

    async def buffer(self, *, whole: bool = False) -> None:
        limit = self._config.max_body if whole else BUFFER_BYTES
        while self._body is None and self._received <= limit:
            await self._buffer_piece()

    async def look_ahead(self, reader: BodyReader, limit: int) -> bool:
        if self._body is not None:
            return await BufferedBody(self._body).look_ahead(reader, limit)
        self._reader = reader
        while not reader.is_known and self._received <= limit:
            await self._buffer_piece()
        return reader.is_known

    async def _buffer_piece(self) -> None:
        """Wait for the next piece of the body, and keep it for `stream`."""
        if not self._received:
            await self._send_continue()
        chunk = await self._next_chunk()
        if chunk:
            self._buffered.append(chunk)
        else:
            self._body, self._buffered = b"".join(self._buffered), []

    def stream(self) -> AsyncIterator[bytes] | None:
        if self._body is not None:
            return once(self._body) if self._body else None
        return self._stream()

    @property
    def buffered_body(self) -> bytes | None:
        return self._body

    @property
    def replayable(self) -> bool:
        return self._body is not None

    async def _read_body(self) -> bytes:
        timeout_s = self._config.body_timeout
        try:
            async with asyncio.timeout(timeout_s):
                await self._send_continue()
                return await self._collect()
        except TimeoutError:
            raise RequestTimeout(f"the body did not arrive within {timeout_s:g} s (server.body_timeout)") from None

    async def _collect(self) -> bytes:
        chunks: list[bytes] = []
        size = 0
        while chunk := await self._next():
            size += len(chunk)
            if size > self._config.max_body:
                raise self._too_large()
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)

    async def _stream(self) -> AsyncIterator[bytes]:
        buffered, self._buffered = self._buffered, []
        for chunk in buffered:
            yield chunk
        if not buffered:
            await self._send_continue()
        while chunk := await self._next_chunk():
            yield chunk

    async def _next_chunk(self) -> bytes:
        """Return the next piece of a body that streams; empty at its end."""
        config, loop = self._config, asyncio.get_running_loop()
        started = loop.time()
        limits = (config.body_timeout, config.body_total - self._waited_s, self._rate_timeout_s())
        shortest = limits.index(min(limits))
        try:
            async with asyncio.timeout(limits[shortest]):
                chunk = await self._next()
        except TimeoutError:
            raise RequestTimeout(self._timeout_messages()[shortest]) from None
        self._waited_s += loop.time() - started
        self._received += len(chunk)
        if self._reader is not None:
            self._reader.feed(chunk)
        return chunk

    def _rate_timeout_s(self) -> float:
        """Return how long to wait for the next piece, so that the body keeps its minimum rate. The first `body_timeout`
        does not count, as with Apache's RequestReadTimeout."""
        return self._config.body_timeout + self._received / self._config.body_min_rate - self._waited_s

    def _timeout_messages(self) -> tuple[str, str, str]:
        """Return the messages for a body that timed out, in the order of the limits in `_next_chunk`."""
        config = self._config
        return (
            f"nothing more of the body arrived within {config.body_timeout:g} s (server.body_timeout)",
            f"the body did not arrive within {config.body_total:g} s (server.body_total)",
            f"the body arrives at less than {config.body_min_rate} bytes a second (server.body_min_rate)",
        )

    async def _next(self) -> bytes:
        try:
            return await self._http.content.readany()
        except HttpProcessingError as error:
            raise BadRequest(f"the body is malformed: {error.message}") from None

    async def _send_continue(self) -> None:
        """Answer `Expect: 100-continue`, which aiohttp's low-level server does not (RFC 9110 section 10.1.1)."""
        if self._http.headers.get("expect", "").lower() == "100-continue":
            writer: Any = self._http.writer
            await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.output_size = 0

    def _decoded(self, body: bytes) -> bytes:
        lines = self._http.headers.getall("content-encoding", ())
        return decode_content(body, content_codings(lines), self._config.max_body) if lines else body

    def _too_large(self) -> PayloadTooLarge:
        return PayloadTooLarge(f"the body is larger than {self._config.max_body} bytes (server.max_body)")
