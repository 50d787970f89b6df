"""Bodies that are streams: closed exactly once, whatever becomes of them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable
from typing import Generic, TypeVar

from gateway.messages import Body, Whole

T = TypeVar("T")


class Guarded(AsyncIterator[T], Generic[T]):
    """A generator with a clean-up that runs exactly once: at its end, when it fails, or when it is closed.

    A generator's own `finally` does not run when it is closed before its first step; a connection would leak.
    """

    def __init__(self, inner: AsyncGenerator[T, None], on_close: Callable[[], None]) -> None:
        self._inner = inner
        self._on_close: Callable[[], None] | None = on_close

    async def __anext__(self) -> T:
        try:
            return await self._inner.__anext__()
        except BaseException:  # StopAsyncIteration included
            self._finish()
            raise

    async def aclose(self) -> None:
        try:
            await self._inner.aclose()
        finally:
            self._finish()

    def _finish(self) -> None:
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


async def close_body(body: Body) -> None:
    """Gives up what of a body has not been read."""
    if isinstance(body, Whole):
        return
    stream = getattr(body, "events", None) or getattr(body, "chunks", None)
    close = getattr(stream, "aclose", None)
    if close is not None:
        await close()
