"""Share one answer in flight among any number of clients, each reading at its own speed."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING, Any

from gateway.errors import BackendError, GatewayError, UpstreamStreamError
from gateway.messages import ByteStream, Comment, Event, EventStream, FullBody, Response, Tunnel
from gateway.streams import (
    END_OF_BODY_S,
    Comments,
    ObservedStream,
    StreamObserver,
    as_observed,
    close_body,
    pump,
    wait_ready,
)
from gateway.unread_memory import UnreadMemory

if TYPE_CHECKING:
    from gateway.tracing import TraceRecorder

LOG = logging.getLogger("nearhit")
# Buffer of a flight. Of a larger answer, the slowest reader determines how fast it is read from the backend.
MAX_BUFFER_BYTES = 8 * 1024 * 1024
# Buffer of a flight while unread answers take all the memory that is allowed to them.
MIN_BUFFER_BYTES = 64 * 1024
# A comment counts as much in the buffer as it takes in memory. Most of them are a few bytes, or none.
COMMENT_BYTES = 128
# A reader takes at most this many items and this fraction of the buffer (64 kB) at once. Then the gateway checks
# whether its client keeps up.
MAX_BATCH, BATCH_PART = 64, 128
# Seconds. A reader that takes nothing for so long is cut off if others wait for it.
MAX_STALL_S = 20.0


class SharedCall:
    """`SharedCall` runs one backend call in its own task for all its readers.

    It continues when the client that caused it leaves and others follow. If the last client leaves after the end marker
    of the answer, the answer is stored. If it leaves earlier, the call is cancelled, also upstream. `origin` is the
    trace of the request that caused it, if there is one. Its buffer counts in `unread`.
    """

    def __init__(
        self, answer: Awaitable[Response], origin: TraceRecorder | None = None, unread: UnreadMemory | None = None
    ) -> None:
        self.origin = origin
        self._unread = unread or UnreadMemory(math.inf)
        self._items: list[Any] = []
        self._trimmed = 0  # how many items were dropped from the front of `_items`
        self._size = 0
        self._positions: dict[_FlightReader, int] = {}  # reader -> number of its next item
        self._has_comments = False
        self._is_finished = False
        self._failure: Exception | None = None  # of the call, where there was no answer
        self._error: Exception | None = None  # raised to the readers at the end
        self._wake_callbacks: dict[_FlightReader, Callable[[], None]] = {}  # of readers that wait for the next items
        self._room_event: asyncio.Event | None = None  # set while the flight waits for room
        self._loop = asyncio.get_running_loop()
        self._head: Response | None = None
        self._head_waiters: list[asyncio.Future[Response]] = []  # one per reader that waits for the head
        self._abandoned = False  # the last reader has left before the answer was complete
        self._is_landing = False  # the last reader has left after the end marker of the answer
        self._stream: ObservedStream[Any] | None = None  # from the backend
        self.task = self._loop.create_task(self._run(answer))

    def __del__(self) -> None:
        """Give back the memory of items that nobody read, because the client left before it joined."""
        self._unread.used -= self._size

    @property
    def is_joinable(self) -> bool:
        return self._trimmed == 0 and self._error is None and not self._abandoned

    async def join(self) -> Response:
        """Return the answer for one client; closing its body leaves the flight. Raise the call's error."""
        if self._failure is not None:
            raise self._failure
        reader, head = _FlightReader(self), self._head
        self._positions[reader] = 0
        if head is None:
            waiter: asyncio.Future[Response] = self._loop.create_future()
            self._head_waiters.append(waiter)
            try:
                head = await waiter
            except BaseException:
                self._leave(reader)
                raise
        if isinstance(head.body, FullBody):
            self._leave(reader)
            return head
        items: ObservedStream[Any] = ObservedStream(
            reader,
            StreamObserver(on_complete=lambda: self._land(reader), on_close=lambda: self._leave(reader)),
        )
        return replace(head, body=EventStream(items) if isinstance(head.body, EventStream) else ByteStream(items))

    def _leave(self, reader: _FlightReader) -> None:
        self._positions.pop(reader, None)
        if self._room_event is not None:
            self._room_event.set()
        stream = self._stream
        if self._positions:
            return
        if self._is_finished:
            self._drop_items(len(self._items))
        elif stream is None or stream.ended or stream.complete or not stream.is_finished():
            self._end_if_unread()
        else:  # the usage and the end marker are about to come
            self._loop.call_later(END_OF_BODY_S, self._end_if_unread)

    def _end_if_unread(self) -> None:
        """End the call if nobody reads it: a complete answer lands, any other one is cancelled."""
        if self._positions or self._is_finished or self._abandoned or self._is_landing:
            return
        stream = self._stream
        self._is_landing = stream is not None and (stream.ended or stream.complete)
        self._abandoned = not self._is_landing
        if stream is None or not stream.ended:
            # Not before it has begun: its coroutine may hold resources, which only a started task releases.
            self._loop.call_soon(self.task.cancel)

    def _land(self, reader: _FlightReader) -> Awaitable[None] | None:
        """Leave with a complete answer. If the reader was the last one, wait until the answer is stored."""
        self._leave(reader)
        return self._wait_landed() if self._is_landing and not self._is_finished else None

    async def _wait_landed(self) -> None:
        await asyncio.wait((self.task,))

    # The readers' side

    def take_batch(self, reader: _FlightReader) -> Sequence[Any] | None:
        """Return the next items for a reader. See `EventSource.take`."""
        position = self._positions.get(reader)
        if position is None:
            raise UpstreamStreamError("the client read too slowly while others waited for the same answer")
        at = position - self._trimmed
        items = self._items[at : at + MAX_BATCH]
        if items:
            if len(items) > 1:
                del items[_count_within(MAX_BUFFER_BYTES // BATCH_PART, items) :]
            batch = _first_run(items) if self._has_comments else items
            self._positions[reader] = position + len(batch)
            reader.drained = at + len(batch) == len(self._items) and not self._is_finished
            if self._room_event is not None:
                self._room_event.set()
            return batch
        if self._error is not None:
            raise self._error
        return () if self._is_finished else None

    def is_complete_for(self, reader: _FlightReader) -> bool:
        """Whether a reader has taken a complete answer."""
        has_taken_all = self._positions.get(reader, -1) == self._trimmed + len(self._items)
        return has_taken_all and self._stream is not None and self._stream.complete

    def subscribe(self, reader: _FlightReader, wake: Callable[[], None] | None) -> None:
        """Set or clear a reader's wake-up callback. See `EventSource.subscribe`."""
        if wake is None:
            self._wake_callbacks.pop(reader, None)
        else:
            self._wake_callbacks[reader] = wake

    # The flight's side

    async def _run(self, answer: Awaitable[Response]) -> None:
        try:
            self._head = response = await answer
            for waiter in self._head_waiters:
                if not waiter.done():
                    waiter.set_result(response)
            if not isinstance(response.body, FullBody):
                await self._record(response.body)
        except Exception as error:
            self._fail(error)
        except asyncio.CancelledError:
            self._fail(BackendError("the call was cancelled", retryable=False))
            raise
        finally:
            self._is_finished = True
            # A flight that lands in its first step has no reader yet: the one who began it joins a moment later.
            if self._abandoned:
                self._drop_items(len(self._items))
            self._wake()

    async def _record(self, body: EventStream | ByteStream | Tunnel) -> None:
        assert not isinstance(body, Tunnel)  # no dialect's call becomes a tunnel
        try:
            self._stream = as_observed(body.events) if isinstance(body, EventStream) else as_observed(body.chunks)
            await pump(self._stream, self._append_items, self._make_room)
        except asyncio.CancelledError:
            if not self._is_landing:
                raise
            self.task.uncancel()
            # Nobody waits for the end of the body. To close a complete stream completes its observers.
        finally:
            await close_body(body)

    def _append_items(self, items: Sequence[Any]) -> bool:
        """Append items and return whether there is room for more."""
        self._items += items
        self._has_comments = self._has_comments or type(items) is Comments
        added = sum(map(_size, items))
        self._size += added
        self._unread.used += added
        self._wake()
        return self._has_room

    @property
    def _has_room(self) -> bool:
        return self._size <= (MAX_BUFFER_BYTES if self._unread.has_room else MIN_BUFFER_BYTES)

    def _fail(self, error: Exception) -> None:
        if self._head is None:
            self._failure = error
            for waiter in self._head_waiters:
                if not waiter.done():
                    waiter.set_exception(error)
                    waiter.exception()  # retrieved here, as its client may be about to leave
        elif not isinstance(error, UpstreamStreamError | GatewayError):
            LOG.error("internal error in a stream", exc_info=error)
        is_expected = isinstance(error, UpstreamStreamError | GatewayError)
        self._error = (
            error
            if isinstance(error, UpstreamStreamError)
            else UpstreamStreamError(str(error) if is_expected else "internal error")
        )

    def _wake(self) -> None:
        for wake in tuple(self._wake_callbacks.values()):
            wake()

    async def _make_room(self) -> None:
        while not self._has_room:
            self._trim()
            if self._has_room:
                return
            self._room_event = asyncio.Event()
            try:
                async with asyncio.timeout(MAX_STALL_S):
                    await self._room_event.wait()
            except TimeoutError:
                self._drop_slowest()
            finally:
                self._room_event = None

    def _trim(self) -> None:
        """Drop the items that every reader has taken."""
        self._drop_items(min(self._positions.values(), default=self._trimmed) - self._trimmed)

    def _drop_items(self, count: int) -> None:
        """Drop items from the front."""
        dropped = sum(map(_size, self._items[:count]))
        self._size -= dropped
        self._unread.used -= dropped
        del self._items[:count]
        self._trimmed += count

    def _drop_slowest(self) -> None:
        """Cut off the slowest reader. A lone reader delays only itself, and the backend's timeouts end it."""
        if len(self._positions) > 1:
            self._positions.pop(min(self._positions, key=self._positions.__getitem__))
            self._wake()


class _FlightReader:
    """One reader of a flight; implements `EventSource`."""

    __slots__ = ("_flight", "drained")
    can_notify = True

    def __init__(self, flight: SharedCall) -> None:
        self._flight = flight
        self.drained = False

    def take(self) -> Sequence[Any] | None:
        return self._flight.take_batch(self)

    def subscribe(self, wake: Callable[[], None] | None) -> None:
        self._flight.subscribe(self, wake)

    @property
    def complete(self) -> bool:
        return self._flight.is_complete_for(self)

    def is_finished(self) -> bool:
        return False

    async def wait(self) -> None:
        await wait_ready(self)


def _count_within(size: int, items: Sequence[Any]) -> int:
    """Return how many of the items reach `size` bytes together, or their number."""
    for count, item in enumerate(items, 1):
        size -= _size(item)
        if size <= 0:
            return count
    return len(items)


def _first_run(items: Sequence[Any]) -> Sequence[Any]:
    """Return the comments at the start of the items, or the items before the first comment."""
    runs = groupby(items, key=lambda item: isinstance(item, Comment))
    is_comment, run = next(runs)
    return Comments(run) if is_comment else list(run)


def _size(item: Event | bytes) -> int:
    if isinstance(item, Comment):
        return COMMENT_BYTES + len(item.data)
    return len(item.data) if isinstance(item, Event) else len(item)
