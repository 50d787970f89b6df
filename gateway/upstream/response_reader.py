"""One HTTP answer on its way: its first byte, its events or bytes, its end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Generic, TypeVar

from gateway.config.backends import Timeouts
from gateway.dialects.sse import SSEParser
from gateway.errors import BackendError, UpstreamStreamError
from gateway.messages import ByteStream, EventStream, FullBody, Response
from gateway.streams import ObservedStream, StreamObserver
from gateway.upstream.concurrency_limiter import ConcurrencyPermit
from gateway.upstream.http1.errors import ExchangeFailed, TimedOut
from gateway.upstream.http1.response import HttpResponse
from gateway.upstream.http_client import UpstreamResponse

T = TypeVar("T")
MAX_WHOLE_BYTES = 16 * 1024 * 1024  # larger answers are relayed as they come, and not cached


class ResponseReader:
    """One answer on its way: holds the connection and the place at the gate until the body is done or given up."""

    def __init__(
        self, name: str, answer: UpstreamResponse, permit: ConcurrencyPermit, timeouts: Timeouts, deadline: float
    ) -> None:
        """`deadline`: event loop time, for the end of the body: that of all attempts together."""
        self._name = name
        self._answer = answer
        self._permit = permit
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline

    async def answer(self, headers: tuple[tuple[str, str], ...], *, parse: bool) -> Response:
        """`headers`: those of it that go on; `parse`: it answers a call that a dialect has read."""
        answer = self._answer
        first = answer.take() if answer.whole else await self._read_first()
        if not parse:
            return Response(answer.status, headers, self._opaque(first))
        if is_event_stream(answer.header_map) and answer.status == 200:
            parser = SSEParser()
            return Response(answer.status, headers, EventStream(self._stream(first, parser.feed, parser.close)))
        data, complete = (first, True) if answer.at_eof else await self._collect(first)
        if not complete:
            return Response(answer.status, headers, self._bytes(data))
        self.close()
        return Response(answer.status, headers, FullBody(data))

    async def _read_first(self) -> bytes:
        """The first piece of the body; empty where there is none."""
        try:
            return await self._answer.read(min(self._loop.time() + self._timeouts.first_byte, self._deadline))
        except TimedOut:
            raise BackendError(f"backend '{self._name}' sent no body in time", status=504) from None
        except ExchangeFailed as error:
            raise BackendError(f"backend '{self._name}' broke off ({error})") from None

    def _opaque(self, first: bytes) -> FullBody | ByteStream:
        if self._answer.at_eof:
            self.close()
            return FullBody(first)
        return self._bytes(first)

    async def _collect(self, first: bytes) -> tuple[bytes, bool]:
        """-> (what came, whether it is all): up to `MAX_WHOLE_BYTES`. Nothing has gone to the client yet."""
        chunks, size = [first], len(first)
        try:
            while size <= MAX_WHOLE_BYTES:
                chunk = await self.read()
                if not chunk:
                    return b"".join(chunks), True
                chunks.append(chunk)
                size += len(chunk)
        except UpstreamStreamError as error:
            raise BackendError(str(error)) from None
        return b"".join(chunks), False

    def _bytes(self, first: bytes) -> ByteStream:
        return ByteStream(self._stream(first, lambda chunk: (chunk,), tuple))

    def _stream(
        self, first: bytes, feed: Callable[[bytes], Sequence[T]], close: Callable[[], Sequence[T]]
    ) -> ObservedStream[T]:
        answer = self._answer
        if isinstance(answer, HttpResponse):
            return ObservedStream(_Telling(self, answer, first, feed, close), StreamObserver(on_close=self.close))
        return ObservedStream(_Body(self, first, feed, close), StreamObserver(on_close=self.close))

    async def read(self) -> bytes:
        """The next piece; empty at the end. Raises `UpstreamStreamError`."""
        if self._answer.at_eof:
            return b""
        try:
            return await self._answer.read(min(self._loop.time() + self._timeouts.idle, self._deadline))
        except ExchangeFailed as error:
            raise self.stream_error(error) from None

    @property
    def limits(self) -> tuple[float, float]:
        """For how many seconds it may be silent, and when it has to be over, by the event loop's time."""
        return self._timeouts.idle, self._deadline

    def stream_error(self, error: BaseException) -> UpstreamStreamError:
        if not isinstance(error, TimedOut):
            return UpstreamStreamError(f"backend '{self._name}' broke off ({error})")
        what = "exceeded its total time" if self._loop.time() >= self._deadline else "fell silent"
        return UpstreamStreamError(f"backend '{self._name}' {what}")

    def close(self) -> None:
        """Gives the connection back if the body is done, and cuts it otherwise, which cancels the call upstream."""
        self._answer.close()
        self._permit.release()


class _Body(Generic[T]):
    """The rest of a body as a source: what `feed` makes of each piece, and `close` of the end. Implements `Source`."""

    tells, drained = False, True

    def __init__(
        self,
        exchange: ResponseReader,
        first: bytes,
        feed: Callable[[bytes], Sequence[T]],
        close: Callable[[], Sequence[T]],
    ) -> None:
        self._exchange = exchange
        self._chunk: bytes | None = first or None  # that has come
        self._feed = feed
        self._close: Callable[[], Sequence[T]] | None = close

    def take(self) -> Sequence[T] | None:
        chunk, self._chunk = self._chunk, None
        if not chunk:
            return None if chunk is None else self._end()
        return self._feed(chunk) or None

    def _end(self) -> Sequence[T]:
        close, self._close = self._close, None
        return () if close is None else close()

    async def wait(self) -> None:
        self._chunk = await self._exchange.read()

    def tell(self, wake: Callable[[], None] | None) -> None:
        raise NotImplementedError  # `tells` says so: nobody asks


class _Telling(_Body[T]):
    """Of an answer that tells when something has come."""

    tells = True

    def __init__(
        self,
        exchange: ResponseReader,
        answer: HttpResponse,
        first: bytes,
        feed: Callable[[bytes], Sequence[T]],
        close: Callable[[], Sequence[T]],
    ) -> None:
        super().__init__(exchange, first, feed, close)
        self._answer = answer

    def take(self) -> Sequence[T] | None:
        answer = self._answer
        while True:
            if self._chunk is not None:
                items = super().take()
            elif answer.chunks:
                items = self._feed(answer.take())
            elif answer.whole:
                return self._end()
            elif answer.error is not None:
                raise self._exchange.stream_error(answer.error)
            else:
                return None
            if items:
                self.drained = not (answer.chunks or answer.whole or answer.error)
                return items

    def tell(self, wake: Callable[[], None] | None) -> None:
        self._answer.tell(wake, *self._exchange.limits)


def is_event_stream(header_map: Mapping[str, str]) -> bool:
    """Whether the body is server-sent events that can be read here: compressed ones go through."""
    kind = header_map.get("content-type", "").partition(";")[0].strip().lower()
    return kind == "text/event-stream" and header_map.get("content-encoding", "identity") == "identity"
