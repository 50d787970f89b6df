"""An answer on its way: its head, what of its body has come, and its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class ResponseConnection(Protocol):
    """The connection that a response comes over."""

    reading_paused: bool  # nothing is read from the socket until `taken` is called

    def wait(self, deadline: float) -> Awaitable[None]: ...

    def subscribe(self, listener: Callable[[], None] | None, idle_timeout_s: float, deadline: float) -> None: ...

    def taken(self) -> None: ...

    def abort(self) -> None: ...


class HttpResponse:
    """`headers` in order, repeated ones kept, hop-by-hop ones included. Whoever has it reads it to its end, or closes
    it."""

    __slots__ = ("_connection", "chunks", "error", "header_map", "headers", "memo", "status", "unread", "whole")

    def __init__(self, connection: ResponseConnection | None) -> None:
        self._connection = connection  # None: over, or not begun
        self.header_map: dict[str, str] = {}  # see `headers.MAPPED_HEADERS`
        self.status = 0  # no final head has come yet
        self.headers: list[tuple[str, str]] = []
        self.memo: dict[bool, Any] | None = None  # of its `CachedHead`
        self.chunks: list[bytes] = []  # of the body, as they came, and not read yet
        self.unread = 0  # bytes
        self.whole = False  # the last byte has come
        self.error: BaseException | None = None

    @property
    def at_eof(self) -> bool:
        """Nothing of the body is left to read."""
        return self.whole and not self.chunks

    async def read(self, deadline: float) -> bytes:
        """What has come since the last time, as soon as there is anything; empty at the end. `deadline`: time of the
        event loop. Raises `ExchangeFailed`."""
        while (data := self.poll()) is None:
            assert self._connection is not None
            await self._connection.wait(deadline)
        return data

    def poll(self) -> bytes | None:
        """What has come since the last time; None: nothing yet; empty: the end. Raises `ExchangeFailed`."""
        if self.chunks:
            return self.take()
        if self.error is not None and not self.whole:
            raise self.error
        return b"" if self.whole else None

    def tell(self, listener: Callable[[], None] | None, idle_timeout_s: float, deadline: float) -> None:
        """Once `poll` had nothing: calls `listener` each time when it may have something, within the callback that
        brought it, until told otherwise. Where nothing comes for `idle_timeout_s`, or until `deadline`, the exchange
        fails."""
        if self._connection is not None:
            self._connection.subscribe(listener, idle_timeout_s, deadline)

    def take(self) -> bytes:
        """What of the body is here."""
        chunks = self.chunks
        taken = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.chunks, self.unread = [], 0
        if self._connection is not None and self._connection.reading_paused:
            self._connection.taken()
        return taken

    def ended(self) -> None:
        """The last byte has come, and the connection may be another's."""
        self.whole, self._connection = True, None

    def on_error(self, error: BaseException) -> None:
        """The first error is the one that counts."""
        self.error, self._connection = self.error or error, None

    def close(self) -> None:
        """Ends the exchange. Where the body is not whole, the connection ends with it: the server learns that nobody
        waits. Closing twice does no harm."""
        if self._connection is not None:
            self._connection.abort()
