"""One HTTP answer on its way: its first byte, its events or bytes, its end."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncGenerator

import aiohttp

from gateway.adapters.gate import Place
from gateway.adapters.http_headers import response_headers
from gateway.adapters.sse import SSEParser
from gateway.bodies import Guarded
from gateway.config.backends import Timeouts
from gateway.errors import BackendError, StreamBroken
from gateway.messages import ByteStream, Event, EventStream, Response, Whole

MAX_WHOLE_BYTES = 16 * 1024 * 1024  # larger answers are relayed as they come, and not cached
TCP_QUICKACK = getattr(socket, "TCP_QUICKACK", None)  # Linux


class Exchange:
    """One answer on its way: holds the connection and the place at the gate until the body is done or given up."""

    def __init__(self, name: str, response: aiohttp.ClientResponse, place: Place, timeouts: Timeouts) -> None:
        self._name = name
        self._response = response
        self._place = place
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeouts.total

    async def answer(self, *, parse: bool) -> Response:
        response = self._response
        first = await self._first()
        headers = response_headers(response.headers)
        encoded = response.headers.get("content-encoding", "identity") != "identity"
        if parse and not encoded and response.content_type == "text/event-stream" and response.status == 200:
            return Response(response.status, headers, EventStream(Guarded(self._events(first), self.close)))
        if not parse:
            return Response(response.status, headers + self._length(), self._opaque(first))
        here = response.content.at_eof()  # as a rule a short answer comes whole, with its head
        data, complete = (first, True) if here else await self._collect(first)
        if not complete:
            return Response(response.status, headers, ByteStream(Guarded(self._bytes(data), self.close)))
        self.close()
        return Response(response.status, headers, Whole(data))

    async def _first(self) -> bytes:
        """The first piece of the body; empty where there is none."""
        content = self._response.content
        try:
            if content.is_eof():  # it came whole, with its head: no waiting, no timer
                return await content.readany()
            self._acknowledge()
            async with asyncio.timeout(self._timeouts.first_byte):
                return await content.readany()
        except TimeoutError:
            raise BackendError(f"backend '{self._name}' sent no body in time", status=504) from None
        except (aiohttp.ClientError, OSError) as error:
            raise BackendError(f"backend '{self._name}' broke off ({type(error).__name__})") from None

    def _length(self) -> tuple[tuple[str, str], ...]:
        """What passes through undecoded keeps its length; of an answer to HEAD it is all there is of the body."""
        length = self._response.headers.get("content-length")
        return () if length is None else (("Content-Length", length),)

    def _opaque(self, first: bytes) -> Whole | ByteStream:
        if self._response.content.at_eof():
            self.close()
            return Whole(first)
        return ByteStream(Guarded(self._bytes(first), self.close))

    async def _collect(self, first: bytes) -> tuple[bytes, bool]:
        """-> (what came, whether it is all): up to `MAX_WHOLE_BYTES`. Nothing has gone to the client yet."""
        pieces, size = [first], len(first)
        try:
            while size <= MAX_WHOLE_BYTES:
                piece = await self._read()
                if not piece:
                    return b"".join(pieces), True
                pieces.append(piece)
                size += len(piece)
        except StreamBroken as error:
            raise BackendError(str(error)) from None
        return b"".join(pieces), False

    async def _events(self, first: bytes) -> AsyncGenerator[Event, None]:
        parser = SSEParser()
        for event in parser.feed(first):
            yield event
        while chunk := await self._read():
            for event in parser.feed(chunk):
                yield event
        for event in parser.close():
            yield event

    async def _bytes(self, first: bytes) -> AsyncGenerator[bytes, None]:
        if first:
            yield first
        while chunk := await self._read():
            yield chunk

    async def _read(self) -> bytes:
        """The next piece; empty at the end. Raises `StreamBroken`.

        The total time is checked here and not by one timeout around the generator: that would fire in whatever task
        happens to hold the generator while it is suspended.
        """
        content = self._response.content
        if content.at_eof():
            return b""  # what has come whole needs no timer
        self._acknowledge()
        until = min(self._loop.time() + self._timeouts.idle, self._deadline)
        try:
            async with asyncio.timeout_at(until):
                return await content.readany()
        except TimeoutError:
            what = "exceeded its total time" if until == self._deadline else "fell silent"
            raise StreamBroken(f"backend '{self._name}' {what}") from None
        except (aiohttp.ClientError, OSError) as error:
            raise StreamBroken(f"backend '{self._name}' broke off ({type(error).__name__})") from None

    def _acknowledge(self) -> None:
        """Before each wait for more: a server that writes in pieces with Nagle's algorithm on sends the next one when
        the last is acknowledged, and the kernel delays that on a kept-alive connection (measured: 44 ms an answer)."""
        connection = self._response.connection
        transport = None if connection is None else connection.transport
        opened = None if transport is None else transport.get_extra_info("socket")
        if opened is not None and TCP_QUICKACK is not None:
            with contextlib.suppress(OSError):
                opened.setsockopt(socket.IPPROTO_TCP, TCP_QUICKACK, 1)

    def close(self) -> None:
        """Gives the connection back if the body is done, and cuts it otherwise, which cancels the call upstream."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()
        self._place.leave()
