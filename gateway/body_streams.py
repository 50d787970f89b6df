"""Bodies that are streams: closed exactly once, whatever becomes of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Generic, TypeVar

from gateway.messages import Body, ByteStream, Closing, Duplex, EventStream, Frame, Tunnel

T = TypeVar("T")
GONE = Closing(1001, "the other side is gone")


class Guarded(AsyncIterator[T], Generic[T]):
    """A stream with a clean-up that runs exactly once: at its end, when it fails, or when it is closed.

    A generator's own `finally` does not run when it is closed before its first step, and a connection would leak: so
    a generator that reads from another stream names that as its `source`, which is closed with it.
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
    """Gives up what of a stream has not been read. Closing twice does no harm."""
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()


class Ending:
    """A `Duplex` that says when it is over, once."""

    def __init__(self, inner: Duplex, over: Callable[[], None]) -> None:
        self._inner = inner
        self._over: Callable[[], None] | None = over

    @property
    def protocol(self) -> str | None:
        return self._inner.protocol

    async def send(self, frame: Frame) -> None:
        await self._inner.send(frame)

    async def receive(self) -> Frame | Closing:
        return await self._inner.receive()

    async def close(self, closing: Closing) -> None:
        try:
            await self._inner.close(closing)
        finally:
            over, self._over = self._over, None
            if over is not None:
                over()


async def close_body(body: Body) -> None:
    if isinstance(body, EventStream):
        await close_stream(body.events)
    elif isinstance(body, ByteStream):
        await close_stream(body.chunks)
    elif isinstance(body, Tunnel):
        await body.upstream.close(GONE)


async def drain(body: Body) -> None:
    """Reads to the end what nobody wants: who wraps it learns that it was complete."""
    if isinstance(body, EventStream | ByteStream):
        try:
            async for _ in body.events if isinstance(body, EventStream) else body.chunks:
                pass
        finally:
            await close_body(body)


class Ready(AsyncIterator[T], Generic[T]):
    """A stream whose items are all there already; who can do better than one by one takes them with `rest()`.

    `on_close` runs exactly once: when it is closed, or read to its end one by one."""

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
        """As `aclose`."""
        self._next = len(self._items)
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()

    @property
    def items(self) -> tuple[T, ...]:
        """What `rest()` would take."""
        return self._items[self._next :]

    def rest(self) -> tuple[T, ...]:
        items, self._next = self._items[self._next :], len(self._items)
        return items


class AtHand:
    """The body of a request, where it is here already; `b""`: it has none. Implements `BodySource`."""

    __slots__ = ("taken",)
    replayable = True

    def __init__(self, body: bytes = b"") -> None:
        self.taken = body

    async def read(self) -> bytes:
        return self.taken

    def read_nowait(self) -> bytes:
        return self.taken

    async def buffer(self) -> None:
        """It is all here."""

    def stream(self) -> AsyncIterator[bytes] | None:
        return once(self.taken) if self.taken else None


async def once(body: bytes) -> AsyncIterator[bytes]:
    yield body
