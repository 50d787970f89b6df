"""A response in flight: its head, the received part of its body, and its end."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Protocol


class ResponseConnection(Protocol):
    """The connection that a response comes over."""

    def wait(self, deadline: float) -> Awaitable[None]: ...

    def subscribe(self, listener: Callable[[], None] | None, idle_timeout_s: float, deadline: float) -> None: ...

    def finish(self, discard: Callable[[], object], deadline: float) -> None: ...

    def abort(self) -> None: ...


class HttpResponse:
    """`HttpResponse` is a response whose body still arrives. Its owner reads it to the end or closes it.

    `headers` are in order, with repeated and hop-by-hop ones.
    """

    __slots__ = ("_connection", "chunks", "error", "header_map", "headers", "memo", "status", "unread", "whole")

    def __init__(self, connection: ResponseConnection | None) -> None:
        self._connection = connection  # None: complete, or not sent yet
        self.header_map: dict[str, str] = {}  # see `headers.MAPPED_HEADERS`
        self.status = 0  # 0: the final head has not arrived
        self.headers: list[tuple[str, str]] = []
        self.memo: dict[bool, Any] | None = None  # the memo of its `CachedHead`
        self.chunks: list[bytes] = []  # received parts of the body that were not read yet
        self.unread = 0  # bytes
        self.whole = False  # the last byte has arrived
        self.error: BaseException | None = None

    @property
    def at_eof(self) -> bool:
        """Whether the whole body was read."""
        return self.whole and not self.chunks

    async def read(self, deadline: float) -> bytes:
        """Return the bytes that have arrived since the last call, once there are any; empty at the end.

        `deadline` is event-loop time. Raise `ExchangeFailed`.
        """
        while (data := self.poll()) is None:
            assert self._connection is not None
            await self._connection.wait(deadline)
        return data

    def poll(self) -> bytes | None:
        """Return the bytes that have arrived, None if there are none yet, or empty bytes at the end. Raise
        `ExchangeFailed`."""
        if self.chunks:
            return self.take()
        if self.error is not None and not self.whole:
            raise self.error
        return b"" if self.whole else None

    def subscribe(self, listener: Callable[[], None] | None, idle_timeout_s: float, deadline: float) -> None:
        """Register `listener`, after `poll` returned None. It is called whenever data may have arrived, until replaced.

        The call happens within the callback that received the data. If nothing arrives for `idle_timeout_s`, or until
        `deadline`, the exchange fails.
        """
        if self._connection is not None:
            self._connection.subscribe(listener, idle_timeout_s, deadline)

    def take(self) -> bytes:
        """Return the received part of the body."""
        chunks = self.chunks
        taken = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        self.chunks, self.unread = [], 0
        return taken

    def on_end(self) -> None:
        """Record that the last byte has arrived. The connection may serve another request from now on."""
        self.whole, self._connection = True, None

    def on_error(self, error: BaseException) -> None:
        """Record the first error; later ones are ignored."""
        self.error, self._connection = self.error or error, None

    def close(self) -> None:
        """End the exchange. A second call does nothing.

        If the body is incomplete, the connection is closed too, which tells the server that the client is gone.
        """
        if self._connection is not None:
            self._connection.abort()

    def finish(self, deadline: float) -> None:
        """Drop the rest of the body, and release the connection at its end. Close it if the end has not come by
        `deadline`, which is event-loop time."""
        if self._connection is not None:
            self.take()
            self._connection.finish(self.take, deadline)
