"""One answer on its way to any number of clients, each reading at its own speed."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gateway.bodies import Guarded, close_body
from gateway.errors import BackendError, Refused, StreamBroken
from gateway.messages import ByteStream, Event, EventStream, Response, Tunnel, Whole

if TYPE_CHECKING:
    from gateway.observing.traced import Traced

LOG = logging.getLogger("nearhit")
# What a flight holds for its readers. A larger answer takes no more of them, and is read from the backend no faster
# than its slowest reader takes it.
MAX_BUFFER_BYTES = 8 * 1024 * 1024
# A reader that takes nothing for so long while others wait for it is cut off.
MAX_STALL_S = 20.0


class Flight:
    """The call runs in a task of its own: it goes on when the client that caused it leaves and others follow, and is
    cancelled, upstream too, when the last one has left. `origin`: of the request that caused it, if that is traced."""

    def __init__(self, answer: Awaitable[Response], origin: Traced | None = None) -> None:
        self.origin = origin
        self._items: list[Any] = []
        self._trimmed = 0  # how many items are no longer held
        self._size = 0
        self._positions: dict[object, int] = {}  # reader -> number of the item it takes next
        self._over = False
        self._failure: Exception | None = None  # of the call, where there was no answer
        self._error: Exception | None = None  # which its readers meet at the end
        self._changed: asyncio.Event | None = None  # where readers wait for what comes next
        self._taken: asyncio.Event | None = None  # where the flight waits for room
        self._loop = asyncio.get_running_loop()
        self._head: Response | None = None
        self._headless: list[asyncio.Future[Response]] = []  # of readers that wait for the head, each its own
        self.task = self._loop.create_task(self._fly(answer))

    @property
    def open(self) -> bool:
        """Whether a newcomer still gets the whole answer."""
        return self._trimmed == 0 and self._error is None and not self.task.cancelling()

    async def join(self) -> Response:
        """The answer for one client; ending or closing its body leaves the flight. Raises what the call raised."""
        if self._failure is not None:
            raise self._failure
        reader, head = object(), self._head
        self._positions[reader] = 0
        if head is None:
            waiting: asyncio.Future[Response] = self._loop.create_future()
            self._headless.append(waiting)
            try:
                head = await waiting
            except BaseException:
                self._leave(reader)
                raise
        if isinstance(head.body, Whole):
            self._leave(reader)
            return head
        items = Guarded(self._read(reader), lambda: self._leave(reader))
        return replace(head, body=EventStream(items) if isinstance(head.body, EventStream) else ByteStream(items))

    def _leave(self, reader: object) -> None:
        self._positions.pop(reader, None)
        self._take()
        if not self._positions and not self._over:
            self.task.cancel()

    # The reader's side

    async def _read(self, reader: object) -> AsyncGenerator[Any, None]:
        while True:
            position = self._positions.get(reader)
            if position is None:
                raise StreamBroken("the client read too slowly while others waited for the same answer")
            if position < self._trimmed + len(self._items):
                self._positions[reader] = position + 1
                item = self._items[position - self._trimmed]
                self._take()
                yield item
            elif self._error is not None:
                raise self._error
            elif self._over:
                return
            else:
                if self._changed is None:
                    self._changed = asyncio.Event()
                await self._changed.wait()

    def _take(self) -> None:
        if self._taken is not None:
            self._taken.set()

    # The flight's side

    async def _fly(self, answer: Awaitable[Response]) -> None:
        try:
            self._head = response = await answer
            for waiting in self._headless:
                if not waiting.done():
                    waiting.set_result(response)
            if not isinstance(response.body, Whole):
                await self._record(response.body)
        except Exception as error:
            self._fail(error)
        except asyncio.CancelledError:
            self._fail(BackendError("the call was cancelled", retryable=False))
            raise
        finally:
            self._over = True
            self._wake()

    async def _record(self, body: EventStream | ByteStream | Tunnel) -> None:
        assert not isinstance(body, Tunnel)  # no dialect's call becomes one
        try:
            async for item in body.events if isinstance(body, EventStream) else body.chunks:
                self._items.append(item)
                self._size += _size(item)
                self._wake()
                if self._size > MAX_BUFFER_BYTES:
                    await self._make_room()
        finally:
            await close_body(body)

    def _fail(self, error: Exception) -> None:
        if self._head is None:
            self._failure = error
            for waiting in self._headless:
                if not waiting.done():
                    waiting.set_exception(error)
                    waiting.exception()  # seen: its client may be about to leave
        elif not isinstance(error, StreamBroken | Refused):
            LOG.error("internal error in a stream", exc_info=error)
        known = isinstance(error, StreamBroken | Refused)
        self._error = (
            error if isinstance(error, StreamBroken) else StreamBroken(str(error) if known else "internal error")
        )

    def _wake(self) -> None:
        changed, self._changed = self._changed, None
        if changed is not None:
            changed.set()

    async def _make_room(self) -> None:
        while self._size > MAX_BUFFER_BYTES:
            self._trim()
            if self._size <= MAX_BUFFER_BYTES:
                return
            self._taken = asyncio.Event()
            try:
                async with asyncio.timeout(MAX_STALL_S):
                    await self._taken.wait()
            except TimeoutError:
                self._drop_slowest()
            finally:
                self._taken = None

    def _trim(self) -> None:
        """Lets go of what every reader has taken."""
        done = min(self._positions.values(), default=self._trimmed) - self._trimmed
        self._size -= sum(map(_size, self._items[:done]))
        del self._items[:done]
        self._trimmed += done

    def _drop_slowest(self) -> None:
        """A lone reader holds nobody up but itself; the backend's own time limits end it."""
        if len(self._positions) > 1:
            self._positions.pop(min(self._positions, key=self._positions.__getitem__))
            self._wake()


def _size(item: Event | bytes) -> int:
    return len(item.data) if isinstance(item, Event) else len(item)
