"""One HTTP answer on its way: its first byte, its events or bytes, its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping

from gateway.adapters.gate import Place
from gateway.adapters.http_client import HttpAnswer
from gateway.adapters.http_headers import Passing
from gateway.adapters.sse import SSEParser
from gateway.bodies import Guarded
from gateway.config.backends import Timeouts
from gateway.errors import BackendError, StreamBroken
from gateway.http1.errors import ExchangeFailed, TimedOut
from gateway.messages import ByteStream, Event, EventStream, Response, Whole

MAX_WHOLE_BYTES = 16 * 1024 * 1024  # larger answers are relayed as they come, and not cached


class Exchange:
    """One answer on its way: holds the connection and the place at the gate until the body is done or given up."""

    def __init__(self, name: str, answer: HttpAnswer, place: Place, timeouts: Timeouts, returned: Passing) -> None:
        self._name = name
        self._returned = returned
        self._answer = answer
        self._place = place
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._deadline = self._loop.time() + timeouts.total

    async def answer(self, *, parse: bool) -> Response:
        answer = self._answer
        first = answer.take() if answer.whole else await self._first()  # as a rule a short one is, with its head
        noted, headers = answer.noted, tuple(self._returned.of(answer.headers, answer.noted.get("connection")))
        if not parse:
            return Response(answer.status, headers + _length(noted), self._opaque(first))
        if is_event_stream(noted) and answer.status == 200:
            return Response(answer.status, headers, EventStream(Guarded(self._events(first), self.close)))
        data, complete = (first, True) if answer.at_end else await self._collect(first)
        if not complete:
            return Response(answer.status, headers, ByteStream(Guarded(self._bytes(data), self.close)))
        self.close()
        return Response(answer.status, headers, Whole(data))

    async def _first(self) -> bytes:
        """The first piece of the body; empty where there is none."""
        try:
            return await self._answer.read(self._loop.time() + self._timeouts.first_byte)
        except TimedOut:
            raise BackendError(f"backend '{self._name}' sent no body in time", status=504) from None
        except ExchangeFailed as error:
            raise BackendError(f"backend '{self._name}' broke off ({error})") from None

    def _opaque(self, first: bytes) -> Whole | ByteStream:
        if self._answer.at_end:
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
        """The next piece; empty at the end. Raises `StreamBroken`."""
        if self._answer.at_end:
            return b""
        until = min(self._loop.time() + self._timeouts.idle, self._deadline)
        try:
            return await self._answer.read(until)
        except TimedOut:
            what = "exceeded its total time" if until == self._deadline else "fell silent"
            raise StreamBroken(f"backend '{self._name}' {what}") from None
        except ExchangeFailed as error:
            raise StreamBroken(f"backend '{self._name}' broke off ({error})") from None

    def close(self) -> None:
        """Gives the connection back if the body is done, and cuts it otherwise, which cancels the call upstream."""
        self._answer.close()
        self._place.leave()


def is_event_stream(noted: Mapping[str, str]) -> bool:
    """Whether the body is server-sent events that can be read here: compressed ones go through."""
    kind = noted.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "text/event-stream" and noted.get("content-encoding", "identity") == "identity"


def _length(noted: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """What passes through undecoded keeps its length; of an answer to HEAD it is all there is of the body."""
    length = noted.get("content-length")
    return () if length is None else (("Content-Length", length),)
