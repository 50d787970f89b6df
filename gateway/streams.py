"""Streams on their way from where they are read to where they are written: one source, what sees its items go by, and
one loop, which whoever writes turns. Items come in batches, as one read of a socket brought them; where the source can
say when there is more, a batch goes all the way within the callback that brought it, and no task is woken
(docs/decisions/0039-streams.md has the measurement)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar

from gateway.body_streams import Ending, close_stream
from gateway.errors import StreamBroken
from gateway.messages import ByteStream, EventStream, Response, Tunnel, Whole

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Tap(Generic[T]):
    """What sees a stream go by. `saw` is given each batch, and returns what goes on of it; `ended` runs when all of the
    stream was seen, and may be waited for; `broke` when there is no more to come, and returns what is said in place of
    the break, None where that is not its business. `closed` runs exactly once, after these, or when the stream is
    given up before its end."""

    saw: Callable[[Sequence[T]], Sequence[T]] | None = None
    ended: Callable[[], Awaitable[None] | None] | None = None
    broke: Callable[[StreamBroken], Sequence[T] | None] | None = None
    closed: Callable[[], None] | None = None


class Source(Protocol[T_co]):
    """Where a stream comes from. It may have an `aclose()`. `dry`: what `take` has just returned was all that there is,
    so that nothing more comes of it before it is waited for, or tells."""

    dry: bool

    def take(self) -> Sequence[T_co] | None:
        """What has come since the last time; None: nothing yet; empty: the end. Raises `StreamBroken`."""

    async def wait(self) -> None:
        """Once `take` had nothing: until it may have something."""

    @property
    def tells(self) -> bool:
        """Whether `tell` may be called."""

    def tell(self, wake: Callable[[], None] | None) -> None:
        """Once `take` had nothing: calls `wake` each time when it may have something, until told otherwise. None:
        nobody waits, and nothing may come for as long as it likes."""


class Flow(AsyncIterator[T], Generic[T]):
    """Whoever holds it takes batches to the end and then calls `end`, or reads it item by item, or closes it."""

    def __init__(self, source: Source[T], *taps: Tap[T]) -> None:
        self._source = source
        self._taps = list(taps)  # those that have not been closed, from the source on
        self._saws = [tap.saw for tap in taps if tap.saw is not None]
        self._over = False  # the source has no more
        self.dry = False  # see `Source`
        self._read: Iterator[T] = iter(())  # of a batch that is read item by item

    @property
    def tells(self) -> bool:
        return self._source.tells

    def tell(self, wake: Callable[[], None] | None) -> None:
        """See `Source`."""
        self._source.tell(wake)

    def tap(self, tap: Tap[T]) -> None:
        """Of a stream of which nothing has been taken."""
        self._taps.append(tap)
        if tap.saw is not None:
            self._saws.append(tap.saw)

    def take(self) -> Sequence[T] | None:
        """As `Source` has it."""
        while not self._over:
            try:
                items = self._source.take()
            except StreamBroken as error:
                return self._broken(error)
            if not items:
                self._over = items is not None
                return items
            for saw in self._saws:
                items = saw(items)
            if items:
                self.dry = self._source.dry
                return items
        return ()

    async def more(self) -> Sequence[T]:
        """The next batch; empty at the end, which needs no `end`. Raises `StreamBroken`."""
        try:
            while (items := self.take()) is None:
                await self._source.wait()
        except BaseException:
            self._shut()
            raise
        if not items:
            await self.end()
        return items

    async def end(self) -> None:
        """All was taken."""
        try:
            while self._taps:
                tap = self._taps.pop(0)
                try:
                    awaited = None if tap.ended is None else tap.ended()
                    if awaited is not None:
                        await awaited
                finally:
                    if tap.closed is not None:
                        tap.closed()
        finally:
            self._shut()

    async def __anext__(self) -> T:
        while True:
            for item in self._read:
                return item
            items = await self.more()
            if not items:
                raise StopAsyncIteration
            self._read = iter(items)

    async def aclose(self) -> None:
        """Gives up what has not been taken. Closing twice does no harm."""
        try:
            close = getattr(self._source, "aclose", None)
            if close is not None:
                await close()
        finally:
            self._shut()

    def _broken(self, error: StreamBroken) -> Sequence[T]:
        """What is said instead; those that come after who says it see a stream that ends."""
        self._over, self.dry = True, False
        while self._taps:
            tap = self._taps.pop(0)
            said = None if tap.broke is None else tap.broke(error)
            if tap.closed is not None:
                tap.closed()
            if said is not None:
                for after in self._taps:
                    said = said if after.saw is None else after.saw(said)
                return said
        raise error

    def _shut(self) -> None:
        self._over = True
        while self._taps:
            tap = self._taps.pop(0)
            if tap.closed is not None:
                try:
                    tap.closed()
                finally:
                    self._shut()


class _Drawn(Generic[T]):
    """A source that is an iterator: item by item, and it cannot tell."""

    tells, dry = False, True

    def __init__(self, inner: AsyncIterator[T]) -> None:
        self._inner = inner
        self._came: Sequence[T] | None = None
        self._error: StreamBroken | None = None

    def take(self) -> Sequence[T] | None:
        if self._error is not None:
            raise self._error
        came, self._came = self._came, None
        return came

    async def wait(self) -> None:
        try:
            self._came = (await anext(self._inner),)
        except StopAsyncIteration:
            self._came = ()
        except StreamBroken as error:
            self._error = error

    def tell(self, wake: Callable[[], None] | None) -> None:
        raise NotImplementedError  # `tells` says so: nobody asks

    async def aclose(self) -> None:
        await close_stream(self._inner)


def flow_of(stream: AsyncIterator[T]) -> Flow[T]:
    return stream if isinstance(stream, Flow) else Flow(_Drawn(stream))


def tapped(stream: AsyncIterator[T], tap: Tap[T]) -> Flow[T]:
    """`stream`, which is not used any more, with one more that sees it go by."""
    flow = flow_of(stream)
    flow.tap(tap)
    return flow


def with_end(response: Response, over: Callable[[], None]) -> Response:
    """Calls `over` once, when the body has ended or is given up; at once where it is whole, or the answer an error."""
    body = response.body
    if isinstance(body, Tunnel):  # of status 101
        return replace(response, body=Tunnel(Ending(body.upstream, over)))
    if isinstance(body, Whole) or response.status >= 400:
        over()
        return response
    if isinstance(body, EventStream):
        return replace(response, body=EventStream(tapped(body.events, Tap(closed=over))))
    return replace(response, body=ByteStream(tapped(body.chunks, Tap(closed=over))))


async def told(source: Source[Any]) -> None:
    """`wait` of a source that tells."""
    waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    source.tell(lambda: None if waiter.done() else waiter.set_result(None))
    try:
        await waiter
    finally:
        source.tell(None)


async def pour(flow: Flow[T], write: Callable[[Sequence[T]], bool], room: Callable[[], Awaitable[None]]) -> None:
    """All of it into `write`, batch by batch and as it comes. Where that says no, nothing is taken off the source until
    `room` returns. Raises `StreamBroken`, and what `write` raises; whoever calls this closes the flow."""
    if flow.tells:
        pump = _Pump(flow, write)
        while await pump.run():
            await room()
        await flow.end()
        return
    while items := await flow.more():
        if not write(items):
            await room()


class _Pump(Generic[T]):
    """Turns within the callbacks of a source that tells; the task that runs it is woken at the end alone, or where
    there is no room."""

    __slots__ = ("_flow", "_waiter", "_write")

    def __init__(self, flow: Flow[T], write: Callable[[Sequence[T]], bool]) -> None:
        self._flow = flow
        self._write = write

    async def run(self) -> bool:
        """Until there is no room: True; or the end: False."""
        waiter: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiter = waiter
        self()
        if not waiter.done():
            self._flow.tell(self)
        try:
            return await waiter
        finally:
            self._flow.tell(None)

    def __call__(self) -> None:
        waiter = self._waiter
        if waiter.done():
            return
        try:
            while items := self._flow.take():
                if not self._write(items):
                    waiter.set_result(True)
                    return
                if self._flow.dry:
                    return
            if items is not None:
                waiter.set_result(False)
        except Exception as error:  # which is that of whoever runs it
            waiter.set_exception(error)
