"""Read one HTTP response: its first byte, its events or bytes, its end."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

from gateway.calls import Dialect, EventParser, StreamForm
from gateway.config.backends import Timeouts
from gateway.dialect_traits import OpenParts
from gateway.dialects.sse import BYTE_ORDER_MARK, SSEParser, with_event_name
from gateway.errors import BackendError, UpstreamStreamError
from gateway.messages import ByteStream, Comment, Event, EventStream, FullBody, Response, media_type
from gateway.streams import END_OF_BODY_S, Comments, ObservedStream, StreamObserver
from gateway.upstream.concurrency_limiter import ConcurrencyPermit
from gateway.upstream.content_decoding import CODINGS, ContentDecoder, coding_of, decode_whole
from gateway.upstream.http1.errors import ExchangeFailed, TimedOut
from gateway.upstream.http1.response import HttpResponse
from gateway.upstream.http_client import UpstreamResponse

T = TypeVar("T")
Headers = tuple[tuple[str, str], ...]
Decode = Callable[[bytes], bytes] | None  # None: the body is in no coding
OVERLOADED = 503
ANNOUNCEMENTS = frozenset(
    {"response.created", "response.queued", "response.in_progress", "message_start", "ping", "messageStart"}
)
OF_STREAMS = frozenset({"content-type", "cache-control"})  # headers that say nothing about an error
# Any JSON body begins with one of these bytes, apart from spaces.
MARKED_JSON = tuple(BYTE_ORDER_MARK + first for first in (b"{", b"[", b" ", b"\n", b"\r", b"\t", b'"'))
EVENT_STREAM = (("Content-Type", "text/event-stream; charset=utf-8"),)
_FIELD = re.compile(rb"(?:\xef\xbb\xbf)?\s*(?:data|event|id|retry|):")  # a line without a name is a comment
LONGEST_FIELD = 16  # bytes that tell whether a body begins with such a line
MAX_WHOLE_BYTES = 16 * 1024 * 1024  # larger responses are relayed as they arrive, and not cached


class ResponseReader:
    """`ResponseReader` holds the connection and the permit until the body is complete or abandoned."""

    def __init__(
        self,
        name: str,
        answer: UpstreamResponse,
        permit: ConcurrencyPermit,
        timeouts: Timeouts,
        deadline: float,
        max_event: int,
        silence_s: float,
    ) -> None:
        """`deadline` is the event-loop time for the end of the body; it covers all attempts together. `max_event`
        is the longest event of a stream in bytes. `silence_s` is the longest time for which the head of a silent stream
        is held, or 0 for any time."""
        self._silence_s = silence_s or math.inf
        self._max_event = max_event
        self._name = name
        self._answer = answer
        self._permit = permit
        self._timeouts = timeouts
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._timer: asyncio.TimerHandle | None = None
        self.complete = False  # the end marker of the answer was read: only the end of the body is missing
        self.is_finished: Callable[[], bool] = lambda: False  # see `EventSource`
        self._open_parts: OpenParts | None = None
        self._comments: list[Comment] = []
        self._after_comments: Sequence[Event] = ()

    async def answer(
        self, headers: Headers, dialect: Dialect | None, *, streams: bool = False, open_parts: OpenParts | None = None
    ) -> Response:
        """Return the response. `headers` are the ones to forward. `dialect` is that of the body, or None after a
        call that was not parsed. If the call `streams`, it asks for a stream, whose `open_parts` are as in `Dialect`.

        Raise `BackendError`, also if the body breaks or cannot be read: nothing of it has reached the client.
        """
        self._open_parts = open_parts
        try:
            return await self._respond(headers, dialect, streams=streams)
        except UpstreamStreamError as error:
            raise BackendError(str(error)) from None

    async def _respond(self, headers: Headers, dialect: Dialect | None, *, streams: bool) -> Response:
        answer = self._answer
        coding = coding_of(answer.header_map)
        decode = ContentDecoder(coding).decode if coding in CODINGS else None
        form = None if dialect is None else dialect.stream_form
        is_stream = dialect is not None and answer.status == 200 and is_event_stream(answer.header_map, form)
        if is_stream and form is not None:
            headers = without(headers, "content-type") + EVENT_STREAM
        if is_stream and decode is not None:
            headers = without(headers, "content-encoding")
        if is_stream and dialect is not None and dialect.reads_streams:
            return await self._events(headers, dialect, b"", decode)
        first = answer.take() if answer.whole else await self._read_first()
        if dialect is None:
            return Response(answer.status, headers, self._opaque(first))
        if is_stream:
            return Response(answer.status, headers, self._relayed(first, dialect, decode))
        if streams and answer.status == 200 and dialect.reads_streams:
            first = await self._read_beginning(first)
            if begins_event(first) and not coding:
                return await self._events(without(headers, "content-type") + EVENT_STREAM, dialect, first, decode)
        if _length_of(answer.header_map) > MAX_WHOLE_BYTES:
            return Response(answer.status, headers, self._bytes(first))
        data, complete = (first, True) if answer.at_eof else await self._collect(first)
        if not complete:
            return Response(answer.status, headers, self._bytes(data))
        self.close()
        if coding in CODINGS and (decoded := decode_whole(data, coding)) is not None:
            headers, data = without(headers, "content-encoding"), decoded
        data = without_mark(data)
        if streams and answer.status == 200 and (error := dialect.error_answer(Event(data))) is not None:
            return _error_response(headers, *error)
        return Response(answer.status, headers, FullBody(data))

    async def _events(self, headers: Headers, dialect: Dialect, begun: bytes, decode: Decode) -> Response:
        """Return a stream once its first event has arrived, or something else that keeps the connection open. `begun`:
        the body so far. A stream that stays silent is returned all the same, so that its client gets keep-alives.

        An error in place of an answer becomes a response with its status, so that the attempt has failed.
        """
        until = self._loop.time() + self._silence_s
        form = dialect.stream_form
        parser = SSEParser(self._max_event, self._comments) if form is None else form.parser(self._max_event)
        feed = partial(self._feed_events, parser, dialect, decode)
        end: Callable[[], Sequence[Event]] = partial(self._end_events, parser, dialect)
        choices = self._open_parts  # a function of `self` here would make a cycle, which only the collector frees
        self.is_finished = lambda: not choices and dialect.is_finished(parser.recent)
        batch = feed(begun)
        while not (batch or parser.keeps_open or self._answer.at_eof):
            piece = await self._read_until(until, self.read if begun else self._read_first)
            if piece is None:
                break
            begun, batch = piece, feed(piece)
        if not batch and self._answer.at_eof:
            batch, end = end(), tuple
        begin = self._after_comments if type(batch) is Comments else batch
        if (failure := _error_in(begin, dialect)) is not None:
            self._complete()
            if failure[0] == OVERLOADED:
                self._permit.on_timeout()
            self.close()
            return _error_response(headers, *failure)
        events = self._stream(batch, feed, end, self._take_after_comments)
        return Response(self._answer.status, headers, EventStream(events))

    def _feed_events(self, parser: EventParser, dialect: Dialect, decode: Decode, chunk: bytes) -> Sequence[Event]:
        """Return the events that a chunk completes, and look for the end marker among them. Comments come before the
        events of their chunk, as a batch of their own; `_take_after_comments` returns the events then."""
        events = parser.feed(chunk if decode is None else decode(chunk))
        if self._open_parts is not None:
            for event in events:
                self._open_parts.feed(event.data)
        if not self.complete:
            for event in events:
                if dialect.is_end(event):
                    self._complete()
                    break
        if not self._comments:
            return events
        comments, self._after_comments = Comments(self._comments), events
        self._comments.clear()
        return comments

    def _complete(self) -> None:
        self.complete = True
        self._deadline = min(self._deadline, self._loop.time() + END_OF_BODY_S)

    @property
    def has_events(self) -> bool:
        """Whether events came with the last batch of comments, and were not taken."""
        return bool(self._after_comments)

    def _take_after_comments(self) -> Sequence[Event]:
        """Return the events that came with the last batch of comments, once."""
        events, self._after_comments = self._after_comments, ()
        return events

    def _end_events(self, parser: EventParser, dialect: Dialect) -> Sequence[Event]:
        """Return what a body that has ended lacks: the blank line of its last event, or its end marker. Raise
        `UpstreamStreamError` if the stream was cut. Half an event is never passed on."""
        rest = parser.close()
        last = [*parser.recent, *rest]
        whole = rest if dialect.is_over(rest) else []
        if self.complete:
            return whole
        missing = dialect.missing_end(last)
        if self._open_parts is not None:
            for event in rest:
                self._open_parts.feed(event.data)
        if not dialect.is_over(last) or (missing and self._open_parts):
            raise UpstreamStreamError(f"backend '{self._name}' ended the stream before its end marker")
        return [*whole, *missing]

    async def _read_until(self, until: float, read: Callable[[], Awaitable[bytes]]) -> bytes | None:
        """Return the result of `read`, or None if there is none by `until`, which is event-loop time."""
        if until == math.inf:
            return await read()
        try:
            async with asyncio.timeout_at(until):
                return await read()
        except TimeoutError:
            return None

    async def _read_first(self) -> bytes:
        """Return the first part of the body; empty if there is no body."""
        try:
            return await self._answer.read(min(self._loop.time() + self._timeouts.first_byte, self._deadline))
        except TimedOut:
            raise BackendError(f"backend '{self._name}' sent no body in time", status=504) from None
        except ExchangeFailed as error:
            raise BackendError(f"backend '{self._name}' broke off the response ({error})") from None

    async def _read_beginning(self, first: bytes) -> bytes:
        """Return the body so far, with more of it until it tells whether it is a stream of events."""
        while not self._answer.at_eof and len(begun := first.lstrip()) < LONGEST_FIELD and begun[:1] not in b"{[":
            first += await self.read()
        return first

    def _opaque(self, first: bytes) -> FullBody | ByteStream:
        if self._answer.at_eof:
            self.close()
            return FullBody(first)
        return self._bytes(first)

    async def _collect(self, first: bytes) -> tuple[bytes, bool]:
        """Return (the bytes read, whether they are all), up to `MAX_WHOLE_BYTES`. The client has received nothing."""
        chunks, size = [first], len(first)
        while size <= MAX_WHOLE_BYTES:
            chunk = await self.read()
            if not chunk:
                return b"".join(chunks), True
            chunks.append(chunk)
            size += len(chunk)
        return b"".join(chunks), False

    def _bytes(self, first: bytes) -> ByteStream:
        return ByteStream(self._stream((first,) if first else (), lambda chunk: (chunk,), tuple))

    def _relayed(self, first: bytes, dialect: Dialect, decode: Decode) -> ByteStream:
        """Return the bytes of a stream that the dialect does not read. Its events only tell its end marker."""
        parser: SSEParser | None = SSEParser(self._max_event)

        def feed(chunk: bytes) -> Sequence[bytes]:
            nonlocal parser
            piece = chunk if decode is None else decode(chunk)
            if parser is not None:
                try:
                    if any(map(dialect.is_end, parser.feed(piece))) and not self.complete:
                        self._complete()
                except UpstreamStreamError:  # a message that is too long, which the client may still want
                    parser = None
            return (piece,) if piece else ()

        return ByteStream(self._stream(feed(first), feed, tuple))

    def _stream(
        self,
        first: Sequence[T],
        feed: Callable[[bytes], Sequence[T]],
        close: Callable[[], Sequence[T]],
        after_comments: Callable[[], Sequence[T]] = tuple,
    ) -> ObservedStream[T]:
        answer = self._answer
        if self._deadline < math.inf:  # a reader that takes nothing must not hold the permit any longer
            self._timer = self._loop.call_at(self._deadline, self._abandon)
        if isinstance(answer, HttpResponse):
            body: _Body[T] = _NotifyingBody(self, answer, first, feed, close, after_comments)
        else:
            body = _Body(self, first, feed, close, after_comments)
        return ObservedStream(body, StreamObserver(on_close=self.close))

    async def read(self) -> bytes:
        """Return the next part of the body; empty at the end. Raise `UpstreamStreamError`.

        A complete answer cannot break any more.
        """
        if self._answer.at_eof:
            return b""
        try:
            return await self._answer.read(min(self._loop.time() + self._timeouts.idle, self._deadline))
        except ExchangeFailed as error:
            if self.complete:
                return b""
            raise self.stream_error(error) from None

    @property
    def limits(self) -> tuple[float, float]:
        """The idle timeout in seconds, and the event-loop time by which the body must be complete."""
        return self._timeouts.idle, self._deadline

    def stream_error(self, error: BaseException) -> UpstreamStreamError:
        is_over = self._loop.time() >= self._deadline
        if not (is_over or isinstance(error, TimedOut)):
            return UpstreamStreamError(f"backend '{self._name}' broke off the response ({error})")
        what = "exceeded timeouts.total" if is_over else "sent no data within timeouts.idle"
        return UpstreamStreamError(f"backend '{self._name}' {what}")

    def close(self) -> None:
        """Release the connection if the body is complete. Otherwise close it, which cancels the call upstream. If only
        the end of the body is missing, the connection waits for it."""
        if self._timer is not None:
            self._timer.cancel()
        if self.complete:
            self._answer.finish(self._deadline)
            self._permit.release()
        else:
            self._abandon()

    def _abandon(self) -> None:
        self._answer.close()
        self._permit.release()


class _Body(Generic[T]):
    """The rest of a body as a `Source`. `feed` converts each chunk, and `close` the end. If `feed` returned comments,
    `after_comments` returns the items of the same chunk."""

    can_notify, drained = False, True

    def __init__(
        self,
        exchange: ResponseReader,
        first: Sequence[T],
        feed: Callable[[bytes], Sequence[T]],
        close: Callable[[], Sequence[T]],
        after_comments: Callable[[], Sequence[T]],
    ) -> None:
        self._exchange = exchange
        self._after_comments = after_comments
        self._had_comments = type(first) is Comments  # the last batch
        self._first = first  # converted, but not taken yet
        self._chunk: bytes | None = None  # received, but not converted yet
        self._feed = feed
        self._close: Callable[[], Sequence[T]] | None = close

    def take(self) -> Sequence[T] | None:
        if self._first:
            return self._take_first()
        if self._had_comments and (items := self._take_rest()):
            return items
        chunk, self._chunk = self._chunk, None
        if not chunk:
            return None if chunk is None else self._end()
        return self._convert(chunk) or None

    def _take_rest(self) -> Sequence[T]:
        self._had_comments = False
        return self._after_comments()

    def _convert(self, chunk: bytes) -> Sequence[T]:
        items = self._feed(chunk)
        self._had_comments = type(items) is Comments
        return items

    def _take_first(self) -> Sequence[T]:
        first, self._first = self._first, ()
        return first

    def _end(self) -> Sequence[T]:
        close, self._close = self._close, None
        return () if close is None else close()

    @property
    def complete(self) -> bool:
        return self._exchange.complete and not (self._first or self._exchange.has_events)

    def is_finished(self) -> bool:
        return self._exchange.is_finished()

    async def wait(self) -> None:
        self._chunk = await self._exchange.read()

    def subscribe(self, wake: Callable[[], None] | None) -> None:
        raise NotImplementedError  # `can_notify` is False, so this is never called


class _NotifyingBody(_Body[T]):
    """The rest of a body that calls back when data arrives."""

    can_notify = True

    def __init__(
        self,
        exchange: ResponseReader,
        answer: HttpResponse,
        first: Sequence[T],
        feed: Callable[[bytes], Sequence[T]],
        close: Callable[[], Sequence[T]],
        after_comments: Callable[[], Sequence[T]],
    ) -> None:
        super().__init__(exchange, first, feed, close, after_comments)
        self._answer = answer
        self._wake: Callable[[], None] | None = None
        self._waits_for_end = False  # the end of the body is awaited, with its own limit

    def take(self) -> Sequence[T] | None:
        items = self._take()
        if items and self._exchange.complete and not self._waits_for_end:
            self._waits_for_end = True
            if self._wake is not None:
                self.subscribe(self._wake)
        return items

    def _take(self) -> Sequence[T] | None:
        answer = self._answer
        while True:
            if self._first:
                items: Sequence[T] | None = self._take_first()
            elif self._had_comments:
                items = self._take_rest()
            elif self._chunk is not None:
                items = super().take()
            elif answer.chunks:  # as `_convert`, which would be a call for each event
                items = self._feed(answer.take())
                self._had_comments = type(items) is Comments
            elif answer.whole:
                self.drained = False  # nobody is told of the end that follows the last event
                return self._end()
            elif answer.error is not None:
                if self._exchange.complete:
                    self.drained = False
                    return self._end()
                raise self._exchange.stream_error(answer.error)
            else:
                return None
            if items:
                self.drained = not (self._had_comments or answer.chunks or answer.whole or answer.error)
                return items

    def subscribe(self, wake: Callable[[], None] | None) -> None:
        self._wake = wake
        self._answer.subscribe(wake, *self._exchange.limits)


def _length_of(header_map: Mapping[str, str]) -> int:
    """Return the announced length of a body in bytes, or 0 if there is none."""
    length = header_map.get("content-length", "")
    return int(length) if length.isascii() and length.isdigit() else 0


def is_event_stream(header_map: Mapping[str, str], form: StreamForm | None = None) -> bool:
    """Return whether the body is a stream of events that can be read, in the endpoint's form. Those in an unknown
    coding pass through."""
    kind = media_type(header_map.get("content-type", ""))
    wanted = "text/event-stream" if form is None else form.media_type
    return kind == wanted and ("content-encoding" not in header_map or _is_readable(header_map))


def _is_readable(header_map: Mapping[str, str]) -> bool:
    coding = coding_of(header_map)
    return not coding or coding in CODINGS


def without(headers: Headers, name: str) -> Headers:
    """Return the headers but one. `name` is in lower case."""
    return tuple(header for header in headers if header[0].lower() != name)


def without_mark(data: bytes) -> bytes:
    """Return a whole JSON body without a byte order mark, which RFC 8259 lets a reader ignore."""
    return data[len(BYTE_ORDER_MARK) :] if data.startswith(MARKED_JSON) else data


def _error_in(events: Sequence[Event], dialect: Dialect) -> tuple[int, bytes] | None:
    """Return the error among the first events, if only announcements of an answer come before it."""
    for event in events:
        if (error := dialect.error_answer(event)) is not None:
            return error
        if with_event_name(event.data).name not in ANNOUNCEMENTS:
            return None
    return None


def _error_response(headers: Headers, status: int, body: bytes) -> Response:
    headers = tuple(header for header in headers if header[0].lower() not in OF_STREAMS)
    return Response(status, (*headers, ("Content-Type", "application/json")), FullBody(body))


def begins_event(body: bytes) -> bool:
    """Return whether a body begins with a line of an event. Many servers label their streams as text, or not at all."""
    return _FIELD.match(body) is not None
