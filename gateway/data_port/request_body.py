"""A request's body off the wire: bounded in size and time, decoded only where it is read here."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from gateway.bodies import once
from gateway.errors import BadRequest, RequestTimeout, TooLarge

# What `Content-Encoding` names -> the window bits that zlib wants.
ENCODINGS = {"gzip": 31, "x-gzip": 31, "deflate": 15}


def taken_whole(http: web.BaseRequest) -> bytes | None:
    """The body, if it has come with its head, as most do: no waiting and no timer."""
    content = http.content
    return content.read_nowait(-1) if content.is_eof() and content.exception() is None else None


class HttpBody:
    """`taken` is what `taken_whole` returned. `max_bytes` bounds what is read, before and after decoding; `timeout_s`
    the whole reading, and each wait for more of a body that streams through (that one has no bound in size: it is
    never held)."""

    def __init__(self, http: web.BaseRequest, taken: bytes | None, *, max_bytes: int, timeout_s: float) -> None:
        self._http = http
        # Once it has been read there is nothing to read either: whether there is a body is to be known before.
        self._taken = b"" if taken is None and not http.can_read_body else taken
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s

    async def read(self) -> bytes:
        length = self._http.content_length
        if length is not None and length > self._max_bytes:
            raise self._too_large()
        body = self._taken if self._taken is not None else await self._arriving()
        encoding = self._http.headers.get("content-encoding", "identity").lower()
        return body if encoding in ("", "identity") else self._decoded(body, encoding)

    def stream(self) -> AsyncIterator[bytes] | None:
        if self._taken is not None:
            return once(self._taken) if self._taken else None
        return self._stream()

    @property
    def taken(self) -> bytes | None:
        return self._taken

    @property
    def replayable(self) -> bool:
        return self._taken is not None

    async def _arriving(self) -> bytes:
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._go_on()
                return await self._collect()
        except TimeoutError:
            raise RequestTimeout(f"the body did not arrive within {self._timeout_s:g} s") from None

    async def _collect(self) -> bytes:
        pieces: list[bytes] = []
        size = 0
        while piece := await self._next():
            size += len(piece)
            if size > self._max_bytes:
                raise self._too_large()
            pieces.append(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    async def _stream(self) -> AsyncIterator[bytes]:
        await self._go_on()
        while True:
            try:
                async with asyncio.timeout(self._timeout_s):
                    piece = await self._next()
            except TimeoutError:
                raise RequestTimeout(f"nothing more of the body arrived within {self._timeout_s:g} s") from None
            if not piece:
                return
            yield piece

    async def _next(self) -> bytes:
        try:
            return await self._http.content.readany()
        except HttpProcessingError as error:
            raise BadRequest(f"the body is malformed: {error.message}") from None

    async def _go_on(self) -> None:
        """The low-level server leaves `Expect: 100-continue` to us (RFC 9110 section 10.1.1)."""
        if self._http.headers.get("expect", "").lower() == "100-continue":
            writer: Any = self._http.writer
            await writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            writer.output_size = 0

    def _decoded(self, body: bytes, encoding: str) -> bytes:
        bits = ENCODINGS.get(encoding)
        if bits is None:
            raise BadRequest(f"Content-Encoding {encoding[:40]!r} is not supported: expected gzip, deflate or identity")
        try:
            decoder = zlib.decompressobj(bits)
            decoded = decoder.decompress(body, self._max_bytes)
            if decoder.unconsumed_tail:
                raise self._too_large()
            if not decoder.eof:
                raise BadRequest(f"the {encoding} body is cut short")
            if decoder.unused_data:  # a reader that goes on here would see another body than one that does not
                raise BadRequest(f"there is more behind the {encoding} body")
        except zlib.error:
            raise BadRequest(f"the body is not valid {encoding}") from None
        return decoded

    def _too_large(self) -> TooLarge:
        return TooLarge(f"the body is larger than {self._max_bytes} bytes (server.max_body)")
