"""Streams between a source and a writer: one source, observers of its items, and one loop that the writer drives.

Items come in batches, as one read of a socket delivers them. If the source can notify about new items, a batch goes all
the way within the callback that delivered it. No task is woken. docs/decisions/0055 has the measurement.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from gateway.containment import Containment
from gateway.errors import UpstreamStreamError
from gateway.messages import (
    Body,
    ByteStream,
    Closing,
    Comment,
    Duplex,
    Event,
    EventStream,
    Frame,
    FullBody,
    Response,
    Tunnel,
)
from gateway.ports import BodyReader

# Streamed bodies are closed exactly once, however they end.
T = TypeVar("T")

# Seconds. A server that has sent the end marker of an answer ends the body some milliseconds later, and half a second
# later behind some proxies. Its connection is kept if the body ends within this time, and closed otherwise.
END_OF_BODY_S = 1.0

GONE = Closing(1001, "the other side is gone")


class ClosingStream(AsyncIterator[T], Generic[T]):
    """A stream with a clean-up that runs exactly once: at its end, when it fails, or when it is closed.

    A generator's own `finally` does not run if it is closed before its first step, so a connection would leak. A
    generator that reads from another stream therefore names it as `source`, which is closed with it.
    """

    def __init__(
        self,
        inner: AsyncIterator[T],
        on_close: Callable[[], None] | None = None,
        *,
        source: AsyncIterator[object] | None = None,
    ) -> None:
        self._inner = inner
        self._on_close = on_close
        self._source = source

    async def __anext__(self) -> T:
        try:
            return await self._inner.__anext__()
        except BaseException:  # StopAsyncIteration included
            self._finish()
            raise

    async def aclose(self) -> None:
        try:
            await close_stream(self._inner)
            if self._source is not None:
                await close_stream(self._source)
        finally:
            self._finish()

    def _finish(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


async def close_stream(stream: AsyncIterator[object]) -> None:
    """Close a stream, and drop its unread items. Closing twice is harmless."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()


class ClosingDuplex:
    """A `Duplex` that reports its end, once."""

    def __init__(self, inner: Duplex, on_end: Callable[[], None]) -> None:
        self._inner = inner
        self._done: Callable[[], None] | None = on_end

    @property
    def protocol(self) -> str | None:
        return self._inner.protocol

    async def send(self, frame: Frame) -> None:
        await self._inner.send(frame)

    async def receive(self) -> Frame | Closing:
        return await self._inner.receive()

    async def drain(self) -> None:
        await self._inner.drain()

    async def close(self, closing: Closing) -> None:
        try:
            await self._inner.close(closing)
        finally:
            on_end, self._done = self._done, None
            if on_end is not None:
                on_end()


async def close_body(body: Body) -> None:
    if isinstance(body, EventStream):
        await close_stream(body.events)
    elif isinstance(body, ByteStream):
        await close_stream(body.chunks)
    elif isinstance(body, Tunnel):
        await body.upstream.close(GONE)


async def drain(body: Body) -> None:
    """Read an unwanted body to its end, so that its observers learn that it was complete."""
    if isinstance(body, EventStream | ByteStream):
        try:
            async for _ in body.events if isinstance(body, EventStream) else body.chunks:
                pass
        finally:
            await close_body(body)


class BufferedStream(AsyncIterator[T], Generic[T]):
    """A stream whose items are all available. `take_all()` takes them at once.

    `on_close` runs exactly once: when the stream is closed, or read to its end item by item.
    """

    def __init__(self, items: tuple[T, ...], on_close: Callable[[], None] | None = None) -> None:
        self._items = items
        self._next = 0
        self._on_close = on_close

    async def __anext__(self) -> T:
        if self._next >= len(self._items):
            self.close()
            raise StopAsyncIteration
        item = self._items[self._next]
        self._next += 1
        return item

    async def aclose(self) -> None:
        self.close()

    def close(self) -> None:
        """Close the stream, as `aclose`."""
        self._next = len(self._items)
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    def observe_close(self, on_close: Callable[[], None]) -> None:
        """Run `on_close` after the clean-up that the stream has already."""
        first = self._on_close
        if first is None:
            self._on_close = on_close
            return

        def run_both() -> None:
            try:
                first()
            finally:
                on_close()

        self._on_close = run_both

    @property
    def items(self) -> tuple[T, ...]:
        """The items that `take_all()` would take."""
        return self._items[self._next :]

    def take_all(self) -> tuple[T, ...]:
        items, self._next = self._items[self._next :], len(self._items)
        return items


class BufferedBody:
    """The body of a request that has arrived completely; `b""`: no body. Implements `BodySource`."""

    __slots__ = ("buffered_body",)
    replayable = True

    def __init__(self, body: bytes = b"") -> None:
        self.buffered_body = body

    async def read(self) -> bytes:
        return self.buffered_body

    def read_nowait(self) -> bytes:
        return self.buffered_body

    async def buffer(self, *, whole: bool = False) -> None:
        """Return at once: everything has arrived."""

    async def look_ahead(self, reader: BodyReader, limit: int) -> bool:
        """Show all of it to `reader`, whatever the limit."""
        if self.buffered_body:
            reader.feed(self.buffered_body)
        reader.feed(b"")
        return True

    def stream(self) -> AsyncIterator[bytes] | None:
        return once(self.buffered_body) if self.buffered_body else None


async def once(body: bytes) -> AsyncIterator[bytes]:
    yield body


T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class StreamObserver(Generic[T]):
    """`StreamObserver` sees the items of a stream.

    - `on_items` gets each batch, and returns the batch to pass on.
    - `on_complete` runs after the last item; its result is awaited, if it returns one.
    - `on_error` runs if the stream breaks. It returns the items that replace the break, or None if it does not handle
      it.
    - `on_close` runs exactly once: after these, or when the stream is closed early.
    """

    on_items: Callable[[Sequence[T]], Sequence[T]] | None = None
    on_complete: Callable[[], Awaitable[None] | None] | None = None
    on_error: Callable[[UpstreamStreamError], Sequence[T] | None] | None = None
    on_close: Callable[[], None] | None = None


class Comments(tuple[Comment, ...]):
    """A batch of comments. They reach the writer of a stream at once. Observers do not see them, nor do those who read
    a stream item by item."""

    __slots__ = ()


class EventSource(Protocol[T_co]):
    """The source of a stream. It may have an `aclose()`. A batch of it has only items, or is `Comments`.

    `drained` means that the last `take` returned everything available: nothing more comes before a wait or a
    notification.
    """

    drained: bool

    @property
    def complete(self) -> bool:
        """Whether the end marker of an answer was taken. The items after it are no part of the answer."""

    def is_finished(self) -> bool:
        """Return whether the model has said everything, and at most the usage and the end marker are missing."""

    def take(self) -> Sequence[T_co] | None:
        """Return the items that have arrived since the last call. Return None before anything arrives, and an empty
        result at the end. Raise `UpstreamStreamError`."""

    async def wait(self) -> None:
        """Wait until `take` may have something. Call it after `take` returned None."""

    @property
    def can_notify(self) -> bool:
        """Whether `subscribe` may be called."""

    def subscribe(self, wake: Callable[[], None] | None) -> None:
        """Call `wake` whenever `take` may have something, until the next `subscribe`.

        Subscribe after `take` returned None. With `wake` None nobody waits, and the source may stay silent for any
        time.
        """


def _unchanged(items: Sequence[T]) -> Sequence[T]:
    return items


class _Tap(Generic[T]):
    """An observer on a stream, and the step that added it. `owner` is None until a step claims it."""

    __slots__ = ("observer", "on_items", "owner")

    def __init__(self, observer: StreamObserver[T]) -> None:
        self.observer = observer
        self.on_items = observer.on_items or _unchanged
        self.owner: Containment | None = None

    def close(self) -> None:
        on_close = self.observer.on_close
        if on_close is not None:
            try:
                on_close()
            except Exception as error:
                self.contain(error)

    def contain(self, error: Exception) -> None:
        """Record an error that costs only the work of the observer. Raise it if no step owns the observer."""
        if self.owner is None:
            raise error
        self.owner.record(error)


class ObservedStream(AsyncIterator[T], Generic[T]):
    """A stream with observers. Its holder takes batches to the end and then calls `end`, or reads item by item, or
    closes it.

    An observer of an optional step may fail: the stream then goes on without it. A failure of any other observer, or of
    the source, breaks the stream. After the last item no failure matters to the reader.
    """

    def __init__(self, source: EventSource[T], *observers: StreamObserver[T]) -> None:
        self._source = source
        self._taps = [_Tap(observer) for observer in observers]  # those not closed yet, from the source on
        self._batch_hooks = [tap for tap in self._taps if tap.observer.on_items is not None]
        self._owner: Containment | None = None  # of the source: the first step that claimed the stream
        self._done = False  # the source has no more
        self.drained = False  # see `EventSource`
        self._read: Iterator[T] = iter(())  # rest of a batch that is read item by item

    @property
    def can_notify(self) -> bool:
        return self._source.can_notify

    @property
    def complete(self) -> bool:
        """Whether the end marker of the answer was taken: see `EventSource`."""
        return self._source.complete

    @property
    def ended(self) -> bool:
        """Whether the source has no more."""
        return self._done

    def is_finished(self) -> bool:
        """See `EventSource`."""
        return self._source.is_finished()

    def subscribe(self, wake: Callable[[], None] | None) -> None:
        """Set the callback: see `EventSource`."""
        self._source.subscribe(wake)

    def tap(self, observer: StreamObserver[T]) -> None:
        """Add an observer to a stream from which nothing has been taken."""
        tap = _Tap(observer)
        self._taps.append(tap)
        if observer.on_items is not None:
            self._batch_hooks.append(tap)

    def claim(self, owner: Containment) -> None:
        """Make `owner` the owner of the observers that nobody has claimed, and of an unclaimed source."""
        if self._owner is None:
            self._owner = owner
        for tap in reversed(self._taps):
            if tap.owner is not None:
                return
            tap.owner = owner

    def take(self) -> Sequence[T] | None:
        """Return the next batch, as `EventSource.take`."""
        while not self._done:
            try:
                items = self._source.take()
                if not items:
                    self._done = items is not None
                    return items
                kind: type = type(items)
                if kind is Comments:
                    self.drained = self._source.drained
                    return items
                for tap in self._batch_hooks:
                    try:
                        items = tap.on_items(items)
                    except Exception as error:
                        self._drop(tap, error)
            except Exception as error:
                return self._break(error)
            if items:
                self.drained = self._source.drained
                return items
        return ()

    async def next_batch(self) -> Sequence[T]:
        """Return the next batch; empty at the end, after which `end` is not needed. Raise `UpstreamStreamError`."""
        try:
            while (items := self.take()) is None:
                try:
                    await self._source.wait()
                except Exception as error:
                    items = self._break(error)
                    break
        except BaseException:
            if not self._source.complete:  # otherwise `aclose` completes them
                self._close_observers()
            raise
        if not items:
            await self.end()
        return items

    async def end(self) -> None:
        """Complete the observers after all items have been taken."""
        try:
            while self._taps:
                tap = self._taps.pop(0)
                try:
                    on_complete = tap.observer.on_complete
                    awaited = None if on_complete is None else on_complete()
                    if awaited is not None:
                        await awaited
                except Exception as error:
                    tap.contain(error)
                finally:
                    tap.close()
        finally:
            self._close_observers()

    async def __anext__(self) -> T:
        while True:
            for item in self._read:
                return item
            items = await self.next_batch()
            if not items:
                raise StopAsyncIteration
            if type(items) is not Comments:
                self._read = iter(items)

    async def aclose(self) -> None:
        """Close the stream, and drop what has not been taken. Closing twice is harmless.

        Many clients leave at the end marker. The answer is complete then, and so are the observers.
        """
        try:
            if self._taps and self._source.complete:
                await self.end()
            close = getattr(self._source, "aclose", None)
            if close is not None:
                await close()
        finally:
            self._close_observers()

    def _drop(self, tap: _Tap[T], error: Exception) -> None:
        """Remove an observer of an optional step that has failed: it has missed items, so that it can't complete. Raise
        the error of any other observer."""
        if isinstance(error, UpstreamStreamError) or tap.owner is None or not tap.owner.optional:
            raise error
        tap.owner.record(error)
        self._batch_hooks = [hook for hook in self._batch_hooks if hook is not tap]
        self._taps.remove(tap)
        tap.close()

    def _break(self, error: Exception) -> Sequence[T]:
        """Return the items that replace the rest of a broken stream. Observers after the one that handles the error see
        a stream that ends. Raise the error if no observer handles it."""
        if not isinstance(error, UpstreamStreamError):
            if self._owner is None:
                raise error
            self._owner.record(error)
            error = UpstreamStreamError("internal error")
        self._done, self.drained = True, False
        while self._taps:
            tap = self._taps.pop(0)
            replacement = self._replace(tap, error)
            tap.close()
            if replacement is not None:
                for later_tap in tuple(self._taps):
                    try:
                        replacement = later_tap.on_items(replacement)
                    except Exception as failure:
                        self._drop(later_tap, failure)
                return replacement
        raise error

    def _replace(self, tap: _Tap[T], error: UpstreamStreamError) -> Sequence[T] | None:
        on_error = tap.observer.on_error
        try:
            return None if on_error is None else on_error(error)
        except Exception as failure:
            tap.contain(failure)
            return None

    def _close_observers(self) -> None:
        self._done = True
        self._batch_hooks = []  # they refer to the request, which may refer to the stream
        while self._taps:
            try:
                self._taps.pop(0).close()
            finally:
                self._close_observers()


class _IteratorSource(Generic[T]):
    """A source that wraps an iterator. It reads item by item, and cannot notify."""

    can_notify, drained, complete = False, True, False

    def __init__(self, inner: AsyncIterator[T]) -> None:
        self._inner = inner
        self._batch: Sequence[T] | None = None
        self._error: UpstreamStreamError | None = None

    def take(self) -> Sequence[T] | None:
        if self._error is not None:
            raise self._error
        batch, self._batch = self._batch, None
        return batch

    def is_finished(self) -> bool:
        return False

    async def wait(self) -> None:
        try:
            self._batch = (await anext(self._inner),)
        except StopAsyncIteration:
            self._batch = ()
        except UpstreamStreamError as error:
            self._error = error

    def subscribe(self, wake: Callable[[], None] | None) -> None:
        raise NotImplementedError  # not called, because `can_notify` is False

    async def aclose(self) -> None:
        await close_stream(self._inner)


def as_observed(stream: AsyncIterator[T]) -> ObservedStream[T]:
    return stream if isinstance(stream, ObservedStream) else ObservedStream(_IteratorSource(stream))


async def items_of_answer(stream: AsyncIterator[T]) -> AsyncIterator[T]:
    """Yield the items of a stream up to its end, or up to the batch with the end marker of the answer. The caller
    closes the stream."""
    flow = as_observed(stream)
    while items := await flow.next_batch():
        kind: type = type(items)
        if kind is not Comments:
            for item in items:
                yield item
        if flow.complete:
            return


def with_observer(stream: AsyncIterator[T], tap: StreamObserver[T]) -> ObservedStream[T]:
    """Add an observer to `stream`, which must not be used any more."""
    flow = as_observed(stream)
    flow.tap(tap)
    return flow


def with_completion(response: Response, on_end: Callable[[], None]) -> Response:
    """Call `on_end` once, when the body ends or is closed. Call it at once if the body is complete or the answer is an
    error."""
    body = response.body
    if isinstance(body, Tunnel):  # of status 101
        return replace(response, body=replace(body, upstream=ClosingDuplex(body.upstream, on_end)))
    if isinstance(body, FullBody) or response.status >= 400:
        on_end()
        return response
    if isinstance(body, EventStream):
        return replace(response, body=EventStream(with_observer(body.events, StreamObserver(on_close=on_end))))
    return replace(response, body=ByteStream(with_observer(body.chunks, StreamObserver(on_close=on_end))))


async def wait_ready(source: EventSource[Any]) -> None:
    """Implement `wait` for a source that notifies."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    source.subscribe(lambda: None if waiter.done() else waiter.set_result(None))
    try:
        await waiter
    finally:
        source.subscribe(None)


async def pump(
    flow: ObservedStream[T], write: Callable[[Sequence[T]], bool], wait_writable: Callable[[], Awaitable[None]]
) -> None:
    """Write the whole stream with `write`, batch by batch as it arrives.

    If `write` returns False, nothing is taken from the source until `wait_writable` returns. Raise
    `UpstreamStreamError`, and the errors of `write`. The caller closes the flow.
    """
    if flow.can_notify:
        pump = _Pump(flow, write)
        while await pump.run():
            await wait_writable()
        await flow.end()
        return
    while items := await flow.next_batch():
        if not write(items):
            await wait_writable()


class _Pump(Generic[T]):
    """Runs within the callbacks of a source that notifies. The task that runs it is woken only at the end, or when the
    writer is full."""

    __slots__ = ("_flow", "_is_running", "_waiter", "_write")

    def __init__(self, flow: ObservedStream[T], write: Callable[[Sequence[T]], bool]) -> None:
        self._flow = flow
        self._write = write
        self._is_running = False  # a stream that breaks closes its source, which may notify about that
        self._waiter: asyncio.Future[bool] | None = None  # None unless it runs

    async def run(self) -> bool:
        """Run until the writer is full (return True) or the stream ends (return False)."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiter = waiter
        self()
        if not waiter.done():
            self._flow.subscribe(self)
        try:
            return await waiter
        finally:
            self._flow.subscribe(None)
            # An error holds the frames that it passed, with their batch. If one of these held the future, and so the
            # error, the batch would stay until a garbage collection.
            self._waiter = None
            del waiter

    def __call__(self) -> None:
        waiter = self._waiter
        if waiter is None or waiter.done() or self._is_running:
            return
        self._is_running = True
        try:
            while items := self._flow.take():
                if not self._write(items):
                    waiter.set_result(True)
                    self._flow.subscribe(None)  # at once, so that the source stops before it has read more
                    return
                if self._flow.drained:
                    return
            if items is not None:
                waiter.set_result(False)
        except Exception as error:  # raised again in the task that runs the pump
            waiter.set_exception(error)
        finally:
            self._is_running = False
            del waiter  # see `run`


# An answer that is read completely before any of it is sent.

# The same limit as for the readers of a flight. With log probabilities a token takes some 200 bytes.
MAX_BUFFERED_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BufferedResponse:
    response: Response  # its status and headers
    events: tuple[Event, ...] | None  # None unless the body was a stream
    whole: bytes = b""

    @property
    def streamed(self) -> bool:
        return self.events is not None

    @property
    def payload(self) -> tuple[bytes, ...]:
        """The payload, as in `Entry`."""
        return (self.whole,) if self.events is None else tuple(event.data for event in self.events)

    def to_response(self) -> Response:
        """Return the answer in its original form; a stream comes all at once."""
        body = FullBody(self.whole) if self.events is None else EventStream(BufferedStream(self.events))
        return replace(self.response, body=body)

    def map_data(self, change: Callable[[bytes], bytes]) -> BufferedResponse:
        """Return a copy with `change` applied to the whole body, or to the data of each event."""
        if self.events is None:
            return replace(self, whole=change(self.whole))
        return replace(self, events=tuple(Event(change(event.data), event.name) for event in self.events))


async def buffer_response(response: Response, limit: int = MAX_BUFFERED_BYTES) -> BufferedResponse | None:
    """Read a response to its end marker, or to its end.

    Return None if its status is not 200, its body is too long, or its form is unknown; the response is then closed.
    Raise `UpstreamStreamError`.
    """
    body = response.body
    if response.status != 200 or not isinstance(body, FullBody | EventStream):
        await close_body(body)
        return None
    if isinstance(body, FullBody):
        return BufferedResponse(response, None, body.data) if len(body.data) <= limit else None
    events: list[Event] = []
    size = 0
    try:
        async for event in items_of_answer(body.events):
            size += len(event.data)
            if size > limit:
                return None
            events.append(event)
    finally:
        await close_stream(body.events)
    return BufferedResponse(response, tuple(events))
